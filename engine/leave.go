package engine

import (
	"context"
	"slices"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
)

// revocation is the group's wish to take partitions away, which waits for their tasks to leave.
type revocation struct {
	since map[element.TopicPartition]uint64 // the partitions, and the ownership epochs that are to end
	done  chan struct{}                     // closed when all have left
	halts map[element.TaskID]bool           // tasks that have not halted yet
	tasks map[element.TaskID]bool           // tasks that have not left yet
}

// Revoke takes the last checkpoint of partitions that the group is about to give to another member: their tasks stop,
// what they have done is committed, and what lies behind the last barrier is dropped. It returns when they have left, when
// no attempt runs that could have work of them, or when ctx ends: then the loss shows in Group.Current and ends the attempt.
// Tasks of other partitions go on all the time. It may be called from any goroutine.
func (r *Runner) Revoke(ctx context.Context, gone []element.TopicPartition) {
	a := r.running.Load()
	if a == nil {
		return
	}
	rev := &revocation{since: map[element.TopicPartition]uint64{}, done: make(chan struct{})}
	cur := r.ports.Group.Current()
	for _, tp := range gone {
		if epoch := cur.Since[tp]; epoch != 0 {
			rev.since[tp] = epoch
		}
	}
	select {
	case a.events <- event{kind: evRevoke, revoke: rev}:
	case <-a.ctx.Done():
		return
	case <-ctx.Done():
		return
	}
	select {
	case <-rev.done:
	case <-a.ctx.Done():
	case <-ctx.Done():
	}
}

// onRevoke halts the tasks concerned. They go on taking barriers, and leave when the coordinator says so. Partitions that
// are on their way in, or are still to be taken in, count as left at once: the group names them as owned until all have
// left, and who looks at it meanwhile must not take them in.
//
// It may come late: the group did not wait any longer, took the partitions away and gave them again. So it touches only
// what belongs to the ownership epochs of the time when it was called.
func (a *attempt) onRevoke(rev *revocation) {
	if a.brake != nil {
		// Who waits goes on when the attempt is over.
		a.redraw()
		return
	}
	rev.halts, rev.tasks = map[element.TaskID]bool{}, map[element.TaskID]bool{}
	for tp, epoch := range rev.since {
		id := a.byTP[tp]
		if id == (element.TaskID{}) {
			a.left[tp] = max(a.left[tp], epoch)
			if a.joining != nil && a.joining.since[tp] == epoch {
				a.joining.cancel()
			}
			continue
		}
		t := a.tasks[id]
		if t.epoch != epoch {
			continue
		}
		t.halted = true
		rev.halts[id], rev.tasks[id] = true, true
		t.inbox.halt()
		a.feed.tookOne() // the source may wait for room in it
	}
	if len(rev.tasks) == 0 {
		close(rev.done)
		return
	}
	a.revocations = append(a.revocations, rev)
}

// onHalted notes that a task takes no records any more. What it reported before is known by now, also that it has moved:
// its reports come in order.
func (a *attempt) onHalted(id element.TaskID) []checkpoint.Action {
	for _, rev := range a.revocations {
		if !rev.halts[id] {
			continue
		}
		delete(rev.halts, id)
		if len(rev.halts) == 0 {
			leaving := make([]element.TaskID, 0, len(rev.tasks))
			for id := range rev.tasks {
				leaving = append(leaving, id)
			}
			return a.co.Leave(a.now(), leaving)
		}
	}
	return nil
}

// leavingWith gives the tasks that leave with the checkpoint whose completion the actions follow: the coordinator says so
// directly behind it.
func leavingWith(next []checkpoint.Action) []element.TaskID {
	if len(next) > 0 {
		if left, ok := next[0].(checkpoint.Left); ok {
			return left.Tasks
		}
	}
	return nil
}

// dropLeaving drops what tasks that leave with a completed checkpoint hold back behind its barrier. Their position is the
// barrier's, so the next owner makes it again; released, it would be there twice.
//
// Only the coordinator knows whether a task that has halted leaves with this one. With n and a newer m in flight it leaves
// with m: what it holds back between the two barriers is covered by m's position, so the completion of n releases it as
// that of any other task. Were it dropped there, m would commit the position without the output.
func (a *attempt) dropLeaving(leaving []element.TaskID) {
	for _, id := range leaving {
		a.sink.Drop(id)
	}
}

// onLeft removes tasks and tells those who wait for it.
func (a *attempt) onLeft(ids []element.TaskID) {
	failpoint.Hit(failpoint.LeaveBefore)
	var gone []element.TopicPartition
	for _, id := range ids {
		gone = append(gone, a.detach(id))
	}
	a.share()
	if a.r.lis.Left != nil {
		a.r.lis.Left(gone)
	}
	failpoint.Hit(failpoint.LeaveAfter)
	a.revocations = slices.DeleteFunc(a.revocations, func(rev *revocation) bool {
		for _, id := range ids {
			delete(rev.tasks, id)
		}
		if len(rev.tasks) > 0 {
			return false
		}
		close(rev.done)
		return true
	})
}

// detach ends a task.
func (a *attempt) detach(id element.TaskID) element.TopicPartition {
	t := a.tasks[id]
	tp := t.position.TopicPartition
	delete(a.tasks, id)
	delete(a.byTP, tp)
	a.order = slices.DeleteFunc(a.order, func(o element.TaskID) bool { return o == id })
	a.left[tp] = t.epoch
	a.sink.Drop(id)
	a.feed.remove(tp)
	if t.fed {
		a.source.Remove(tp)
	}
	a.forgetMerged(id)
	delete(a.merge.bad, id)
	if a.r.ports.Local != nil {
		a.r.ports.Local.Left(id)
	}
	t.quit()
	a.closeLeft(t)
	return tp
}
