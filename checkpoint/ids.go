package checkpoint

import (
	"time"

	"github.com/millweir/millweir/element"
)

// Raise makes known that ids up to id are taken: a task is to join whose committed handle has it. The next trigger gets a
// higher one. Those in between were not given here, so reports of them are Unknown. A lower id changes nothing, and no id
// changes the checkpoint in flight, which does not cover the task.
func (c *Coordinator) Raise(now time.Duration, id element.CheckpointID) []Action {
	if c.enter(now); !c.dead && id > c.last {
		c.ids.add(c.last+1, id)
		c.last = id
	}
	return c.leave()
}

// foreignRanges is how many ranges of foreign ids are told apart. There is one for every time that a task joined with a
// higher id than the instance's own, and only reports that are very late ask for old ones.
const foreignRanges = 16

// foreign knows the ids up to the last one that others took: all up to base, and some ranges above it.
type foreign struct {
	base   element.CheckpointID
	ranges []idRange // growing, with ids of this coordinator between any two
}

type idRange struct{ first, last element.CheckpointID }

// add notes a range above all others. When there are too many, the oldest becomes part of the base, together with the
// ids below it, of which nobody reports any more; the checkpoint in flight is above it, since all ranges that were added
// during it are one.
func (f *foreign) add(first, last element.CheckpointID) {
	if first == f.base+1 && len(f.ranges) == 0 {
		f.base = last
		return
	}
	if n := len(f.ranges); n > 0 && f.ranges[n-1].last+1 == first {
		f.ranges[n-1].last = last
		return
	}
	f.ranges = append(f.ranges, idRange{first, last})
	if len(f.ranges) > foreignRanges {
		f.base = f.ranges[0].last
		f.ranges = append(f.ranges[:0], f.ranges[1:]...)
	}
}

func (f *foreign) has(id element.CheckpointID) bool {
	if id <= f.base {
		return true
	}
	for _, r := range f.ranges {
		if r.first <= id && id <= r.last {
			return true
		}
	}
	return false
}
