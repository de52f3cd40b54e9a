package sim

import (
	"context"
	"time"

	"github.com/millweir/millweir/element"
)

// idleEvery is the time between two rounds of cleaning of a process that stands by.
const idleEvery = 30 * time.Millisecond

// idleLater looks now and then whether the process stands by without a partition, and cleans up then, as engine's idle does.
func (p *process) idleLater() {
	if !p.w.fine {
		return
	}
	p.w.do(p, idleEvery, kTick, func() {
		if p.attempt == nil && !p.idling && !p.tidying && !p.draining && p.fatal == nil && p.member != "" && p.owned() == 0 {
			p.houseIdle()
		}
		p.idleLater()
	})
}

// houseIdle lets go what was kept for a return and removes what nothing needs. It ends early when the assignment may have
// changed; the next attempt waits for that.
func (p *process) houseIdle() {
	p.idling, p.changed = true, false
	for _, full := range p.merged {
		p.repo.Forget(full)
	}
	p.merged, p.kept = nil, map[element.TaskID]*keptState{}
	over := func() bool { return p.changed || p.draining }
	p.fiber(over, func(f *fiber) {
		if p.w.cfg.Bug == IdleUncleaned {
			return
		}
		rep, err := p.repo.CleanIdle(context.Background(), p.goneInput(f))
		p.w.tracef(p, "  stands by and has cleaned up: %d files, %v", rep.Deleted, err)
		if rep.Deleted > 0 {
			p.w.counts.IdleCleaned++
		}
	}, func() {
		p.idling = false
		p.next(0)
	}).cleaner = "CleanIdle"
}
