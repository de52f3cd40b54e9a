package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// exchange says what the application of a run is like that has one: a task per input partition sends the records by the
// group of their new key to the subtasks, which count. Everything in it belongs to one process at a time.
type exchange struct {
	mode    gate.Mode     // of all gates
	timeout time.Duration // of an alignment, 0: a barrier overtakes at once
	groups  int           // key groups
	limit   int           // records that a channel takes
	slow    time.Duration // how long a turn of a subtask takes at most
	first   int           // place of the first process in parallelisms
	ends    uint          // partitions whose input is there from the beginning and ends with it
}

// stageName is the stage behind the exchange.
const stageName = "sum"

// parallelisms is what one process after the other is told.
var parallelisms = [...]int{1, 2, 4, 3, 3, 2, 2, 4, 1, 3}

var errRedrawn = errors.New("the partitions have changed")

// redrawDelay is how long a new assignment is waited for at most when the group has asked for something.
const redrawDelay = 20 * time.Millisecond

// drawExchange decides whether the application has one. It has dice of its own: all others keep their meaning.
func (w *world) drawExchange() {
	rng := rand.New(rand.NewPCG(w.cfg.Seed, 0x65786368616e6765))
	if rng.IntN(5) > 1 {
		return
	}
	x := &exchange{groups: [...]int{8, 128}[rng.IntN(2)], limit: 2 + rng.IntN(6), slow: 400 * time.Microsecond, first: rng.IntN(len(parallelisms))}
	if rng.IntN(2) == 0 {
		x.slow *= 5 // records wait in the channels
	}
	switch rng.IntN(3) {
	case 0:
		x.mode = gate.Aligned
	case 1:
		x.mode = gate.Unaligned
	case 2:
		x.mode, x.timeout = gate.Unaligned, 200*time.Microsecond<<rng.IntN(5)
	}
	if x.mode != gate.Aligned {
		w.concurrent = 1
	}
	switch all, ends := 1<<w.cfg.Partitions-1, rand.New(rand.NewPCG(w.cfg.Seed, 0x656e6473)); ends.IntN(5) {
	case 0:
		x.ends = uint(all) // a bounded run
	case 1:
		x.ends = 1 + uint(ends.IntN(all))
	}
	w.x = x
}

// endOf gives the offset before which an input ends.
func (w *world) endOf(p int) (int64, bool) {
	return int64(len(w.broker.in[p].recs)), w.x != nil && w.x.ends>>p&1 != 0
}

// exchangeKeys are what records are grouped by. They are spread over the subtasks, whatever the parallelism, and a
// subtask gets the same one from several senders.
const exchangeKeys = "AGCHDF"

func exchangeKey(key byte) byte { return exchangeKeys[(key-'a')%8+(key-'a')/8] }

func (x *exchange) group(key byte) int { return element.KeyGroup([]byte{key}, x.groups) }

// parcel is what one turn of a sender has for one subtask.
type parcel []sent

// sent is a record on its way: its key, and where it came from.
type sent struct {
	key  byte
	from byte
	at   int64
}

func (s sent) encode() []byte {
	return binary.BigEndian.AppendUint64([]byte{s.key, s.from}, uint64(s.at))
}

func decodeSent(data []byte) sent {
	return sent{key: data[0], from: data[1], at: int64(binary.BigEndian.Uint64(data[2:]))}
}

// encodeParcels gives the records as an in-flight run has them.
func (x *exchange) encodeParcels(ps []parcel) func(add func(int, []byte) error) error {
	return func(add func(int, []byte) error) error {
		for _, p := range ps {
			for _, s := range p {
				if err := add(x.group(s.key), s.encode()); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// stageFacts is what the resolution has to know.
func (p *process) stageFacts() []snapshot.StageFacts {
	if p.w.x == nil {
		return nil
	}
	return []snapshot.StageFacts{{Name: stageName, Parallelism: p.parallelism, MaxParallelism: p.w.x.groups}}
}

func subtaskID(i int) element.TaskID { return element.TaskID{Source: stageName, Partition: int32(i)} }

// statedStage is the stage that has the state.
func (w *world) statedStage() string {
	if w.x != nil {
		return stageName
	}
	return sourceName
}

func (t *task) states() []snapshot.StateInfo {
	if t.id.Source == t.a.p.w.statedStage() {
		return stateInfo
	}
	return nil
}

// whole reports that what is owned is enough to begin with.
func (p *process) whole() bool {
	if p.w.x == nil {
		return p.owned() != 0
	}
	return p.owned() != 0 && p.owned() == p.w.broker.group.seen
}

// restoreSubtask mirrors engine's: a subtask of another parallelism is read from those that had its key groups, and all
// of that counts as changed.
func (t *task) restoreSubtask() error {
	d, p := t.decision, t.a.p
	if len(d.Sources) == 0 || d.Entry.Parallelism > 0 {
		return t.restoreOwn()
	}
	t.rescaled, t.whole = true, true
	p.w.counts.Rescaled++
	keep := d.KeepKeys()
	if p.w.cfg.Bug == RescaleKeepsAll {
		keep = nil
	}
	for _, entry := range d.Sources {
		_, err := p.repo.Restore(context.Background(), entry, keep, func(e snapshot.Entry) error {
			t.state.active[e.Key[0]] = int64(binary.BigEndian.Uint64(e.Value))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// replay reads what was on the way to a subtask when the checkpoint was taken.
func (t *task) replay() error {
	d, p := t.decision, t.a.p
	for i := range d.Sources {
		keep := d.KeepInFlight(&d.Sources[i])
		if p.w.cfg.Bug == InFlightTwice {
			keep = nil
		}
		_, err := p.repo.RestoreInFlight(context.Background(), d.Sources[i], keep, func(_ int, data []byte) error {
			t.in.replay = append(t.in.replay, parcel{decodeSent(data)})
			p.w.counts.Replayed++
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// replayFrom reads what was on the way, subtask by subtask, when all states are there.
func (in *intake) replayFrom(i int) {
	for i < len(in.tasks) && (in.tasks[i].in == nil || in.tasks[i].decision.Kind != snapshot.Restore) {
		i++
	}
	if i == len(in.tasks) {
		in.done(nil)
		return
	}
	p, w := in.a.p, in.a.p.w
	w.do(p, w.lag(4e5), kRestore, func() {
		in.then(func() error {
			if err := in.tasks[i].replay(); fault.CodeOf(err) == fault.Corrupt {
				in.stillRefused(err)
				return nil
			} else if err != nil {
				return err
			}
			in.replayFrom(i + 1)
			return nil
		})(nil)
	})
}

// wire puts channels between the tasks, and gates before the subtasks.
func (a *attempt) wire() {
	x := a.p.w.x
	if x == nil {
		return
	}
	a.p.w.counts.WiredAttempts++
	for _, to := range a.tasks {
		if to.in == nil {
			continue
		}
		for _, from := range a.tasks {
			if from.in == nil {
				c := &channel{limit: x.limit, from: from, to: to}
				from.outs = append(from.outs, c)
				to.in.channels = append(to.in.channels, c)
			}
		}
		to.in.gate = gate.New(len(to.in.channels), x.mode, gate.After(a.lastID))
		to.in.fallBehind()
	}
}

// redraw ends the attempt with a last checkpoint because its partitions change.
func (a *attempt) redraw() {
	if a.redrawn {
		return
	}
	a.redrawn = true
	if !a.stopIn {
		a.stopIn = true
		a.report(event{kind: evDrained})
	}
}
