package sim

import (
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/twmb/franz-go/pkg/kerr"
)

// membership is the group client's side of a process: what kgo and kafkasrc.Group keep.
type membership struct {
	member string
	gen    int32
	taken  string // the member id at the last assignment
	epoch  uint64 // of ownership
	since  [maxPartitions]uint64

	joining bool
	told    reply // what the group said last
	asked   int   // answers to what was asked before this count no more
	calling bool  // a callback runs, or is about to
	round   int   // grows when the membership is lost: callbacks of before are of no use
	fatal   error
	changed bool // a signal on Changes that nobody has taken yet
}

func (m *membership) owned() (out mask) {
	for p, s := range m.since {
		if s != 0 {
			out |= bit(p)
		}
	}
	return out
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
	id, asked := p.member, p.asked
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
		case r.code == 0 && asked == p.asked:
			p.gen = r.gen // known before the callback runs
			p.assignment(r)
		}
	})
}

// assignment brings the callbacks of what the group has told. They run one at a time; the latest word counts.
func (p *process) assignment(r reply) {
	p.told = r
	if p.calling {
		p.w.counts.Overtold++
		return
	}
	p.calling = true
	p.w.do(p, p.w.lag(2*time.Millisecond), kAssigned, p.inRound(p.callback))
}

// inRound drops a step of a callback when the membership was lost meanwhile.
func (p *process) inRound(f func()) func() {
	round := p.round
	return func() {
		if round == p.round {
			f()
		}
	}
}

// callback takes in what was told: first what is gone is given up, then what is new counts.
func (p *process) callback() {
	p.calling = false
	r := p.told
	if p.member == "" || p.member != r.member {
		return
	}
	if gone := p.owned() &^ r.owned; gone != 0 {
		p.calling = true
		p.beforeRevoke(gone)
		return
	}
	p.assigned(r.owned)
	if r.revoking != 0 {
		p.w.counts.NeverHeard++ // that it had them; or its word was lost
		p.giveUp(r.revoking)
	}
}

// assigned mirrors ownership.assigned of kafkasrc.
func (p *process) assigned(parts mask) {
	renamed := p.member != p.taken
	if p.epoch != 0 && !renamed && parts == p.owned() {
		return
	}
	p.taken = p.member
	p.epoch++
	parts.each(func(i int) {
		if renamed || p.since[i] == 0 {
			p.since[i] = p.epoch
		}
	})
	p.w.tracef(p, "  owns %04b, epoch %d, generation %d", parts, p.epoch, p.gen)
	p.signal()
}

// beforeRevoke lets the engine take the last checkpoint of partitions. The group waits, but not for ever.
func (p *process) beforeRevoke(gone mask) {
	begun, finished := p.w.now, false
	done := func() {
		if finished {
			return
		}
		finished = true
		p.w.do(p, p.w.lag(300*time.Microsecond), kAssigned, p.inRound(func() { p.revoked(gone) }))
	}
	if a := p.attempt; a != nil && !a.over {
		a.report(event{kind: evRevoke, revoke: &revocation{gone: gone, since: p.since, done: done}})
	} else {
		done()
	}
	p.w.do(p, p.w.revokeBudget(), kTick, p.inRound(func() {
		if !finished {
			p.w.counts.OutOfBudget++
			p.w.tracef(p, "  no time left for the revoke after %v", p.w.now-begun)
		}
		done()
	}))
}

// revokeBudget is how long the group waits for partitions to be given up.
func (w *world) revokeBudget() time.Duration {
	switch {
	case w.cfg.script != nil:
		return 30 * time.Millisecond
	case w.faults.hasty > 0:
		w.faults.hasty--
		return w.lag(time.Millisecond)
	case w.chance(20):
		return w.lag(6 * time.Millisecond)
	}
	return 10*time.Millisecond + w.lag(30*time.Millisecond)
}

// revoked removes what was given up, and tells the group.
func (p *process) revoked(gone mask) {
	p.forget(gone)
	p.giveUp(gone)
}

func (p *process) forget(gone mask) {
	if gone&p.owned() == 0 {
		return
	}
	gone.each(func(i int) { p.since[i] = 0 })
	p.epoch++
	p.w.tracef(p, "  gave up %04b, epoch %d", gone, p.epoch)
	p.signal()
}

// giveUp joins again after partitions were given up.
func (p *process) giveUp(gone mask) {
	id := p.member
	p.calling = true
	p.asked++
	var r reply
	then := p.inRound(func() {
		p.calling = false
		p.asked++
		if r.code == 0 && !r.lost && id == p.member {
			p.gen = r.gen
			p.assignment(r)
		}
	})
	p.w.call(p, kApplyRevoked, func() reply { return p.w.broker.group.revoked(id, gone) }, func(answer reply) {
		r = answer
		then()
	})
}

// lost takes everything away: the group no longer knows this member.
func (p *process) lost() {
	p.round++
	p.calling = false
	if p.owned() != 0 || p.taken != "" {
		p.since, p.taken = [maxPartitions]uint64{}, ""
		p.epoch++
		p.strange = true
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

// holds reports that a partition is owned since exactly that epoch.
func (p *process) holds(part int32, epoch uint64) bool {
	since := p.since[part]
	if p.w.cfg.Bug == StaleClaim {
		return since != 0
	}
	return since != 0 && since == epoch
}

// fence gives member and generation if every claim still holds, as kafkasrc does. again says that it is for a resend
// after ILLEGAL_GENERATION.
func (p *process) fence(offsets []checkpoint.OffsetCommit, again bool) (string, int32, error) {
	bug := p.w.cfg.Bug
	if (bug == EpochUnchecked || (bug == ResendUnproven && again)) && p.member != "" {
		return p.member, p.gen, nil
	}
	if p.fatal != nil {
		return "", 0, p.fatal
	}
	for _, o := range offsets {
		if !p.holds(o.Position.Partition, o.Epoch) {
			return "", 0, fault.New(fault.Rejoin, fault.Failed, "in/%d of ownership epoch %d is owned since epoch %d now", o.Position.Partition, o.Epoch, p.since[o.Position.Partition])
		}
	}
	if p.member == "" || p.gen < 0 || p.member != p.taken {
		return "", 0, fault.New(fault.Rejoin, fault.Failed, "not a member")
	}
	return p.member, p.gen, nil
}
