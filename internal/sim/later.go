package sim

import (
	"math/rand/v2"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/txn"
)

// later is what came to the model when there were seeds that had failed once: plain runs, scripts and scenarios go without, so
// that those still lead where they led. It has dice of its own.
type later struct {
	rng *rand.Rand
	// pause is checkpointing.min-pause.
	pause time.Duration
	// tidies: who stands by ends what is open under its ids. That fences late requests, too, so others go without: there nothing
	// but member and generation keeps these out.
	tidies bool
}

func (w *world) drawLater() {
	l := &later{rng: rand.New(rand.NewPCG(w.cfg.Seed, 0x6c61746572))}
	if w.concurrent == 1 {
		l.pause = [...]time.Duration{0, 0, w.interval / 2, 2 * w.interval}[l.rng.IntN(4)]
	}
	l.tidies = l.rng.IntN(3) == 0
	w.later = l
}

func (w *world) tidies() bool { return w.later != nil && w.later.tidies }

// minPause is the least time between two checkpoints.
func (w *world) minPause() time.Duration {
	if w.later == nil {
		return 0
	}
	return w.later.pause
}

// renew decides of which tasks a checkpoint has the whole state in place of their chains, as engine does where a chain cannot
// be merged, or for all. A task of which one in flight has it already is left out.
func (a *attempt) renew(p *pending, tasks []element.TaskID) {
	l := a.p.w.later
	if l == nil || l.rng.IntN(10) > 0 {
		return
	}
	p.whole = map[element.TaskID]bool{}
	for _, id := range tasks {
		if t := a.task(id); t.states() != nil && !a.underRenewal(id) && l.rng.IntN(2) == 0 {
			p.whole[id] = true
			a.p.w.counts.Renewed++
		}
	}
}

func (a *attempt) underRenewal(id element.TaskID) bool {
	for _, p := range a.flights {
		if p.whole[id] {
			return true
		}
	}
	return false
}

// mergeAtStart merges the chains that are long when an attempt starts, under an id of their own.
func (a *attempt) mergeAtStart() {
	due := a.due()
	if len(due) == 0 || a.startID == 0 {
		return
	}
	a.merging = true
	a.p.w.counts.MergedAtStart++
	a.mergeAll(element.CheckpointName{ID: a.startID, Incarnation: a.p.inc}, due)
}

// tidy ends what is open under the own ids while the process stands by, as Runner.tidy does: nobody else may, since it lives.
func (p *process) tidy() {
	p.tidying = true
	p.w.counts.Tidied++
	p.mgr.drive(txn.Event{Kind: txn.EvInit}, job{}, func(err error) {
		p.tidying = false
		if err != nil {
			p.next(10 * time.Millisecond)
			return
		}
		p.untidy = false
		p.next(0)
	})
}
