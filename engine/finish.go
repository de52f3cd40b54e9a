package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/topology"
)

// A bounded run is over for an instance when everything that it had is read to its end and committed, and what is left is
// somebody's. The group may give it more at any moment:
//
//	this instance                            the group
//	all inputs have ended; last checkpoint   another one has left: its partition comes here
//	  a task for it cannot begin any more
//	last checkpoint committed
//	looks: it has a partition more           -> the next attempt reads it
//	looks: nobody has it yet                 -> waits for who gets it
//	looks: another member has it, or all     -> the end
//	  bounded inputs are read to their ends

// finish decides whether that is so, and gives errStopped, or errGained when there is more to read. unknown is an error that
// keeps it from saying so.
func (r *Runner) finish(stop, work context.Context) (ends, unknown error) {
	told := false
	for {
		if err := r.ports.Group.Err(); err != nil {
			return errStopped, err
		}
		over, err := r.ports.Offsets.RunOver(work, r.plan.Sources)
		var nobodys []element.TopicPartition
		if err == nil && !(over && allBounded(r.plan.Sources)) && !r.Halted() {
			var gained bool
			if gained, nobodys, err = r.unread(work); gained {
				return errGained, nil
			}
		}
		if err != nil {
			return errStopped, fmt.Errorf("all inputs have ended and everything is committed, but whether the whole run is over is not known: %w", err)
		}
		if len(nobodys) == 0 {
			if r.lis.Finished != nil {
				r.lis.Finished(over)
			}
			return errStopped, nil
		}
		if !told {
			told = true
			r.live(Running, r.life.Load().attempt, nil) // the attempt is put away, and this may take long
			if r.lis.Unassigned != nil {
				r.lis.Unassigned(nobodys)
			}
		}
		select {
		case <-r.ports.Group.Changes():
		case <-time.After(othersPoll):
		case <-stop.Done():
			return errStopped, nil
		}
	}
}

// unread looks for partitions that the last attempt did not have: gained says that the group has given some to this instance,
// and nobodys are those that it has given to no member.
func (r *Runner) unread(ctx context.Context) (gained bool, nobodys []element.TopicPartition, err error) {
	topics, err := r.inputs(ctx)
	if err != nil || r.ports.OthersHave == nil {
		return false, nil, err
	}
	others, err := r.ports.OthersHave(ctx)
	if err != nil {
		return false, nil, err
	}
	has := map[element.TopicPartition]uint64{}
	for _, s := range r.plan.Sources {
		for p := range topics[s.Topic].Partitions {
			if epoch, had := r.had[element.TaskID{Source: s.Name, Partition: p}]; had {
				has[element.TopicPartition{Topic: s.Topic, Partition: p}] = epoch
			}
		}
	}
	for tp := range r.ports.Group.Current().Since {
		gained = gained || has[tp] == 0
	}
	for _, tp := range others {
		has[tp] = 1
	}
	return gained, missing(has, topics), nil
}

// allBounded reports that all sources have an end.
func allBounded(sources []topology.SourcePlan) bool {
	for _, s := range sources {
		if !s.End.Bounded() {
			return false
		}
	}
	return true
}
