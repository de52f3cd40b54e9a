package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/millweir/millweir/snapshot"
)

// stall is what a run has, one of six, in which cleaners stand still between two accesses to the directory, alone or with
// their process, while others die, come under new names, take over, commit and clean. Some inputs are quiet there from the
// beginning to the end of the faults: what an instance has written for them stays in use however often they move.
type stall struct {
	rng  *rand.Rand    // beside the other draws: the other runs of a seed stay what they were
	at   time.Duration // from then on the next cleaner stands still
	left int           // how many are to
	odd  int           // of the inputs that are quiet
	now  bool          // one does
}

// drawStall decides whether a run has it.
func (w *world) drawStall() {
	rng := rand.New(rand.NewPCG(w.cfg.Seed, 0x7374616c6c))
	if rng.IntN(6) > 0 {
		return
	}
	w.fine = true
	if w.cfg.Instances > 1 && rng.IntN(4) > 0 {
		w.cfg.Instances, w.cfg.Partitions = 2, max(3, w.cfg.Partitions)
	}
	w.stall = &stall{rng: rng, left: 1 + rng.IntN(3), odd: rng.IntN(2)}
	w.grace = [...]time.Duration{time.Millisecond, 30 * time.Millisecond, cleanGrace}[rng.IntN(3)]
	w.stall.again(30 * time.Millisecond)
}

func (s *stall) again(from time.Duration) {
	s.at = from + time.Duration(s.rng.Int64N(int64(30*time.Millisecond)))
}

// quiet reports that nothing is appended to an input for long: every other one.
func (s *stall) quiet(p int) bool { return s != nil && p%2 == s.odd }

// due reports that a cleaner stands still at its next access: rather while it lists for the first time, and while an instance
// that has taken over from its own uses files of it.
func (s *stall) due(f *fiber, k kind) bool {
	w := f.p.w
	if s == nil || f.cleaner == "" || k == kWait || s.now || s.left == 0 || w.healed || w.now < s.at {
		return false
	}
	late := w.now > s.at+20*time.Millisecond
	return (late || w.check.borrower[f.p.dir()] != "") && (k == kList && f.lists == 1 || s.rng.IntN(8) == 0)
}

// begin lets a cleaner stand still, until some time is over or, rather, until others have emptied a directory. Mostly
// somebody dies at that moment, and comes back under another name.
func (s *stall) begin(f *fiber, k kind) {
	p, w := f.p, f.p.w
	s.now = true
	s.left--
	w.counts.Stalls++
	end, whole, until := 250*time.Millisecond, s.rng.IntN(2) == 0, w.emptied(p)
	if s.rng.IntN(4) == 0 {
		end, until = 10*time.Millisecond+time.Duration(s.rng.Int64N(int64(190*time.Millisecond))), never
	}
	w.tracef(p, "FAULT: %s stands still at the next %s (with all of it: %v)", f.cleaner, k, whole)
	others := slices.DeleteFunc(slices.Clone(w.procs), func(o *process) bool { return o.name == p.name || o.attempt == nil })
	if len(others) > 0 && s.rng.IntN(8) > 0 {
		o := others[s.rng.IntN(len(others))]
		if i := slices.IndexFunc(others, func(o *process) bool { return o.dir() == w.check.borrower[p.dir()] }); i >= 0 {
			o = others[i]
		}
		w.away = time.Duration(1 + s.rng.Int64N(int64(10*time.Millisecond)))
		o.die(false, 1)
	}
	w.standStill(p, whole, end, until, func() {
		s.now = false
		s.again(w.now)
		w.do(p, w.lag(4*time.Millisecond), k, f.step)
	})
}

// standStill lets a process, or a part of it, stand still until something has happened, most for so long.
func (w *world) standStill(p *process, whole bool, most time.Duration, until func() bool, then func()) {
	end := w.now + most
	var poll func()
	poll = func() {
		switch over := until(); {
		case over:
			w.counts.StallsOutlasted++
			then()
			return
		case p.dead || w.now >= end:
			then()
			return
		}
		if whole {
			p.pausedUntil = max(p.pausedUntil, w.now+4*time.Millisecond)
		}
		w.wait = max(w.wait, w.now+20*time.Millisecond)
		w.outside(nil, 3*time.Millisecond, kFault, poll)
	}
	poll()
}

// emptied tells when a directory of another instance that has files now has none.
func (w *world) emptied(p *process) func() bool {
	dirs := slices.DeleteFunc(w.disk.dirs(), func(dir string) bool { return dir == p.dir() || !strings.HasPrefix(dir, application+"/") })
	return func() bool {
		now := w.disk.dirs()
		return slices.ContainsFunc(dirs, func(dir string) bool { return !slices.Contains(now, dir) })
	}
}

// dirs lists the directories of instances that have files.
func (d *disk) dirs() (out []string) {
	for _, name := range d.names() {
		if dir := dirOf(name); dir != "" && (len(out) == 0 || out[len(out)-1] != dir) {
			out = append(out, dir)
		}
	}
	return out
}

func dirOf(name string) string { return name[:strings.LastIndexByte(name, '/')+1] }

func (p *process) dir() string { return application + "/" + p.name + "/" }

// successor names the instance that comes in place of one that died.
func (w *world) successor(name string) string {
	i := slices.Index(w.names, name)
	if w.stall == nil || w.healed || i < 0 || w.stall.rng.IntN(2) == 0 {
		return name
	}
	w.named++
	w.names[i] = instanceName(w.named - 1)
	return w.names[i]
}

// quietLater looks now and then whether anything was committed, and cleans up if not.
func (a *attempt) quietLater() {
	w, before := a.p.w, a.last
	if !w.fine {
		return
	}
	w.do(a.p, 20*time.Millisecond+w.lag(20*time.Millisecond), kTick, func() {
		switch {
		case a.over:
			return
		case !a.merging && a.last == before:
			a.houseQuiet()
		}
		a.quietLater()
	})
}

// houseQuiet removes what nothing needs where nothing is committed.
func (a *attempt) houseQuiet() {
	a.merging = true
	a.clean("CleanIdle", func(f *fiber) {
		if a.p.w.cfg.Bug == IdleUncleaned {
			return
		}
		in := a.p.goneInput(f)
		in.Busy = true
		rep, err := a.p.repo.CleanIdle(context.Background(), in)
		a.p.w.tracef(a.p, "  nothing is committed, it has cleaned up: %d files, %v", rep.Deleted, err)
	}, func() { a.cleanGroup(snapshot.RootRef{}.Name, nil) })
}
