package sim

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/twmb/franz-go/pkg/kerr"
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

	view *view
	repo *snapshot.Repository
	mgr  *manager

	// The group client's side.
	member  string
	gen     int32
	taken   string // the member id at the last assignment
	epoch   uint64 // of ownership
	owned   bool
	joining bool
	told    reply // what the group said last
	calling bool  // a callback is about to run
	fatal   error
	changed bool // a signal on Changes that nobody has taken yet

	attempt  *attempt
	restarts int
	lastID   element.CheckpointID
	kept     map[element.TaskID]*keptState
	merged   map[element.TaskID]snapshot.RunRef
	rejoined bool // ownership was lost since the last commit, and the next attempt followed at once
	cancels  []cancelHook
	facts    []committed          // that the last attempt started from
	unsure   element.CheckpointID // whose commit had no answer

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
		view: &view{d: w.disk, owner: name}, kept: map[element.TaskID]*keptState{}, reached: map[element.TaskID]int64{}}
	p.mgr = newManager(p, "")
	p.spare = newManager(p, "-spare")
	w.procs = append(w.procs, p)
	w.do(p, after, kStart, func() {
		repo, err := snapshot.OpenRepository(context.Background(), snapshot.Config{
			Storage: p.view, Application: application, Instance: name, NumRetained: 1 + w.born%2, Logger: silent,
		})
		if err != nil {
			w.violation("I7", "%s cannot open the checkpoint directory: %v", p.label, err)
			return
		}
		p.repo = repo
		p.join()
		p.heartbeatLater()
	})
	return p
}

// supervise starts an instance that has no process that runs.
func (w *world) supervise(name string) {
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
	w.outside(nil, w.lag(15*time.Millisecond), kSupervise, func() { w.supervise(p.name) })
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
	default:
		w.violation("stop", "%s gives up for good: %v", p.label, err)
	}
	w.outside(nil, w.lag(10*time.Millisecond), kSupervise, func() { w.supervise(p.name) })
}

func (p *process) status() string {
	s := fmt.Sprintf("member %q gen %d owned %v paused until %v", p.member, p.gen, p.owned, p.pausedUntil)
	if a := p.attempt; a != nil {
		s += fmt.Sprintf(" attempt %d (%s, over %v, %d workers) machine %s", a.number, a.stage, a.over, a.running, p.mgr.machine)
	}
	return s
}

func (p *process) join() {
	if p.joining {
		return
	}
	p.joining = true
	p.w.call(p, kApplyJoin, func() reply { return p.w.broker.group.join(p.name) }, func(r reply) {
		p.joining = false
		if r.failed() {
			p.w.do(p, p.w.lag(3*time.Millisecond), kHeartbeat, p.join)
			return
		}
		p.member, p.gen = r.member, r.gen
		p.assignment(r)
	})
}

func (p *process) heartbeatLater() {
	p.w.do(p, heartbeatEvery/2+p.w.lag(heartbeatEvery), kHeartbeat, func() {
		if p.member != "" && p.fatal == nil {
			p.heartbeat()
		}
		p.heartbeatLater()
	})
}

func (p *process) heartbeat() {
	id := p.member
	p.w.call(p, kApplyHeartbeat, func() reply { return p.w.broker.group.heartbeat(id, p.name) }, func(r reply) {
		switch {
		case id != p.member || r.lost:
		case r.code == kerr.FencedInstanceID.Code:
			p.fatal = fault.Stopf(fault.Fenced, "another process uses this instance id")
			p.member = ""
			p.signal()
		case r.code == kerr.UnknownMemberID.Code:
			p.member = ""
			p.lost()
			p.join()
		case r.code == 0:
			p.gen = r.gen // known before the callback runs
			p.assignment(r)
		}
	})
}

// assignment brings the callback of what the group has told. Callbacks run one at a time; the latest word counts.
func (p *process) assignment(r reply) {
	p.told = r
	if p.calling {
		return
	}
	p.calling = true
	p.w.do(p, p.w.lag(2*time.Millisecond), kAssigned, func() {
		p.calling = false
		if p.member != "" && p.member == p.told.member {
			p.assigned(p.told.assigned)
		}
	})
}

func (p *process) assigned(owned bool) {
	if changed := owned != p.owned || (owned && p.member != p.taken); changed {
		p.owned, p.taken = owned, p.member
		p.epoch++
		p.w.tracef(p, "  owns: %v, epoch %d, generation %d", owned, p.epoch, p.gen)
		p.signal()
	}
	if p.told.revoking {
		p.gaveUp()
	}
}

// gaveUp joins again after the partitions were given up.
func (p *process) gaveUp() {
	id := p.member
	p.w.call(p, kApplyRevoked, func() reply { return p.w.broker.group.revoked(id) }, func(r reply) {
		if r.code == 0 && !r.lost && id == p.member {
			p.gen = r.gen
		}
	})
}

func (p *process) lost() {
	if p.owned || p.taken != "" {
		p.owned, p.taken = false, ""
		p.epoch++
		p.signal()
	}
}

// signal is the channel Changes.
func (p *process) signal() {
	p.changed = true
	if a := p.attempt; a != nil {
		a.wakeLoop()
		return
	}
	p.next(0)
}

// fence gives member and generation if the ownership epoch still holds, as kafkasrc does.
func (p *process) fence(epoch uint64) (string, int32, error) {
	switch {
	case p.w.cfg.Bug == EpochUnchecked && p.member != "":
		return p.member, p.gen, nil
	case p.fatal != nil:
		return "", 0, p.fatal
	case epoch == 0 || epoch != p.epoch:
		return "", 0, fault.New(fault.Rejoin, fault.Failed, "ownership epoch %d no longer holds, it is %d now", epoch, p.epoch)
	case p.member == "" || p.gen < 0 || p.member != p.taken:
		return "", 0, fault.New(fault.Rejoin, fault.Failed, "not a member")
	}
	return p.member, p.gen, nil
}

// next starts the next attempt once all partitions are here.
func (p *process) next(after time.Duration) {
	p.w.do(p, after, kWorker, func() {
		switch {
		case p.attempt != nil:
		case p.fatal != nil:
			p.exit(p.fatal)
		case p.draining:
			p.leave()
		case p.owned:
			p.changed = false
			p.newAttempt()
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
