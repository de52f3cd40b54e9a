package engine

import (
	"context"
	"time"

	"github.com/millweir/millweir/element"
)

// idle keeps house for an instance that stands by without a partition: it commits nothing, so nothing else makes it clean up
// what it left, and since it is in the group nobody takes it for gone.
type idle struct{ next time.Time }

// due gives the time until the next round. The first comes after a while: partitions that come back soon find what was kept.
func (i *idle) due(every time.Duration) <-chan time.Time {
	if i.next.IsZero() {
		i.next = time.Now().Add(every)
	}
	return time.After(time.Until(i.next))
}

// round lets go what was kept for a return and removes files that nothing needs. It ends early when the assignment may have
// changed: the caller looks at that next.
func (i *idle) round(ctx context.Context, r *Runner) {
	i.next = time.Now().Add(r.cfg.CleanGroupInterval)
	r.letGo()
	if r.ports.CleanIdle == nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if report, err := r.ports.CleanIdle(ctx, false); ctx.Err() == nil {
			r.lis.cleaned(report, err)
		}
	}()
	select {
	case <-done:
	case <-r.ports.Group.Changes():
		cancel()
		<-done
	}
}

// letGo gives up what the last attempt left for tasks that have not come back: states in memory, merged runs, local copies.
func (r *Runner) letGo() {
	for _, ref := range r.merged {
		r.ports.Checkpoints.Forget(ref)
	}
	if r.ports.Local != nil {
		for id := range r.had {
			r.ports.Local.Left(id)
		}
	}
	r.merged, r.unmerged, r.had, r.kept = nil, nil, nil, map[element.TaskID]*keptState{}
	r.closeUnkept()
}
