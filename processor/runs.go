package processor

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/millweir/millweir/internal/kafka"
)

// Which run a process takes part in.
//
// Runs are numbered, and with every end that is kept stands the run it is of. A process reads once, when it starts, what is
// kept and committed: is the last run over, it takes part in the next one, otherwise in that one. It stays with this for its
// life. Nothing is removed, and a number only grows, so several that start together need not agree on who begins:
//
//	a: run 1 is over, so mine is 2         b: run 1 is over, so mine is 2
//	a: has partition 0: none of 2 is kept, resolves 20, keeps it
//	                                       b: is given partition 0: the end of 2 is kept, takes 20
//
// One that has read before all of this, and comes to its partitions only when the others are through, finds the ends of its
// run reached and has nothing to do. One that stands by while later runs begin takes part in what it finds.

// keptEnd is an end that is kept.
type keptEnd struct {
	run    int64
	offset int64
	what   string // it is the end of; see endOf
}

const runNote = "run "

// note is the metadata beside the offset.
func (k keptEnd) note() string { return fmt.Sprintf("%s%d, %s", runNote, k.run, k.what) }

// parseEnd reads an end. Those of older versions have no number and are of the first run; removing them began another.
func parseEnd(c kafka.Committed) (keptEnd, bool) {
	k := keptEnd{run: 1, offset: c.Offset, what: c.Metadata}
	if rest, ok := strings.CutPrefix(c.Metadata, runNote); ok {
		number, what, _ := strings.Cut(rest, ", ")
		if n, err := strconv.ParseInt(number, 10, 64); err == nil && n > 0 {
			k.run, k.what = n, what
		}
	}
	return k, c.Found
}

// endFacts is what is known of a partition that ends.
type endFacts struct {
	committed, kept kafka.Committed
	what            string // its end would be kept as
	named           bool   // the source names the end, at; nothing is kept
	at              int64
}

// end gives the end of the partition for a process that takes part in a run: what is kept of that run or of a later one, else
// what it is now.
func (f endFacts) end(run, now int64) keptEnd {
	k, ok := parseEnd(f.kept)
	if ok && k.run >= run && k.what == f.what && f.committed.Found {
		return k
	}
	if ok {
		run = max(run, k.run)
	}
	return keptEnd{run: max(run, 1), offset: now, what: f.what}
}

// reached reports that everything up to the end of a run is committed.
func (f endFacts) reached(run int64) bool {
	end := f.at
	if !f.named {
		k, ok := parseEnd(f.kept)
		if !ok || k.run < run || k.what != f.what {
			return false
		}
		end = k.offset
	}
	return f.committed.Found && f.committed.Offset >= end
}

// runFacts are those of all partitions.
type runFacts []endFacts

func (fs runFacts) over(run int64) bool {
	for _, f := range fs {
		if !f.reached(run) {
			return false
		}
	}
	return true
}

// run gives the run that a process takes part in which starts now.
func (fs runFacts) run() int64 {
	last := int64(0)
	for _, f := range fs {
		if k, ok := parseEnd(f.kept); ok && !f.named {
			last = max(last, k.run)
		}
	}
	if last == 0 || fs.over(last) {
		return last + 1
	}
	return last
}
