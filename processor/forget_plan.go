package processor

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/snapshot"
)

// anyLife is a cancel's that does not come from an instance.
const anyLife = math.MaxUint64

// LifeOf is the newest life that committed handles are of. What is no handle is passed over: a start refuses it.
func LifeOf(committed map[element.TopicPartition]kafka.Committed) (life uint64) {
	for _, c := range committed {
		if h, err := snapshot.ParseHandle(c.Metadata); c.Found && err == nil {
			life = max(life, h.Life)
		}
	}
	return life
}

// markOf stands for what a group has committed: equal marks, equal positions and handles. Every commit of work has a handle that
// no other one has.
func markOf(committed map[element.TopicPartition]kafka.Committed) string {
	sum := sha256.New()
	for _, tp := range inOrder(committed) {
		if c := committed[tp]; c.Found {
			fmt.Fprintf(sum, "%s/%d %d %q\n", tp.Topic, tp.Partition, c.Offset, c.Metadata)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func inOrder(committed map[element.TopicPartition]kafka.Committed) []element.TopicPartition {
	return slices.SortedFunc(maps.Keys(committed), element.TopicPartition.Compare)
}

// hasState says that state belongs to a position: one of the newest life, since a cancel that was interrupted leaves the others.
func hasState(committed map[element.TopicPartition]kafka.Committed) bool {
	life := LifeOf(committed)
	for _, c := range committed {
		if h, err := snapshot.ParseHandle(c.Metadata); c.Found && err == nil && h.Life == life && h.Kind == snapshot.HandleCheckpoint {
			return true
		}
	}
	return false
}

// forgetting is what has to be committed so that no state belongs to the positions of a group.
type forgetting struct {
	Life    uint64                                     // that begins with it
	Handles map[element.TopicPartition]snapshot.Handle // of all partitions; empty: nothing is to be committed
}

// planForget decides it from all that the group has committed. The commit of it is the cancel: before it the application is
// whole, after it nothing of it is left but positions and files that nobody asks for. It goes to all partitions, and
// to those too that have no state, so that whoever sleeps learns of it with whatever it wakes up to. Where they are too many for
// one request the first one is the cancel: the handles of an earlier life than the newest one of the group have no state.
//
// of is the life that the cancel is of: a later one is not touched. With anyLife it is the one that is found, and since a cancel
// may have come so far before, what begins a life and has no state is left as it is.
func planForget(committed map[element.TopicPartition]kafka.Committed, incarnation element.Incarnation, of uint64) (forgetting, error) {
	f := forgetting{Handles: map[element.TopicPartition]snapshot.Handle{}}
	done := of == anyLife
	var id element.CheckpointID
	life := LifeOf(committed)
	if life > of {
		return forgetting{}, fault.Stopf(fault.OK, "%w", errOtherLife)
	}
	for _, tp := range inOrder(committed) {
		c := committed[tp]
		if !c.Found {
			continue
		}
		h, err := snapshot.ParseHandle(c.Metadata)
		if err != nil {
			return forgetting{}, fault.Stopf(fault.HandleMismatch, "committed offset %d of %s: %w", c.Offset, tp, err)
		}
		if h.Offset != c.Offset || h.Partition != tp.Partition {
			return forgetting{}, fault.Stopf(fault.HandleMismatch, "committed offset %d of %s does not match its checkpoint, which stands at %d of partition %d: another tool moved it", c.Offset, tp, h.Offset, h.Partition)
		}
		done = done && h.Kind == snapshot.HandleEmpty && h.Life == life && life > 0
		id = max(id, h.Root.Name.ID)
		f.Handles[tp] = h
	}
	if done || len(f.Handles) == 0 {
		return forgetting{Life: life}, nil
	}
	f.Life = life + 1
	for tp, h := range f.Handles {
		h = h.WithoutState(f.Life)
		h.Root = snapshot.RootRef{Name: element.CheckpointName{ID: id + 1, Incarnation: incarnation}}
		f.Handles[tp] = h
	}
	return f, nil
}
