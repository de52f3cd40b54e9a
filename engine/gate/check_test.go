package gate

import (
	"fmt"
	"strings"
)

// checkCut judges a completed checkpoint: a record ahead of S_n is in the state of each layer, or in flight before it,
// once; one behind it nowhere; and what the sinks have committed is what layer B has seen.
func (w *world) checkCut(p *pending) {
	if w.Blind {
		return
	}
	flight := func(of [][]int32) []int {
		n := make([]int, len(w.recs))
		for _, ids := range of {
			for _, id := range ids {
				n[id]++
			}
		}
		return n
	}
	fa, fb, held := flight(p.flightA), flight(p.flightB), flight([][]int32{p.held})
	for i, r := range w.recs {
		a, b, out := int(p.stateA[i]), int(p.stateB[i]), int(w.committed[i])
		ahead := 0
		if r.seq < p.pos[r.src] {
			ahead = 1
		}
		before := a - held[i] // what layer B may have seen
		if w.direct(r.src) {
			a, before = ahead, ahead
		}
		switch {
		case w.exactly() && (a+fa[i] != ahead || b+fb[i] != before || out != b):
			w.fail("cut", "checkpoint %d: record %d (source %d, %d of %d): state of A %d, in flight to A %d, state of B %d, in flight to B %d, committed %d",
				p.b.ID, i, r.src, r.seq, p.pos[r.src], a, fa[i], b, fb[i], out)
		case !w.exactly() && (a < ahead || b < ahead-held[i] || out < ahead-held[i]):
			w.fail("cut", "checkpoint %d: record %d (source %d, %d of %d) is lost: state of A %d, of B %d, committed %d", p.b.ID, i, r.src, r.seq, p.pos[r.src], a, b, out)
		}
		if w.err != nil {
			return
		}
	}
}

// checkEnd judges the end of a run: every record once, or at least once.
func (w *world) checkEnd() {
	for i, r := range w.recs {
		if w.direct(r.src) {
			w.completed.stateA[i]++ // it does not go there
		}
		for what, n := range map[string]uint8{"the state of A": w.completed.stateA[i], "the state of B": w.completed.stateB[i], "the output": w.committed[i]} {
			if n == 0 || n > 1 && w.exactly() {
				w.fail("end", "at the end record %d is %d times in %s", i, n, what)
			}
			if n > 1 {
				w.seen["duplicate"]++
			}
		}
	}
}

// byKey is the keyed state of layer A: how many records of each group.
func (w *world) byKey() (a, b [groups]int) {
	for i, r := range w.recs {
		a[r.groupA] += int(w.completed.stateA[i])
		b[r.groupB] += int(w.completed.stateB[i])
	}
	return a, b
}

// picture tells where everything stands.
func (w *world) picture() string {
	var s strings.Builder
	for i := range w.sources {
		fmt.Fprintf(&s, "\n  source %d: %d of %d, ended %v", i, w.sources[i].pos, w.length[i], w.sources[i].ended)
	}
	for _, ts := range [][]*task{w.a, w.b} {
		for _, t := range ts {
			fmt.Fprintf(&s, "\n  task %d of layer %d: pending %v, restored %d, ended %v", t.index, t.layer, t.d.g.Pending(), len(t.d.backlog), t.d.g.AllEnded())
			for in, c := range t.d.ch {
				fmt.Fprintf(&s, "; input %d: %d queued, blocked %v", in, len(c.q), t.d.g.Blocked(in))
			}
		}
	}
	return s.String()
}
