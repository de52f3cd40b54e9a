package sim

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// inOrder looks whether a visible output of an exchange is what comes next: of each input, the records of a key come one
// after the other.
func (c *checker) inOrder(e *outRecord) bool {
	at := sent{key: e.key, from: byte(e.from)}
	from, ok := c.seen[at]
	if !ok {
		from = c.start[e.from]
	}
	next := c.w.broker.next(int(e.from), e.key, from)
	if next != e.at {
		c.w.violation("I1", "the reader sees in/%d at %d as count %d of key %c, of that input %d is next", e.from, e.at, e.count, e.key, next)
		return false
	}
	c.seen[at] = next + 1
	return true
}

// next is the next record of an input that has the key behind the exchange, -1 if there is none.
func (b *broker) next(part int, key byte, from int64) int64 {
	recs := b.in[part].recs
	for ; from < int64(len(recs)); from++ {
		if r := &recs[from]; !r.gap && !r.skip && exchangeKey(r.key) == key {
			return from
		}
	}
	return -1
}

// verifyWhole opens the checkpoint that the committed handles lead to, which has to be one, and compares it with the
// inputs: what is in flight are the last records of each input and key, in order, and the state is the fold of those
// before.
func (c *checker) verifyWhole(offsets []committed) {
	roots := map[snapshot.RootRef]*snapshot.Root{}
	var root *snapshot.Root
	want := map[byte]int64{}
	for i, o := range offsets {
		if !o.found || c.w.err != nil {
			continue
		}
		h, err := snapshot.ParseHandle(o.metadata)
		if err != nil || h.Offset != o.offset || h.Partition != int32(i) {
			c.w.violation("I7", "handle of in/%d at %d: %v, %+v", i, o.offset, err, h)
			return
		}
		for k, n := range c.fold(i, o.offset) {
			want[exchangeKey(k)] += n
		}
		if h.Kind != snapshot.HandleCheckpoint {
			continue
		}
		if _, err := c.load(roots, h, i); err != nil {
			c.w.violation("I7", "the committed handle of in/%d at %d does not open: %v", i, o.offset, err)
			return
		}
		if root != nil && root != roots[h.Root] && c.w.plain {
			continue // a part of the offsets is committed
		}
		if root != nil && root != roots[h.Root] {
			c.w.violation("I5", "in/%d stands at checkpoint %v, another input at %v", i, h.Root.Name, root.Name)
			return
		}
		root = roots[h.Root]
	}
	if c.w.plain {
		c.verifyPlain(roots, offsets)
		return
	}
	got := map[byte]int64{}
	if root != nil {
		var err error
		if c.inFlight, err = c.loadStage(root, offsets, got); err != nil {
			c.w.violation("I5", "checkpoint %v: %v", root.Name, err)
			return
		}
	}
	if !equal(want, got) {
		c.w.violation("I5", "state and records in flight of checkpoint %v are %s, the inputs give %s", root.Name, show(got), show(want))
	}
}

// loadStage adds up states and records in flight of the subtasks of a root.
func (c *checker) loadStage(root *snapshot.Root, offsets []committed, got map[byte]int64) (inFlight int, err error) {
	ctx := context.Background()
	var all []sent
	for i := range root.Tasks {
		e := &root.Tasks[i]
		if e.Task.Source != stageName {
			continue
		}
		mine := func(key byte) bool {
			return element.SubtaskOf(c.w.x.group(key), e.Parallelism, e.MaxParallelism) == int(e.Task.Partition)
		}
		for _, r := range append(e.Runs[:len(e.Runs):len(e.Runs)], e.InFlight...) {
			c.needed[r.File] = true
		}
		state := map[byte]int64{}
		_, err := c.repo.Restore(ctx, *e, nil, func(s snapshot.Entry) error {
			if !mine(s.Key[0]) {
				return fmt.Errorf("%v of %d has key %c", e.Task, e.Parallelism, s.Key[0])
			}
			state[s.Key[0]] = int64(binary.BigEndian.Uint64(s.Value))
			return nil
		})
		if err != nil {
			return 0, err
		}
		for k, n := range state {
			got[k] += n
		}
		_, err = c.repo.RestoreInFlight(ctx, *e, nil, func(group int, data []byte) error {
			s := decodeSent(data)
			if !mine(s.key) || group != c.w.x.group(s.key) {
				return fmt.Errorf("key %c of group %d is on the way to %v of %d", s.key, group, e.Task, e.Parallelism)
			}
			all = append(all, s)
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	next := map[sent]int64{}
	for _, s := range all {
		at := sent{key: s.key, from: s.from}
		if from, ok := next[at]; ok && c.w.broker.next(int(s.from), s.key, from) != s.at {
			return 0, fmt.Errorf("in/%d at %d is on the way behind what comes after %d", s.from, s.at, from-1)
		}
		next[at] = s.at + 1
		got[s.key]++
	}
	for at, from := range next {
		if n := c.w.broker.next(int(at.from), at.key, from); n >= 0 && n < offsets[at.from].offset {
			return 0, fmt.Errorf("key %c of in/%d: record %d is not on the way behind %d", at.key, at.from, n, from-1)
		}
	}
	return len(all), nil
}
