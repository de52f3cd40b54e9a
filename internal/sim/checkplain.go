package sim

import (
	"github.com/millweir/millweir/snapshot"
)

// The checker of at-least-once.

// sentBack judges a commit against all that were there before: only a copy that comes late may be older.
func (c *checker) sentBack(part int, o committed, late bool) {
	h, err := snapshot.ParseHandle(o.metadata)
	if err != nil {
		c.w.violation("I7", "a handle of in/%d cannot be read: %v", part, err)
		return
	}
	high := c.high[part]
	if h.Kind == snapshot.HandleEmpty && high == 0 && !late {
		c.start[part] = o.offset // an earlier start has come to nothing, though its commit has come through: nothing was read from there
	}
	switch {
	case late || c.w.broker.group.decisions[o.metadata]:
		if high > h.Root.Name.ID {
			c.w.counts.SetBack++
		}
	case h.Root.Name.ID < high: // as high: there was no marker when the group had been set back
		c.w.violation("I6", "checkpoint %v of in/%d is committed behind %d", h.Root.Name, part, high)
	}
	c.high[part] = max(high, h.Root.Name.ID)
}

// readPlain takes an output that may be there twice. Without an exchange its count is that of its input all the same.
func (c *checker) readPlain(e *outRecord) {
	c.put[sent{from: byte(e.from), at: e.at}] = true
	if c.w.x != nil {
		return
	}
	if want := c.fold(int(e.from), e.at+1)[e.key]; e.count != want {
		c.w.violation("I1", "the reader sees count %d of key %c from in/%d at %d, it is the %d. there", e.count, e.key, e.from, e.at, want)
	}
}

// verifyPlain opens the newest checkpoint of those that the handles name and compares its states with the inputs below its
// positions: nothing is left out.
func (c *checker) verifyPlain(roots map[snapshot.RootRef]*snapshot.Root, offsets []committed) {
	var newest *snapshot.Root
	for _, root := range roots {
		if newest == nil || newest.Name.ID < root.Name.ID {
			newest = root
		}
	}
	if newest == nil {
		return
	}
	want, got := map[byte]int64{}, map[byte]int64{}
	for i := range newest.Tasks {
		e := &newest.Tasks[i]
		if e.Task.Source != sourceName {
			continue
		}
		part, at := int(e.Task.Partition), e.Positions[0].Offset
		if best := &c.w.broker.group.best[part]; *best < at {
			*best = at // who starts now starts there
		}
		for k, n := range c.fold(part, at) {
			want[exchangeKey(k)] += n
		}
	}
	if _, err := c.loadStage(newest, offsets, got); err != nil {
		c.w.violation("I5", "checkpoint %v: %v", newest.Name, err)
		return
	}
	for k, n := range want {
		if got[k] < n {
			c.w.violation("I5", "the state of checkpoint %v is %s, the inputs give %s: something is left out", newest.Name, show(got), show(want))
			return
		}
		if got[k] > n {
			c.w.counts.Recounted++
		}
	}
}

// atEndPlain looks whether each input has an output.
func (c *checker) atEndPlain() {
	for p := range c.w.broker.in {
		for _, r := range c.w.broker.in[p].recs {
			if !r.gap && !r.skip && r.offset >= c.start[p] && !c.put[sent{from: byte(p), at: r.offset}] {
				c.w.violation("I1", "in the end in/%d at %d has no output", p, r.offset)
				return
			}
		}
	}
	n := 0
	for _, l := range c.w.broker.out {
		n += len(l.entries)
	}
	c.w.counts.Repeated += n - len(c.put)
}
