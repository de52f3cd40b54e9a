package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

func sortBytes(b []byte) { slices.Sort(b) }

// checker looks from outside: at what a reader of committed records sees, at the committed offsets, and at the
// checkpoint directory. It knows the inputs and nothing of the driver.
type checker struct {
	w      *world
	counts map[byte]int64 // of the last visible output per key
	needed map[string]bool
	// borrower, by directory, is that of an instance whose committed root names files there.
	borrower map[string]string
	repo     *snapshot.Repository
	// start is where an input partition begins to count: the lowest offset that was read before anything of it was
	// committed, else its first committed offset. known says that it is settled.
	start [maxPartitions]int64
	known mask
	early mask // read before anything was committed
	// history has, of each partition, the checkpoints that were committed.
	history [maxPartitions][]past
	// With an exchange: how far the reader has seen each input by key; records in flight of the committed checkpoint.
	seen map[sent]int64
	// At least once: the newest checkpoint of each partition that was ever committed, and the inputs that have an output.
	high     [maxPartitions]element.CheckpointID
	put      map[sent]bool
	inFlight int
}

func newChecker(w *world) *checker {
	c := &checker{w: w, counts: map[byte]int64{}, needed: map[string]bool{}, borrower: map[string]string{}, seen: map[sent]int64{}, put: map[sent]bool{}}
	var err error
	c.repo, err = snapshot.OpenRepository(context.Background(), snapshot.Config{
		Storage: &view{d: w.disk, owner: "checker"}, Application: application, Instance: "checker", ReadOnly: true, Logger: silent,
	})
	if err != nil {
		w.violation("I7", "the checker cannot open the directory: %v", err)
	}
	return c
}

// read is the reader of committed records, up to the last stable offset: I1.
func (c *checker) read(l *outLog) {
	for lso := l.stable(); l.read < lso; l.read++ {
		e := &l.entries[l.read]
		if l.back != nil && l.read >= l.again {
			maps.Copy(c.counts, l.back)
			l.back = nil
		}
		if e.fate != visible || e.key == 0 {
			continue
		}
		if c.w.plain {
			c.readPlain(&e.outRecord)
			continue
		}
		if want := c.counts[e.key] + 1; e.count != want {
			c.w.violation("I1", "the reader sees count %d of key %c (from in/%d at %d), %d is next", e.count, e.key, e.from, e.at, want)
			return
		}
		c.counts[e.key] = e.count
		if c.w.x != nil && !c.inOrder(&e.outRecord) {
			return
		}
	}
}

// offsetsMoved looks at a change of the committed offsets, at the moment at which it is decided: I5, I6 and I7.
func (c *checker) offsetsMoved(before, after []committed) {
	back := c.w.damage.moved(c.w, before, after)
	imported := c.w.saves.moved(c.w, before, after)
	for i := range after {
		b, a := before[i], after[i]
		c.remember(i, a)
		if back && a.metadata != b.metadata {
			continue // further than any other has come, and judged by then
		}
		if a.found && !c.known.has(i) {
			c.known |= bit(i)
			if !c.early.has(i) {
				c.start[i] = a.offset
			}
		}
		if !b.found || a.metadata == b.metadata {
			continue
		}
		hb, errb := snapshot.ParseHandle(b.metadata)
		ha, erra := snapshot.ParseHandle(a.metadata)
		switch {
		case errb != nil || erra != nil:
			c.w.violation("I7", "a committed handle of in/%d cannot be read: %v %v", i, errb, erra)
		case c.w.plain: // see sentBack
		case a.offset < b.offset && !imported.has(i):
			c.w.violation("I6", "the offset of in/%d goes back from %d (checkpoint %v) to %d (checkpoint %v)", i, b.offset, hb.Root.Name, a.offset, ha.Root.Name)
		case ha.Root.Name.ID <= hb.Root.Name.ID:
			c.w.violation("I6", "the checkpoint of in/%d goes back from %v to %v", i, hb.Root.Name, ha.Root.Name)
		}
	}
	clear(c.needed)
	clear(c.borrower)
	c.verify(after)
	if s := c.w.cfg.script; s != nil {
		s.committed(c.w, after)
	}
}

// remember notes which root a committed handle names.
func (c *checker) remember(part int, o committed) {
	h, err := snapshot.ParseHandle(o.metadata)
	if n := len(c.history[part]); o.found && err == nil && h.Kind == snapshot.HandleCheckpoint && (n == 0 || c.history[part][n-1].path != h.Root.Path) {
		c.history[part] = append(c.history[part], past{o, h.Root.Path})
	}
}

// fetched notes that a partition is read. Whatever was read before the start position was committed has to count: nobody
// could know where else it began.
func (c *checker) fetched(by *process, part int, from int64) {
	if !by.dead { // a request may arrive after the end of who has sent it
		c.w.saves.fetched(c.w, part, from)
	}
	if c.known.has(part) || (c.early.has(part) && c.start[part] <= from) {
		return
	}
	c.early |= bit(part)
	c.start[part] = from
}

// verify opens every committed handle and compares the state that it leads to with the inputs.
func (c *checker) verify(offsets []committed) {
	if c.w.x != nil {
		c.verifyWhole(offsets)
		return
	}
	roots := map[snapshot.RootRef]*snapshot.Root{}
	for i, o := range offsets {
		if !o.found || c.w.err != nil || c.w.damage.skips(o) {
			continue
		}
		h, err := snapshot.ParseHandle(o.metadata)
		if err != nil || h.Offset != o.offset || h.Partition != int32(i) {
			c.w.violation("I7", "handle of in/%d at %d: %v, %+v", i, o.offset, err, h)
			return
		}
		got := map[byte]int64{}
		if h.Kind == snapshot.HandleCheckpoint {
			if got, err = c.load(roots, h, i); err != nil {
				c.w.violation("I7", "the committed handle of in/%d at %d does not open: %v", i, o.offset, err)
				return
			}
		}
		if want := c.fold(i, o.offset); !equal(want, got) {
			c.w.violation("I5", "state of in/%d at offset %d in checkpoint %v is %s, the inputs give %s", i, o.offset, h.Root.Name, show(got), show(want))
		}
	}
}

// load reads the state that a handle leads to.
func (c *checker) load(roots map[snapshot.RootRef]*snapshot.Root, h snapshot.Handle, part int) (map[byte]int64, error) {
	ctx := context.Background()
	root := roots[h.Root]
	if root == nil {
		var err error
		if root, err = c.repo.ReadRoot(ctx, h.Root); err != nil {
			return nil, err
		}
		roots[h.Root] = root
		c.needed[h.Root.Path] = true
	}
	for i := range root.Tasks {
		e := &root.Tasks[i]
		if e.Task != taskID(part) {
			continue
		}
		got := map[byte]int64{}
		for _, r := range e.Runs {
			c.needed[r.File] = true
			if dir := dirOf(r.File); dir != dirOf(h.Root.Path) {
				c.borrower[dir] = dirOf(h.Root.Path)
			}
		}
		_, err := c.repo.Restore(ctx, *e, nil, func(e snapshot.Entry) error {
			got[e.Key[0]] = int64(binary.BigEndian.Uint64(e.Value))
			return nil
		})
		return got, err
	}
	return nil, fmt.Errorf("root %v has no entry of the task", h.Root.Name)
}

// fold is the model: the counts of the inputs from the start to an offset.
func (c *checker) fold(part int, offset int64) map[byte]int64 {
	out := map[byte]int64{}
	for _, r := range c.w.broker.in[part].recs[min(c.start[part], offset):offset] {
		if !r.gap && !r.skip {
			out[r.key]++
		}
	}
	return out
}

// fileGone is called when a file has been deleted, lost or cut: I7 holds at all times.
func (c *checker) fileGone(name string) {
	if c.needed[name] {
		c.w.tracef(nil, "  a file that a committed handle needs has changed: %s", name)
		c.verify(c.w.broker.group.effective())
	}
}

// completed checks that the driver takes only what is true for committed: the broker has decided to commit. A planted
// bug is to be seen from outside, so the look inside is closed then.
func (c *checker) completed(a *attempt, p *pending) {
	c.w.counts.Checkpoints++
	a.p.newest = max(a.p.newest, p.name.ID)
	if s := c.w.cfg.script; s != nil {
		s.to = c.w.steps
	}
	if c.w.cfg.Bug != NoBug {
		return
	}
	for _, o := range p.offsets {
		if !c.w.broker.group.decisions[o.Metadata] {
			c.w.violation("I14", "%s takes checkpoint %v for committed, the broker has not committed it", a.p.label, p.name)
		}
	}
}

// timedOut is called when a transaction has timed out: I9. Its process lives and has had time enough without a fault to end
// it, and every reader of the outputs has waited for this.
func (c *checker) timedOut(id string) {
	w := c.w
	if !w.tidies() || !w.healed || w.now < w.counts.HealedAt+timeToTidy {
		return
	}
	lives := false
	for _, p := range w.procs {
		if p.name != ownerOf(id) {
			continue
		}
		if lives = true; p.pausedUntil > w.counts.HealedAt {
			return
		}
	}
	if lives {
		w.violation("I9", "the transaction of %s is forgotten: it was left to time out", id)
	}
}

// timeToTidy is how long it may take after the faults until nothing is open that nobody works on.
const timeToTidy = 100 * time.Millisecond

// atEnd checks what must hold when everything is processed: I1 in full and I9.
func (c *checker) atEnd() {
	want := map[byte]int64{}
	for i := range c.w.broker.in {
		for k, n := range c.fold(i, int64(len(c.w.broker.in[i].recs))) {
			if c.w.x != nil {
				k = exchangeKey(k)
			}
			want[k] += n
		}
	}
	for i, l := range c.w.broker.out {
		c.read(l)
		if l.read != len(l.entries) || len(l.open) > 0 {
			c.w.violation("I9", "out/%d: %d of %d entries can be read, %d transactions are open", i, l.read, len(l.entries), len(l.open))
		}
	}
	if n := len(c.w.broker.group.pending); n > 0 {
		c.w.violation("I9", "%d transactions are open on the offsets", n)
	}
	if c.w.plain {
		c.atEndPlain()
		return
	}
	if !equal(want, c.counts) {
		c.w.violation("I1", "in the end the reader has seen %s, the inputs give %s", show(c.counts), show(want))
	}
}

func equal(a, b map[byte]int64) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

func show(m map[byte]int64) string {
	var keys []byte
	for k := range m {
		keys = append(keys, k)
	}
	sortBytes(keys)
	s := ""
	for _, k := range keys {
		s += fmt.Sprintf("%c=%d ", k, m[k])
	}
	return "{" + s + "}"
}
