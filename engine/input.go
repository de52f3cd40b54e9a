package engine

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/topology"
)

// input is what comes to a subtask of an exchange: a channel from every task that sends to it. The gate decides what a
// barrier means; this does it. It belongs to the task's goroutine, but for news and the channels.
type input struct {
	channels []*channel
	gate     *gate.Gate
	news     atomic.Bool   // a barrier that may overtake has come in one of the channels
	newest   atomic.Uint64 // the highest id of a barrier that has come in one of the channels
	next     int           // the channel that is looked at first
	timeout  time.Duration

	// replay is what was in flight when the state was taken, and what is left of a parcel that is too long for one turn. It
	// comes before everything in the channels; until it is worked off nothing is read from them, so that records of one
	// sender stay in order. No barrier that was taken lies before any of it.
	replay []topology.Parcel
	// behind: replay has as much as a channel may have. Its senders wait meanwhile; else what is in flight would grow by what the
	// channels hold with every restart.
	behind atomic.Bool

	current  gate.Barrier // of the newest checkpoint that a barrier came of
	began    time.Time    // when the first one came
	switchAt time.Time    // when its alignment is given up and it goes on unaligned; zero: not to be

	aside []int   // the inputs that are set aside, since the barrier has come of them and not of all
	open  *cutOff // a checkpoint whose state is frozen and whose records in flight are not all there yet
}

// cutOff is an unaligned checkpoint of this task between its cut and the last barrier.
type cutOff struct {
	id  element.CheckpointID
	ack taskAck
}

// urgent serves what does not wait for its turn: barriers that may overtake, and the end of the patience with an alignment.
func (in *input) urgent(t *task) (bool, error) {
	if in.news.Load() && in.news.Swap(false) {
		for i, c := range in.channels {
			for _, b := range c.announced() {
				in.firstBarrier(b)
				if err := in.perform(t, in.gate.Announced(i, b)); err != nil {
					return true, err
				}
			}
		}
		return true, nil
	}
	if !in.switchAt.IsZero() && !time.Now().Before(in.switchAt) {
		in.switchAt = time.Time{}
		return true, in.perform(t, in.gate.TimedOut(in.current.ID))
	}
	return false, nil
}

// take is the task's turn: one passage from a channel that is not blocked. Barriers are taken also when there is no room
// for what records would make.
func (in *input) take(t *task) (bool, error) {
	if t.halted {
		return false, nil
	}
	// A barrier comes from the coordinator when all inputs have ended, or when they are feedback and bring none.
	if it, ok := t.inbox.popBarrier(); ok {
		return true, t.onBarrier(it.barrier)
	}
	room := t.outs.credit()
	if len(in.replay) > 0 {
		if !room {
			return false, nil
		}
		p := in.replay[0]
		in.replay[0] = nil
		in.replay = in.replay[1:]
		if err := in.receive(t, p); err != nil {
			return true, err
		}
		in.catchUp()
		return true, nil
	}
	for k := range in.channels {
		i := (in.next + k) % len(in.channels)
		if in.gate.Blocked(i) {
			continue
		}
		if p, ok := in.channels[i].pop(room); ok {
			in.next = i + 1
			return true, in.passage(t, i, p)
		}
	}
	return false, nil
}

func (in *input) passage(t *task, i int, p passage) error {
	switch {
	case p.parcel != nil:
		return in.receive(t, p.parcel)
	case p.barrier.ID != 0 && t.feedbackOnly:
		// The gate waits for none of these. But what its sender has sent behind its own cut must not be taken before the cut here:
		// it would be in the checkpoint, and the sender makes it again.
		return in.perform(t, in.gate.Trigger(p.barrier))
	case p.barrier.ID != 0:
		in.firstBarrier(p.barrier)
		return in.perform(t, in.gate.Barrier(i, p.barrier))
	case p.cancel != 0:
		return in.perform(t, in.gate.Cancelled(i, p.cancel))
	}
	if t.feedbackOnly {
		return nil // what goes around has no end
	}
	if err := in.perform(t, in.gate.Ended(i)); err != nil || !in.gate.AllEnded() {
		return err
	}
	return t.onEnd()
}

func (in *input) receive(t *task, p topology.Parcel) error {
	if most := t.pace.most(); p.Len() > most {
		if pieces := in.pieces(t, p, most); len(pieces) > 0 {
			p, in.replay = pieces[0], append(pieces[1:], in.replay...)
			t.flow.add(len(pieces) - 1)
		}
	}
	t.movedNow()
	n, began := p.Len(), time.Now()
	if err := t.chain.Receive(p); err != nil {
		return err
	}
	t.pace.note(n, time.Since(began))
	if err := t.endBatch(); err != nil {
		return err
	}
	t.stats.records.Add(int64(n))
	t.checkLimit()
	t.done()
	return nil
}

// fallBehind looks at what a restore has put into replay, before anything runs.
func (in *input) fallBehind() {
	in.behind.Store(len(in.channels) > 0 && in.owesMuch())
}

// catchUp lets the senders go on when there is little left of it.
func (in *input) catchUp() {
	if !in.behind.Load() || in.owesMuch() {
		return
	}
	in.behind.Store(false)
	for _, c := range in.channels {
		c.sender.ring()
	}
}

// owesMuch reports that there is as much of it as a channel may have, see channel.roomLocked.
func (in *input) owesMuch() bool {
	size := 0
	for _, p := range in.replay {
		size += p.Size()
	}
	return in.toReplay() >= in.channels[0].limit || size >= maxChannelBytes
}

func (in *input) toReplay() (records int) {
	for _, p := range in.replay {
		records += p.Len()
	}
	return records
}

// firstBarrier notes when the alignment of a checkpoint began.
func (in *input) firstBarrier(b gate.Barrier) {
	if in.current.ID < b.ID {
		in.current, in.began, in.switchAt = b, time.Now(), time.Time{}
	}
}

// perform does what the gate says.
func (in *input) perform(t *task, actions []gate.Action) error {
	for _, act := range actions {
		switch act := act.(type) {
		case gate.Block: // Blocked is asked before each turn; this is for the statistics
			in.aside = append(in.aside, act.Input)
		case gate.Unblock:
			in.aside = in.aside[:0]
		case gate.StartTimer:
			in.switchAt = time.Now().Add(in.timeout)
		case gate.Snapshot:
			if err := in.snapshot(t, act); err != nil {
				return err
			}
		case gate.CloseRecording:
			if in.isOpen(act.ID) {
				in.open.add(in.channels[act.Input].recorded())
			}
		case gate.Captured:
			if in.isOpen(act.ID) {
				t.report(event{kind: evBarrier, id: act.ID, task: t.id, ack: in.open.ack})
				in.open = nil
			}
		case gate.Abort:
			in.abort(t, act.ID)
		default:
			return fmt.Errorf("task %s: the gate asks for %v", t.id, act)
		}
	}
	return nil
}

// snapshot cuts the task's state, and captures what is in flight before the barrier when it is unaligned. When it hears
// just then that the checkpoint was given up, there is no cut, and what the gate says of it further on means nothing.
func (in *input) snapshot(t *task, act gate.Snapshot) error {
	over, err := t.hear(act.ID)
	if over || err != nil {
		in.abort(t, act.ID)
		return err
	}
	in.switchAt = time.Time{}
	ack, err := t.cut(act.ID, act.Forward)
	if err != nil {
		return err
	}
	ack.alignment, ack.unaligned = ack.at.Sub(in.began), act.Unaligned
	for _, i := range in.aside { // the barrier was taken from the channel: what lies there came behind it
		records, bytes := in.channels[i].load()
		ack.buffered += int64(records)
		ack.bufferedBytes += bytes
	}
	if t.feedbackOnly && !act.Unaligned {
		ack.around.left = int64(in.toReplay())
	}
	if !act.Unaligned {
		t.report(event{kind: evBarrier, id: act.ID, task: t.id, ack: ack})
		return nil
	}
	in.open = &cutOff{id: act.ID, ack: ack}
	for _, p := range in.replay {
		p.Keep()
	}
	in.open.add(in.replay)
	for _, i := range act.Overtake {
		in.open.add(in.channels[i].capture(act.ID))
	}
	for _, i := range act.Record {
		in.open.add(in.channels[i].capture(act.ID))
	}
	return nil
}

func (c *cutOff) add(ps []topology.Parcel) {
	c.ack.inflight = append(c.ack.inflight, ps...)
	for _, p := range ps {
		c.ack.buffered += int64(p.Len())
		c.ack.bufferedBytes += int64(p.Size())
	}
}

// abort gives a checkpoint up: whoever comes behind is told, and what was captured for it is dropped.
func (in *input) abort(t *task, id element.CheckpointID) {
	in.switchAt = time.Time{}
	if in.isOpen(id) {
		in.open = nil
		for _, c := range in.channels {
			c.recorded()
		}
	}
	t.giveUp(id)
}

func (in *input) isOpen(id element.CheckpointID) bool { return in.open != nil && in.open.id == id }

// abandoned: the coordinator has given checkpoints up. Their barriers may be here, on the way, or have passed.
func (in *input) abandoned(t *task, ids span) error {
	t.turns.decided(ids.last)
	for id := ids.first; id <= ids.last; id++ {
		if err := in.perform(t, in.gate.Cancelled(gate.Coordinator, id)); err != nil {
			return err
		}
	}
	return nil
}
