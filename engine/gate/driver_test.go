package gate

import (
	"fmt"
	"slices"

	"github.com/millweir/millweir/element"
)

// What lies in a model channel.
type itemKind uint8

const (
	record itemKind = iota
	barrier
	cancel
	end
)

type item struct {
	kind itemKind
	rec  int32   // record: its number
	b    Barrier // barrier; cancel: its ID
}

// channel is what lies between two tasks. Only records count for its capacity.
type channel struct {
	q    []item
	recs int
}

func (c *channel) push(it item) {
	c.q = append(c.q, it)
	if it.kind == record {
		c.recs++
	}
}

func (c *channel) pop() item {
	it := c.q[0]
	c.q = c.q[1:]
	if it.kind == record {
		c.recs--
	}
	return it
}

// host is what a driver is part of.
type host interface {
	// process takes a record into the state and gathers its output.
	process(d *driver, rec int32)
	// snapshot flushes, freezes, seals the sink and forwards the barrier.
	snapshot(d *driver, s Snapshot)
	// captured gets what was in flight, per input in order.
	captured(d *driver, id element.CheckpointID, flight []inFlight)
	aborted(d *driver, id element.CheckpointID)
	startTimer(d *driver, id element.CheckpointID)
	// action sees all of them first.
	action(d *driver, a Action)
}

// inFlight is a record that an unaligned snapshot holds.
type inFlight struct {
	in  int
	rec int32
}

// driver does for one task what doc.go asks of a driver: it is its smallest implementation.
type driver struct {
	host    host
	g       *Gate
	plant   plant
	ch      []channel
	backlog []int32 // restored records in flight
	// told are announcements that are under way.
	told      []announcement
	capturing element.CheckpointID
	blocked   []bool
	recording []bool
	flight    []inFlight
}

type announcement struct {
	in int
	b  Barrier
}

func newDriver(h host, g *Gate, p plant) *driver {
	d := &driver{host: h, g: g, plant: p, ch: make([]channel, len(g.in)), blocked: make([]bool, len(g.in)), recording: make([]bool, len(g.in))}
	p.mutate(g)
	return d
}

// put is the sender's side.
func (d *driver) put(in int, it item) {
	d.ch[in].push(it)
	if it.kind == barrier && (it.b.Unaligned || it.b.Timeout) {
		d.told = append(d.told, announcement{in, it.b})
	}
}

// announce delivers one announcement.
func (d *driver) announce(i int) {
	a := d.told[i]
	d.told[i] = d.told[len(d.told)-1]
	d.told = d.told[:len(d.told)-1]
	d.do(d.g.Announced(a.in, a.b))
}

// readable reports that there is something to read from the input, and nothing that comes before it.
func (d *driver) readable(in int) bool {
	return len(d.ch[in].q) > 0 && (d.plant == ReadBlocked || !d.blocked[in]) && (d.plant == RestoredLate || len(d.backlog) == 0)
}

// read takes the next item from a channel.
func (d *driver) read(in int) {
	switch it := d.ch[in].pop(); it.kind {
	case record:
		if d.recording[in] {
			d.flight = append(d.flight, inFlight{in, it.rec})
		}
		d.host.process(d, it.rec)
	case barrier:
		if d.plant == SnapshotEarly {
			for i := range d.ch {
				d.do(d.g.Barrier(i, it.b))
			}
			return
		}
		d.do(d.g.Barrier(in, it.b))
	case cancel:
		d.do(d.g.Cancelled(in, it.b.ID))
	case end:
		if d.plant != EndedNotCounted {
			d.do(d.g.Ended(in))
		}
	}
}

// restored processes the next record that was in flight when the checkpoint was taken. Nothing else is done before all
// of them are through (D2).
func (d *driver) restored() {
	rec := d.backlog[0]
	d.backlog = d.backlog[1:]
	d.host.process(d, rec)
}

func (d *driver) do(actions []Action) {
	for _, a := range actions {
		d.host.action(d, a)
		switch a := a.(type) {
		case Block:
			d.blocked[a.Input] = true
		case Unblock:
			clear(d.blocked)
		case Snapshot:
			d.snapshot(a)
		case CloseRecording:
			if a.Overtake && d.plant != CloseWithoutQueued {
				d.overtake(a.Input, a.ID)
			}
			d.recording[a.Input] = d.plant == RecordingNotClosed
		case Captured:
			d.host.captured(d, a.ID, d.flight)
			d.drop()
		case Abort:
			if d.capturing == a.ID && d.plant != AbortKeepsRecords {
				d.drop()
			}
			d.host.aborted(d, a.ID)
		case StartTimer:
			d.host.startTimer(d, a.ID)
		default:
			panic(fmt.Sprintf("unknown action %T", a))
		}
	}
	for in := range d.ch {
		if d.plant == noPlant && (d.blocked[in] != d.g.Blocked(in) || d.recording[in] != d.g.Recording(in)) {
			panic(fmt.Sprintf("input %d: the gate's actions and its answers differ", in))
		}
	}
}

func (d *driver) snapshot(s Snapshot) {
	d.host.snapshot(d, s)
	if !s.Unaligned {
		return
	}
	d.capturing = s.ID
	for _, in := range s.Overtake {
		if d.plant != OvertakeUncaptured {
			d.overtake(in, s.ID)
		}
	}
	if d.plant == BlockedContributes {
		d.captureBlocked(s)
	}
	for i, in := range s.Record {
		d.recording[in] = d.plant != RecordMissing || i > 0
	}
}

// overtake captures what lies ahead of the barrier and takes the barrier out.
func (d *driver) overtake(in int, id element.CheckpointID) {
	c := &d.ch[in]
	for i, it := range c.q {
		if it.kind == record {
			d.flight = append(d.flight, inFlight{in, it.rec})
		}
		if it.kind == barrier && it.b.ID == id {
			if d.plant == OvertakeBehind {
				d.flight = append(d.flight, records(in, c.q[i:])...)
			}
			if d.plant != OvertakenLeft {
				c.q = append(append(make([]item, 0, len(c.q)), c.q[:i]...), c.q[i+1:]...)
			}
			return
		}
	}
}

// captureBlocked is planted: inputs that have delivered the barrier are captured too.
func (d *driver) captureBlocked(s Snapshot) {
	for in := range d.ch {
		if !slices.Contains(s.Overtake, in) && !slices.Contains(s.Record, in) {
			d.flight = append(d.flight, records(in, d.ch[in].q)...)
		}
	}
}

func records(in int, q []item) []inFlight {
	var out []inFlight
	for _, it := range q {
		if it.kind == record {
			out = append(out, inFlight{in, it.rec})
		}
	}
	return out
}

// drop forgets what was captured.
func (d *driver) drop() {
	d.capturing, d.flight = 0, nil
	clear(d.recording)
}
