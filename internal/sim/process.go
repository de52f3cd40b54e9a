package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

func instanceName(i int) string { return "i" + strconv.Itoa(i) }

// process is one life of one instance: what Runner, the group client and the transaction manager keep between attempts.
// Two with one name may live at once: a process that was stopped, and the one that took its place.
type process struct {
	w      *world
	number int
	name   string // the instance's
	label  string
	inc    element.Incarnation

	dead        bool
	silent      bool // dead, and what it had sent last never arrives
	pausedUntil time.Duration
	draining    bool // asked to stop
	idling      bool // it stands by and cleans up
	untidy      bool // transactions under its ids may be open that no attempt has begun since
	tidying     bool // it stands by and ends them

	parallelism int // of the exchange

	newest  element.CheckpointID // that it knows to be committed
	refused bool                 // it has refused to start
	recover bool                 // it was started with the wish to go back to the store
	from    *savepoints          // it was started with the wish to start from a savepoint

	view *view
	repo *snapshot.Repository
	// opened is when it has looked at what is there.
	opened time.Duration
	mgr    *manager

	membership
	strange bool // it was not a member for a while: what it has merged may be cleaned away

	attempt  *attempt
	restarts int
	lastID   element.CheckpointID
	kept     map[element.TaskID]*keptState
	merged   map[element.TaskID]snapshot.RunRef
	rejoined bool // ownership was lost since the last commit, and the next attempt followed at once
	cancels  []cancelHook
	facts    []committed          // that the last attempt started from
	unsure   element.CheckpointID // whose commit had no answer
	began    map[int]int64        // where partitions without a committed offset were found to start; at-least-once

	// Of planted bugs.
	spare       *manager
	held        func()
	trustMemory bool
	memory      []committed
	reached     map[element.TaskID]int64
}

type keptState struct {
	state *state
	root  snapshot.RootRef
}

type cancelHook struct {
	over func() bool
	f    func()
}

// start begins a new life of an instance.
func (w *world) start(name string, after time.Duration) *process {
	w.born++
	p := &process{w: w, number: w.born, name: name, label: name + "." + strconv.Itoa(w.born), inc: element.Incarnation(w.born),
		view: &view{d: w.disk, owner: name}, untidy: true, kept: map[element.TaskID]*keptState{}, reached: map[element.TaskID]int64{}}
	p.recover = w.damage != nil && w.damage.stage == recovering
	p.from = w.saves.wish()
	if w.x != nil {
		p.parallelism = parallelisms[(w.x.first+w.born)%len(parallelisms)]
	}
	p.mgr = newManager(p, "")
	p.spare = newManager(p, "-spare")
	w.procs = append(w.procs, p)
	w.do(p, after, kStart, func() {
		repo, err := snapshot.OpenRepository(context.Background(), snapshot.Config{
			Storage: p.view, Application: application, Instance: name, NumRetained: w.retained(), Repeats: w.plain, Logger: silent, MemoryThreshold: w.threshold(),
		})
		if err != nil {
			w.violation("I7", "%s cannot open the checkpoint directory: %v", p.label, err)
			return
		}
		p.repo, p.opened = repo, w.now
		if err := repo.Announce(context.Background()); err != nil {
			w.tracef(p, "cannot announce itself: %v", err)
		}
		for _, op := range p.view.take() {
			if w.disk.do(op) != nil { // in one step with the start
				break
			}
		}
		p.join()
		p.heartbeatLater()
		p.idleLater()
	})
	return p
}

// retained is how many checkpoints a process keeps.
func (w *world) retained() int {
	if w.cfg.Bug == RetainOne {
		return 1
	}
	if w.plain {
		return maxRetained // a late copy may set the group back by one
	}
	return 1 + w.born%maxRetained
}

// threshold is the size up to which runs lie in the root: none, small ones, all. It changes from process to process.
func (w *world) threshold() int {
	if w.cfg.Plain || w.cfg.script != nil || w.cfg.directives != nil {
		return w.small
	}
	return [...]int{0, 400, 20 << 10}[(w.cfg.Seed+uint64(w.born))%3]
}

// supervise starts an instance that has no process that runs.
func (w *world) supervise(name string) {
	if !slices.Contains(w.names, name) {
		return // another one has come in its place
	}
	if w.damage.attended(w) {
		return
	}
	for _, p := range w.procs {
		if p.name == name && p.pausedUntil <= w.now && !p.dead {
			return
		}
	}
	w.start(name, w.lag(5*time.Millisecond))
}

// die ends a process between two steps; power says that its machine goes down with it, and what of its unsynced writes
// stays.
func (p *process) die(power bool, keep float64) {
	w := p.w
	p.dead = true
	p.silent = p.silent || w.chance(30)
	w.procs = slices.DeleteFunc(w.procs, func(o *process) bool { return o == p })
	w.counts.Crashes++
	w.tracef(p, "DIES (power lost: %v, keep %v)", power, keep)
	if power {
		for _, twin := range slices.Clone(w.procs) { // on the same machine
			if twin.name == p.name {
				twin.die(false, keep)
			}
		}
		w.disk.crash(p.name, keep)
	}
	w.outside(nil, w.outage(), kSupervise, func() { w.supervise(w.successor(p.name)) })
}

// everybodyDies ends all processes at once; nobody starts others.
func (w *world) everybodyDies() {
	for _, p := range w.procs {
		p.dead = true
	}
	for _, f := range w.fibers {
		f.end()
	}
	w.procs, w.fibers = nil, nil
}

// outage is how long an instance has no process after a crash: now and then longer than its session, or for good as far
// as the others can tell.
func (w *world) outage() time.Duration {
	switch {
	case w.away > 0:
		away := w.away
		w.away = 0
		return away
	case w.long && w.chance(40):
		return w.lag(2 * cleanGrace)
	case w.chance(20):
		return sessionTimeout/2 + w.lag(2*sessionTimeout)
	}
	return w.lag(15 * time.Millisecond)
}

// exit is the end of a process by its own decision. Only one that was replaced may give up for good: its instance id is
// somebody else's.
func (p *process) exit(err error) {
	w := p.w
	w.tracef(p, "EXITS: %v", err)
	p.dead = true
	w.procs = slices.DeleteFunc(w.procs, func(o *process) bool { return o == p })
	switch {
	case err == nil:
	case fault.CodeOf(err) == fault.Fenced:
		w.counts.Fenced++
	case w.damage.refused(p, err):
		return // a person decides what comes next
	default:
		w.violation("stop", "%s gives up for good: %v", p.label, err)
	}
	w.outside(nil, w.lag(10*time.Millisecond), kSupervise, func() { w.supervise(p.name) })
}

func (p *process) status() string {
	s := fmt.Sprintf("member %q gen %d owned %04b paused until %v", p.member, p.gen, p.owned(), p.pausedUntil)
	if a := p.attempt; a != nil {
		s += fmt.Sprintf(" attempt %d (%s, over %v, %d workers) machine %s", a.number, a.stage, a.over, a.running, p.mgr.machine)
	}
	return s
}

// next starts the next attempt once a partition is here.
func (p *process) next(after time.Duration) {
	p.w.do(p, after, kWorker, func() {
		switch {
		case p.attempt != nil, p.idling, p.tidying:
		case p.fatal != nil:
			p.exit(p.fatal)
		case p.draining:
			p.leave()
		case p.parted():
			p.next(10 * time.Millisecond)
		case p.whole():
			p.changed = false
			p.newAttempt()
		case p.untidy && p.w.tidies() && p.w.cfg.Bug != AbortForgotten && p.member != "" && p.member == p.taken:
			p.tidy()
		}
	})
}

// leave is the end of an orderly stop.
func (p *process) leave() {
	id := p.member
	p.member = ""
	p.w.call(p, kApplyLeave, func() reply { return p.w.broker.group.leave(id) }, func(reply) { p.exit(nil) })
}

// ended is the Runner's decision after an attempt.
func (p *process) ended(err error, stopped bool) {
	p.attempt = nil
	class := fault.RecoveryOf(err)
	switch class {
	case fault.Unconfirmed:
		p.w.counts.Unconfirmed++
	case fault.Rejoin:
		p.w.counts.Rejoined++
	}
	again := p.rejoined
	p.rejoined = class == fault.Rejoin
	switch {
	case stopped:
		p.w.counts.Drained++
		p.leave()
	case errors.Is(err, errRedrawn):
		p.w.counts.Redrawn++
		if p.changed {
			p.next(0)
		} else {
			p.next(redrawDelay)
		}
	case errors.Is(err, errStandBy):
		p.w.counts.StoodBy++
		p.next(0)
	case class == fault.Stop:
		p.exit(err)
	case class == fault.Rejoin && !again:
		p.next(0)
	default:
		p.next(p.w.lag(6 * time.Millisecond))
	}
}

// onCancel calls f when over becomes true.
func (p *process) onCancel(over func() bool, f func()) {
	if over() {
		f()
		return
	}
	p.cancels = append(p.cancels, cancelHook{over, f})
}

func (p *process) cancelled() {
	hooks := p.cancels
	p.cancels = nil
	for _, h := range hooks {
		if h.over() {
			h.f()
		} else {
			p.cancels = append(p.cancels, h)
		}
	}
}
