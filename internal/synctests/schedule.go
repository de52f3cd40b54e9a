//go:build synctests

package synctests

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/millweir/millweir/internal/vfs"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Options select and vary a schedule.
type Options struct {
	// Seed is what the schedule is drawn from.
	Seed uint64
	// Most is how many processes share the group at most; the seed draws from 1 to Most.
	Most int
	// Plant names a mistake that is built into the service on purpose; "" for none.
	Plant string
}

// Schedule is one run: the world that it happens in, and what happens when. All of it comes from the seed.
type Schedule struct {
	Options
	Instances  int // that run from the start
	Brokers    int
	In, Out    int // partitions
	Keys       int
	Bursts     int // of input
	PerBurst   int // records, at most
	Aborts     bool
	Interval   time.Duration
	Checkpoint time.Duration // timeout
	Txn        time.Duration // timeout
	Session    time.Duration
	Latency    time.Duration
	Fsync      time.Duration
	Load       time.Duration // the input is spread over it, and the events too
	Events     []Event
	Concurrent int // checkpoints in flight, at most
}

// Kind is what an event does.
type Kind int

// The kinds of events.
const (
	BrokerError Kind = iota // the broker answers some requests with an error
	Request                 // a request is slow, lost, or its answer is
	Kill                    // a process dies, at a moment or at a request or a file operation
	Power                   // all processes die and the disk loses what was not synced
	Restart                 // a process is stopped gracefully and started again
	Pause                   // a process is frozen
	Takeover                // a process is frozen or killed and another instance takes over
	Join                    // another instance joins the group, and leaves it later
	Unplug                  // a process has no network
	DiskError               // a file operation fails
	Move                    // leaders or coordinators move
	numKinds
)

var kindNames = [...]string{"broker-error", "request", "kill", "power", "restart", "pause", "takeover", "join", "unplug", "disk-error", "move"}

// String names the kind.
func (k Kind) String() string { return kindNames[k] }

// Event is one thing that happens.
type Event struct {
	At   time.Duration
	Kind Kind
	Slot int           // of the process
	For  time.Duration // how long, or how long until the process starts again

	Key     kmsg.Key // of the request that is answered with an error, is lost, or at which the process dies
	AtReq   bool     // Kill, Pause: happens at the next request of that key
	AtOp    bool     // Kill: happens at a file operation of that kind
	Op      vfs.OpKind
	Nth     int // which of them
	Cut     Cut
	Err     *kerr.Error
	Count   int
	Lose    bool    // what is on its way to the broker is lost
	Keep    float64 // Power: the share of unsynced changes that survives
	Coords  bool    // Move: the coordinators instead of the leaders
	Killed  bool    // Takeover: the first one is killed, not frozen; Join: the other one is killed in the end
	DiskErr error
}

// String tells what the event does, for the log.
func (e Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %v", e.At.Round(time.Millisecond), e.Kind)
	switch e.Kind {
	case BrokerError:
		fmt.Fprintf(&b, " %d x %s: %s", e.Count, e.Key.Name(), e.Err.Message)
	case Request:
		fmt.Fprintf(&b, " slot %d, %d x %s: %v, on its way for %v", e.Slot, e.Count, e.Key.Name(), e.Cut, e.For)
	case DiskError:
		fmt.Fprintf(&b, " %d x %v: %v", e.Count, e.Op, e.DiskErr)
	case Power:
		fmt.Fprintf(&b, " keep %.1f, back after %v", e.Keep, e.For)
	case Move:
		fmt.Fprintf(&b, " coordinators %t", e.Coords)
	default:
		fmt.Fprintf(&b, " slot %d for %v lose %t", e.Slot, e.For, e.Lose)
		if e.AtReq {
			fmt.Fprintf(&b, " at %s no. %d %v", e.Key.Name(), e.Nth, e.Cut)
		}
		if e.AtOp {
			fmt.Fprintf(&b, " at file operation %v no. %d", e.Op, e.Nth)
		}
	}
	return b.String()
}

// String tells the world of the schedule in one line, without the events.
func (s Schedule) String() string {
	return fmt.Sprintf("%d processes, %d brokers, %d to %d partitions, %d keys, interval %v, checkpoint timeout %v, transaction timeout %v, session %v, latency %v, fsync %v, %d events in %v, %d checkpoints in flight",
		s.Instances, s.Brokers, s.In, s.Out, s.Keys, s.Interval, s.Checkpoint, s.Txn, s.Session, s.Latency, s.Fsync, len(s.Events), s.Load, s.Concurrent)
}

// Draw makes the schedule of a seed.
func Draw(o Options) Schedule {
	d := newDrawer(o.Seed, 0x73796e63)
	s := Schedule{
		Options: o, Instances: 1 + d.IntN(max(1, o.Most)), Brokers: 1 + d.IntN(3), In: 2 + d.IntN(3), Out: 1 + d.IntN(3), Keys: 2 + d.IntN(6),
		Bursts: 10 + d.IntN(40), PerBurst: 1 + d.IntN(8), Aborts: d.chance(0.4),
		Interval: d.between(100*time.Millisecond, 1500*time.Millisecond), Checkpoint: d.between(3*time.Second, 10*time.Second),
		Session: d.between(6*time.Second, 10*time.Second), Load: d.between(10*time.Second, 40*time.Second),
		Latency: pick(d, 200*time.Microsecond, time.Millisecond, time.Millisecond, 8*time.Millisecond), Fsync: pick(d, 0, 0, 3*time.Millisecond, 40*time.Millisecond),
	}
	if d.chance(0.25) { // checkpoints take long, and input comes all the time
		s.Bursts, s.PerBurst, s.Fsync = 100+d.IntN(200), 3, pick(d, 40*time.Millisecond, 150*time.Millisecond)
		s.Interval = d.between(100*time.Millisecond, 400*time.Millisecond)
	}
	s.Txn = max(15*time.Second, s.Interval+s.Checkpoint+5*time.Second)
	if d.chance(0.5) {
		s.Txn = time.Minute
	}
	for range 6 + d.IntN(14) {
		s.Events = append(s.Events, d.event(&s))
	}
	slices.SortStableFunc(s.Events, func(a, b Event) int { return int(a.At - b.At) })
	s.Concurrent = pick(d, 1, 1, 2, 3)
	return s
}

// drawer draws.
type drawer struct{ *rand.Rand }

func newDrawer(seed, what uint64) drawer { return drawer{rand.New(rand.NewPCG(seed, what))} }

func (d drawer) chance(p float64) bool { return d.Float64() < p }

func (d drawer) between(a, b time.Duration) time.Duration {
	return a + time.Duration(d.Int64N(int64(b-a)))
}

func pick[T any](d drawer, from ...T) T { return from[d.IntN(len(from))] }

// weights says how often each kind is drawn.
var weights = [numKinds]int{BrokerError: 10, Request: 9, Kill: 9, Power: 2, Restart: 2, Pause: 3, Takeover: 2, Join: 4, Unplug: 2, DiskError: 2, Move: 2}

func (d drawer) kind(s *Schedule) Kind {
	weights := weights
	if s.Most == 1 {
		weights[Join] = 0
	}
	sum := 0
	for _, w := range weights {
		sum += w
	}
	n := d.IntN(sum)
	for k, w := range weights {
		if n -= w; n < 0 {
			return Kind(k)
		}
	}
	return BrokerError
}

// commitKeys are the requests around a commit, where most of the mistakes are.
var commitKeys = []kmsg.Key{kmsg.Produce, kmsg.TxnOffsetCommit, kmsg.TxnOffsetCommit, kmsg.EndTxn, kmsg.EndTxn, kmsg.InitProducerID, kmsg.OffsetFetch}

var otherKeys = []kmsg.Key{kmsg.Fetch, kmsg.Heartbeat, kmsg.JoinGroup, kmsg.SyncGroup, kmsg.FindCoordinator, kmsg.Metadata, kmsg.ListOffsets}

func (d drawer) key() kmsg.Key {
	if d.chance(0.75) {
		return pick(d, commitKeys...)
	}
	return pick(d, otherKeys...)
}

func (d drawer) event(s *Schedule) Event {
	e := Event{Kind: d.kind(s), At: d.between(500*time.Millisecond, s.Load), Slot: d.IntN(s.Instances), Lose: d.chance(0.5)}
	e.For = d.between(0, 4*time.Second)
	switch e.Kind {
	case BrokerError:
		e.Key = d.key()
		if len(answers[e.Key]) == 0 {
			e.Key = pick(d, commitKeys...)
		}
		e.Err, e.Count = pick(d, answers[e.Key]...), 1+d.IntN(3)
	case Request:
		e.Key, e.Cut, e.Count = d.key(), pick(d, NoCut, CutBefore, CutAfter, CutAfter), 1+d.IntN(2)
		if d.chance(0.5) {
			e.For = d.between(0, 20*time.Millisecond)
		}
	case Kill:
		d.moment(&e)
	case Power:
		e.Keep = pick(d, 0, 0.5, 1)
	case Pause:
		e.For = d.between(0, 2*s.Session)
		if d.chance(0.5) {
			e.AtReq, e.Key, e.Nth, e.Cut = true, pick(d, commitKeys...), 1+d.IntN(3), NoCut
		}
	case Takeover:
		e.For, e.Killed = d.between(s.Session, 3*s.Session), d.chance(0.5)
	case Join:
		e.For, e.Killed = d.between(time.Second, 2*s.Session), d.chance(0.3)
	case Unplug:
		e.For = d.between(0, 2*s.Session)
	case DiskError:
		e.Op, e.Count = pick(d, vfs.OpSync, vfs.OpSync, vfs.OpWrite, vfs.OpLink, vfs.OpSyncDir, vfs.OpCreate), 1+d.IntN(3)
		e.DiskErr = pick(d, diskErrors...)
	case Move:
		e.Coords = d.chance(0.5)
	}
	return e
}

// moment draws when a process dies: at any time, at a request or at a file operation.
func (d drawer) moment(e *Event) {
	switch n := d.IntN(10); {
	case n < 5:
		e.AtReq, e.Key, e.Nth, e.Cut = true, pick(d, commitKeys...), 1+d.IntN(3), pick(d, CutBefore, CutAfter)
	case n < 8:
		e.AtOp, e.Nth = true, 1+d.IntN(4)
		e.Op = pick(d, vfs.OpCreate, vfs.OpWrite, vfs.OpSync, vfs.OpLink, vfs.OpRemove, vfs.OpSyncDir)
	}
}
