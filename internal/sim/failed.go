package sim

import (
	"context"
	"slices"

	"github.com/millweir/millweir/snapshot"
)

// cleanFailed removes what failed checkpoints have left, when the group's word is known.
func (a *attempt) cleanFailed(offsets []committed, then func(error)) {
	p := a.p
	facts := factsOf(offsets, a.first.parts)
	call := func(f *fiber) error {
		var rep snapshot.CleanReport
		var err error
		if p.w.plain { // a commit that is on its way may still arrive
			rep, err = p.repo.CleanUnrooted(context.Background(), facts, p.w.groupRoots(f))
		} else {
			rep, err = p.repo.CleanFailed(context.Background(), facts, p.w.groupRoots(f), a.first.origin...)
		}
		if rep.Deleted > 0 {
			p.w.counts.FailedCleaned++
			if a.number == 1 {
				p.w.counts.FailedCleanedFirst++
			}
		}
		return err
	}
	if p.w.fine {
		a.clean("CleanFailed", func(f *fiber) { _ = call(f) }, func() { a.unlessOver(then) })
		return
	}
	a.io(func() bool { return a.over }, func() error { return call(nil) }, func(error) {
		a.running--
		a.unlessOver(then)
		a.finish()
	})
}

func (a *attempt) unlessOver(then func(error)) {
	if !a.over {
		then(nil)
	}
}

// whenRoom lets a checkpoint write when the files of those that were given up are gone.
func (a *attempt) whenRoom(p *pending, write func()) {
	p.writing++
	if len(a.given) == 0 {
		write()
		return
	}
	a.room = append(a.room, waiting{p, write})
}

// wrote ends a worker that writes files.
func (a *attempt) wrote(p *pending) {
	if p.writing--; p.back {
		a.discardGiven()
	}
}

// discardGiven removes the files of checkpoints that were given up and that nobody writes any more.
func (a *attempt) discardGiven() {
	for _, p := range a.given {
		if p.writing == 0 {
			p.writing = -1 // once
			a.discard(p, func() {
				a.given = slices.DeleteFunc(a.given, func(o *pending) bool { return o == p })
				a.goOn()
			})
		}
	}
	a.goOn()
}

// waiting is a checkpoint that is to be written when there is room.
type waiting struct {
	p     *pending
	write func()
}

// goOn lets those write that have waited. One that was given up meanwhile waits for nothing.
func (a *attempt) goOn() {
	room := a.room
	a.room = nil
	for _, w := range room {
		if len(a.given) == 0 || w.p.back {
			w.write()
		} else {
			a.room = append(a.room, w)
		}
	}
}

// discardPending removes at the end what was not about to be committed, and reports that it is at it.
func (a *attempt) discardPending() bool {
	flights := a.flights
	a.flights = nil
	for _, p := range flights {
		if !p.permitted || a.p.w.cfg.Bug == DiscardPermitted {
			a.discard(p, func() {})
		}
	}
	return a.running > 0
}

// discard removes the files of one checkpoint.
func (a *attempt) discard(p *pending, then func()) {
	a.io(never, func() error {
		rep, err := a.p.repo.Discard(context.Background(), p.name)
		if rep.Deleted > 0 {
			a.p.w.counts.Discarded++
		}
		return err
	}, func(error) {
		then()
		a.running--
		a.finish()
	})
}
