package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// world is one run: the models, the processes and the queue of what happens next. Time is a number.
type world struct {
	cfg  Config
	rng  *rand.Rand
	now  time.Duration
	seq  uint64
	heap []work

	broker *broker
	disk   *disk
	check  *checker
	procs  []*process    // the living, in the order of their start
	small  int           // up to which size runs lie in the root, of processes that a scenario starts
	grace  time.Duration // of what instances that are gone have left
	names  []string      // of the instances
	born   int
	named  int // names so far

	faults                faultPlan
	healed                bool
	healAt                time.Duration
	steps                 int
	hash                  uint64
	trace                 []string
	err                   error
	counts                Counts
	interval              time.Duration // of checkpoints
	concurrent, tolerable int           // checkpoints in flight, failures in a row
	x                     *exchange     // nil: the application has none
	fibers                []*fiber
	fine                  bool          // calls of the repository that read are cut into steps
	later                 *later        // nil: what was modelled later is left out, so that the runs of old seeds stay what they were
	long                  bool          // much time passes
	stall                 *stall        // nil: cleaners do not stand still longer than others do
	away                  time.Duration // of a script: how long the next crash keeps an instance away
	met                   []int         // by directive: how often its step came
	lastBefore            bool          // a directive runs before its step
	wait                  time.Duration // it does not end before
	rest                  *rest         // nil: the run ends when all is processed
	damage                *damage       // nil: it ends without
	saves                 *savepoints   // nil: likewise
	plain, pieces         bool          // at-least-once; the offsets go one by one there
	patience              time.Duration // with a commit, there
	stopped               bool          // everything that was asked for has happened
}

// work is one atomic step. What lies between two steps is a point where a process can die.
type work struct {
	at   time.Duration
	seq  uint64
	kind kind
	// p is the process that does the step, or on whose behalf the broker does it. A bound step needs it alive.
	p     *process
	bound bool
	fn    func()
}

func (w *world) push(it work) {
	w.heap = append(w.heap, it)
	for i := len(w.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !w.heap[i].before(&w.heap[up]) {
			break
		}
		w.heap[i], w.heap[up] = w.heap[up], w.heap[i]
		i = up
	}
}

func (w *world) pop() work {
	top, last := w.heap[0], len(w.heap)-1
	w.heap[0] = w.heap[last]
	w.heap[last] = work{}
	w.heap = w.heap[:last]
	for i := 0; ; {
		l := 2*i + 1
		if l >= last {
			break
		}
		if r := l + 1; r < last && w.heap[r].before(&w.heap[l]) {
			l = r
		}
		if !w.heap[l].before(&w.heap[i]) {
			break
		}
		w.heap[i], w.heap[l] = w.heap[l], w.heap[i]
		i = l
	}
	return top
}

func (a *work) before(b *work) bool { return a.at < b.at || (a.at == b.at && a.seq < b.seq) }

// do queues a step of a process; it is dropped when the process dies and waits while it is stopped.
func (w *world) do(p *process, after time.Duration, k kind, fn func()) {
	w.seq++
	w.push(work{at: w.now + after, seq: w.seq, kind: k, p: p, bound: true, fn: fn})
}

// outside queues a step of the broker; p, which may be nil, is on whose behalf.
func (w *world) outside(p *process, after time.Duration, k kind, fn func()) {
	w.seq++
	w.push(work{at: w.now + after, seq: w.seq, kind: k, p: p, fn: fn})
}

// lag draws how long something takes, up to most. The differences are what interleaves the run; in an exhaustive run
// everything takes equally long.
func (w *world) lag(most time.Duration) time.Duration {
	if w.cfg.script != nil {
		return 100 * time.Microsecond
	}
	return 1 + time.Duration(w.rng.Int64N(int64(most)))
}

func (w *world) chance(percent int) bool {
	return w.cfg.script == nil && w.rng.IntN(100) < percent
}

// run executes step after step until everything is processed after the last fault, or something is wrong.
func (w *world) run() {
	for w.err == nil && !w.stopped {
		if !w.healed && w.now >= w.healAt && w.faults.left == 0 && (w.stall == nil || !w.stall.now) {
			w.heal()
		}
		it := w.pop()
		if it.p != nil && it.p.silent && it.kind >= kApplyInit {
			continue
		}
		if it.bound {
			if it.p.dead {
				continue
			}
			if it.p.pausedUntil > it.at {
				it.at = it.p.pausedUntil
				w.push(it)
				continue
			}
		}
		w.now = max(w.now, it.at)
		w.steps++
		if w.steps > maxSteps || w.now > maxTime {
			w.violation("I10", "no end after %d steps and %v: %s", w.steps, w.now, w.broker.summary())
			return
		}
		w.note(&it)
		if w.crashHere(&it, true) {
			continue
		}
		it.fn()
		w.crashHere(&it, false)
		if w.steps%16 == 0 && w.healed {
			w.stopped = w.stopped || w.quiet() && (w.rest == nil || w.rest.over(w)) && (w.damage == nil || w.damage.over(w)) && (w.saves == nil || w.saves.over(w))
		}
	}
}

// note makes the step part of the trace and of its hash.
func (w *world) note(it *work) {
	who := uint64(99)
	if it.p != nil {
		who = uint64(it.p.number)
	}
	w.mix(uint64(it.kind)<<56 ^ who<<48 ^ uint64(w.now))
	if w.cfg.Trace && it.kind != kHeartbeat {
		w.tracef(it.p, "%s", it.kind)
	}
}

func (w *world) mix(v uint64) {
	w.hash ^= v
	w.hash *= 0x9E3779B97F4A7C15
	w.hash ^= w.hash >> 29
}

func (w *world) tracef(p *process, format string, args ...any) {
	if !w.cfg.Trace {
		return
	}
	who := "-"
	if p != nil {
		who = p.label
	}
	w.trace = append(w.trace, fmt.Sprintf("%6d %10.3fms %-5s %s", w.steps, float64(w.now)/1e6, who, fmt.Sprintf(format, args...)))
}

// violation ends the run: an invariant does not hold.
func (w *world) violation(inv, format string, args ...any) {
	if w.err == nil {
		w.err = &Violation{Invariant: inv, Step: w.steps, At: w.now, What: fmt.Sprintf(format, args...)}
		w.tracef(nil, "VIOLATION %v", w.err)
	}
}

// heal ends the faults: the network is good, what is still to come in arrives, every instance has a process. Those that
// stand still wake up in their time.
func (w *world) heal() {
	w.healed = true
	w.counts.HealedAt = w.now
	w.faults.disarm()
	w.disk.heal()
	if w.cfg.script == nil {
		w.broker.appendAll()
		w.broker.group.discover(1<<w.cfg.Partitions - 1)
	}
	w.tracef(nil, "HEAL")
	for _, name := range w.names {
		if s := w.cfg.script; s != nil && s.handover {
			break
		}
		w.supervise(name)
	}
}

// quiet reports that every input is covered by a commit, nothing is open and no checkpoint is under way.
func (w *world) quiet() bool {
	b := w.broker
	if w.now < w.wait || w.saves.unfinished(w) {
		return false
	}
	for i := range b.in {
		if c := b.group.committed[i]; !c.found || max(c.offset, b.group.best[i]) < int64(len(b.in[i].recs)) {
			return false
		}
	}
	if w.check.inFlight > 0 {
		return false
	}
	for _, t := range b.txns {
		if t.state == ongoing || t.state == preparing {
			return false
		}
	}
	for _, p := range w.procs {
		if p.attempt != nil && len(p.attempt.flights) > 0 {
			return false
		}
	}
	w.check.atEnd()
	return true
}
