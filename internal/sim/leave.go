package sim

import (
	"slices"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
)

// revocation mirrors engine.revocation: the group's wish to take partitions away, which waits for their tasks to leave.
type revocation struct {
	gone  mask
	since [maxPartitions]uint64 // the ownership epochs that end; it may be looked at late
	done  func()
	halts mask // tasks that have not halted yet
	tasks mask // tasks that have not left yet
}

// revoking reports that a partition is about to go: it is owned still, and must not be taken in again.
func (a *attempt) revoking(part int) bool {
	return slices.ContainsFunc(a.revocations, func(r *revocation) bool { return r.gone.has(part) && r.since[part] == a.p.since[part] })
}

// onRevoke halts the tasks concerned, and lets go what is being taken in of them.
func (a *attempt) onRevoke(r *revocation) {
	if a.p.w.x != nil { // who waits goes on when the attempt is over
		a.revocations = append(a.revocations, r)
		a.redraw()
		return
	}
	r.gone.each(func(i int) {
		a.left[i] = r.since[i] // not to be taken in again under this epoch
		if in := a.joining; in != nil && in.parts.has(i) && in.since[i] == r.since[i] {
			in.drop()
		}
		if a.p.since[i] != r.since[i] {
			a.p.w.counts.LateRevokes++
		}
		if t := a.task(taskID(i)); t != nil && t.epoch == r.since[i] {
			r.halts |= bit(i)
			r.tasks |= bit(i)
			t.halt()
		}
	})
	if r.tasks == 0 {
		r.done()
		return
	}
	a.revocations = append(a.revocations, r)
}

// onHalted notes that a task takes no records any more. What it reported before is known by now.
func (a *attempt) onHalted(id element.TaskID) []checkpoint.Action {
	part := int(id.Partition)
	for _, r := range a.revocations {
		if !r.halts.has(part) {
			continue
		}
		if r.halts &^= bit(part); r.halts == 0 {
			var leaving []element.TaskID
			r.tasks.each(func(i int) { leaving = append(leaving, taskID(i)) })
			return a.co.Leave(a.p.w.now, leaving)
		}
	}
	return nil
}

// onLeft removes tasks and tells those who wait for it.
func (a *attempt) onLeft(ids []element.TaskID) {
	for _, id := range ids {
		a.detach(id)
		for _, r := range a.revocations {
			r.tasks &^= bit(int(id.Partition))
		}
	}
	a.revocations = slices.DeleteFunc(a.revocations, func(r *revocation) bool {
		if r.tasks != 0 {
			return false
		}
		r.done()
		return true
	})
}

// detach ends a task.
func (a *attempt) detach(id element.TaskID) {
	t := a.task(id)
	a.p.w.counts.Left++
	if a.p.w.cfg.Bug == LeaveReleases {
		for len(t.queues) > 0 && len(a.flights) == 0 {
			t.drain(t.queues[0].after)
		}
	}
	t.drop()
	a.tasks = slices.DeleteFunc(a.tasks, func(o *task) bool { return o == t })
	if run, ok := a.full[id]; ok {
		a.p.repo.Forget(run)
		delete(a.full, id)
	}
}
