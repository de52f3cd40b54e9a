package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

const patient = 5 * time.Second

// watch counts what a member goes through.
type watch struct {
	ended, restored, reused atomic.Int64
	mu                      sync.Mutex
	joined, left            [][]element.TopicPartition
	reasons                 []checkpoint.Reason
}

func (c *watch) listener() *Listener {
	return &Listener{
		AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) {
			if err != nil {
				c.ended.Add(1)
			}
		},
		Restored: func(element.TaskID, snapshot.RootRef, snapshot.Stats, time.Duration) { c.restored.Add(1) },
		Reused:   func(element.TaskID, snapshot.RootRef) { c.reused.Add(1) },
		Joined:   func(tps []element.TopicPartition) { c.mu.Lock(); c.joined = append(c.joined, tps); c.mu.Unlock() },
		Left:     func(tps []element.TopicPartition) { c.mu.Lock(); c.left = append(c.left, tps); c.mu.Unlock() },
		CheckpointCompleted: func(s checkpoint.CheckpointStats) {
			c.mu.Lock()
			c.reasons = append(c.reasons, s.Reason)
			c.mu.Unlock()
		},
	}
}

func (c *watch) has(r checkpoint.Reason) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.reasons, r)
}

// A partition goes to a second instance and comes back while both run: nothing ends, nothing is lost or made twice.
func TestAPartitionMovesWhileTheOthersGoOn(t *testing.T) {
	w := newWorld(t, 3)
	w.others = true
	a, b := w.member, w.join("i2")
	var ca, cb watch
	stopA, stopB := a.start(a.config(), ca.listener()), b.start(b.config(), cb.listener())
	w.produce(300, 11)
	w.caughtUp()
	w.move(a, b, patient, 1, 2)
	w.produce(300, 11)
	w.caughtUp()
	w.move(b, a, patient, 1)
	w.produce(300, 11)
	w.caughtUp()
	require.NoError(t, stopA())
	require.NoError(t, stopB())
	w.exact()
	require.Zero(t, ca.ended.Load()+cb.ended.Load(), "no attempt ended")
	require.EqualValues(t, 2, cb.restored.Load(), "from the files of the first")
	require.EqualValues(t, 1, ca.restored.Load(), "from those of the second")
	require.Equal(t, [][]element.TopicPartition{{tp(1)}}, ca.joined)
	require.Equal(t, [][]element.TopicPartition{{tp(1), tp(2)}}, ca.left)
}

// The last checkpoint comes at once, whatever the interval and the pause are, and only when there is something in it.
func TestTheLastCheckpointDoesNotWait(t *testing.T) {
	w := newWorld(t, 2)
	w.others = true
	a, b := w.member, w.join("i2")
	var ca watch
	cfg := a.config()
	cfg.Interval, cfg.MinPause, cfg.CheckpointTimeout = time.Hour, time.Hour, time.Hour
	stop := a.start(cfg, ca.listener())
	w.produce(100, 7)
	require.Eventually(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(a.open) == 100 }, patient, time.Millisecond)
	began := time.Now()
	w.move(a, b, patient, 0)
	require.Less(t, time.Since(began), patient, "it does not wait until the group gives up")
	w.caughtUp()
	require.True(t, ca.has(checkpoint.Revoke))
	w.move(a, b, patient, 1)
	w.mu.Lock()
	commits := len(w.commits)
	w.mu.Unlock()
	require.Equal(t, 2, commits, "the start positions, and one checkpoint for both: the second partition had not moved since")
	require.NoError(t, stop())
	w.exact()
	require.Zero(t, ca.ended.Load())
}

// The group takes a partition while a checkpoint is in flight whose barrier its task has passed. What the task emitted
// behind the barrier is held back; it is dropped, for the next owner starts at the barrier and makes it again.
func TestHeldBackOutputOfALeavingTaskIsDropped(t *testing.T) {
	w := newWorld(t, 2)
	w.others = true
	a, b := w.member, w.join("i2")
	var ca, cb watch
	w.slowDrop = 20 * time.Millisecond
	inCommit, release := make(chan element.CheckpointID), make(chan struct{})
	var blocked atomic.Bool
	w.onCommit = func(c checkpoint.Commit) (bool, error) {
		if c.Name.ID > 0 && blocked.CompareAndSwap(false, true) {
			inCommit <- c.Name.ID
			<-release
		}
		return true, nil
	}
	stopA := a.start(a.config(), ca.listener())
	w.produce(40, 4)
	<-inCommit
	w.produce(40, 4) // both tasks work on, behind the barrier
	time.Sleep(50 * time.Millisecond)
	moved := make(chan struct{})
	go func() { w.move(a, b, patient, 0); close(moved) }()
	time.Sleep(50 * time.Millisecond)
	select {
	case <-moved:
		t.Fatal("the partition may not go before the checkpoint that covers it is committed")
	default:
	}
	close(release)
	<-moved
	require.False(t, ca.has(checkpoint.Revoke), "the one in flight was the last checkpoint")
	w.mu.Lock()
	at := w.committed[tp(0)].Offset
	w.mu.Unlock()
	require.Less(t, at, int64(40), "what lies behind the barrier is not committed")
	stopB := b.start(b.config(), cb.listener())
	w.produce(40, 4)
	w.caughtUp()
	require.NoError(t, stopA())
	require.NoError(t, stopB())
	w.exact()
	require.Zero(t, ca.ended.Load())
}

// The group takes a partition while two checkpoints are in flight: its task leaves with the newer one. When the older one
// completes, what the task emitted between the two barriers is released as that of any other, for the newer one commits
// the position behind it.
func TestOutputBetweenTwoBarriersOfALeavingTaskIsCommitted(t *testing.T) {
	w := newWorld(t, 2)
	w.others = true
	a, b := w.member, w.join("i2")
	var ca, cb watch
	inCommit, release := make(chan element.CheckpointID), make(chan struct{})
	var blocked atomic.Bool
	w.onCommit = func(c checkpoint.Commit) (bool, error) {
		if c.Name.ID > 0 && blocked.CompareAndSwap(false, true) {
			inCommit <- c.Name.ID
			<-release
		}
		return true, nil
	}
	cfg := a.config()
	cfg.MaxConcurrent = 3
	stopA := a.start(cfg, ca.listener())
	w.produce(40, 4)
	<-inCommit
	for range 3 { // the checkpoints behind the one that waits are triggered between these
		w.produce(40, 4)
		time.Sleep(30 * time.Millisecond)
	}
	moved := make(chan struct{})
	go func() { w.move(a, b, patient, 0); close(moved) }()
	time.Sleep(50 * time.Millisecond)
	close(release)
	<-moved
	w.mu.Lock()
	at := w.committed[tp(0)].Offset
	w.mu.Unlock()
	require.Greater(t, at, int64(20), "it left with the oldest one: this proves nothing")
	stopB := b.start(b.config(), cb.listener())
	w.produce(40, 4)
	w.caughtUp()
	require.NoError(t, stopA())
	require.NoError(t, stopB())
	w.exact()
	require.Zero(t, ca.ended.Load())
}

// When the last checkpoint does not end within the budget, the partition is lost: the transaction is aborted, what is
// not committed is made again by whoever owns it, and the partitions that stay go back to the last commit as well.
func TestALastCheckpointThatTakesTooLongIsALoss(t *testing.T) {
	w := newWorld(t, 2)
	w.others = true
	a, b := w.member, w.join("i2")
	var ca, cb watch
	var stall atomic.Bool
	w.onSeal = func(element.CheckpointID) error {
		for stall.Load() {
			time.Sleep(time.Millisecond)
		}
		return nil
	}
	stopA := a.start(a.config(), ca.listener())
	w.produce(60, 6)
	w.caughtUp()
	stall.Store(true)
	w.produce(60, 6)
	time.Sleep(30 * time.Millisecond)
	w.move(a, b, 50*time.Millisecond, 0)
	stall.Store(false)
	stopB := b.start(b.config(), cb.listener())
	w.produce(60, 6)
	w.caughtUp()
	require.NoError(t, stopA())
	require.NoError(t, stopB())
	w.exact()
	require.EqualValues(t, 1, ca.ended.Load())
	require.EqualValues(t, 1, ca.reused.Load(), "the state of the partition that stays is still there")
}

// A partition without a committed offset comes to a running instance: none of its records is processed before its start
// position is committed.
func TestALatePartitionStartsWithACommit(t *testing.T) {
	w := newWorld(t, 2)
	w.assign(1)
	var ca watch
	hold := make(chan struct{})
	var first atomic.Bool
	w.onCommit = func(c checkpoint.Commit) (bool, error) {
		if len(c.Offsets) == 2 && first.CompareAndSwap(false, true) {
			require.EqualValues(t, 0, c.Offsets[1].Position.Offset, "its start position, whatever lies in the log")
			<-hold
		}
		return true, nil
	}
	cfg := w.config()
	cfg.Interval = time.Hour // the first checkpoint of an attempt comes all the same
	stop := w.start(cfg, ca.listener())
	w.produce(50, 10)
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.committed[tp(0)].Offset == 25
	}, patient, time.Millisecond)
	w.mu.Lock()
	w.gain(slices.Values([]int32{1}))
	w.mu.Unlock()
	require.Eventually(t, first.Load, patient, time.Millisecond)
	time.Sleep(30 * time.Millisecond)
	w.mu.Lock()
	require.Len(t, w.output, 25)
	require.Empty(t, w.open)
	w.mu.Unlock()
	close(hold)
	require.Eventually(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.open) == 25 }, patient, time.Millisecond)
	require.NoError(t, stop())
	w.exact()
	require.Zero(t, ca.ended.Load())
	require.True(t, ca.has(checkpoint.Early), "it does not wait for the interval")
}

// A partition comes while a checkpoint is in flight that does not cover it: what its task emits meanwhile is not in that
// checkpoint's transaction.
func TestATaskThatJoinsHoldsBackUntilTheCheckpointInFlightIsOver(t *testing.T) {
	w := newWorld(t, 2)
	w.others = true
	a, b := w.member, w.join("i2")
	var ca, cb watch
	stopB := func() func() error { w.move(a, b, 0, 1); return b.start(b.config(), cb.listener()) }()
	stopA := a.start(a.config(), ca.listener())
	w.produce(40, 4)
	w.caughtUp()
	inCommit, release := make(chan struct{}), make(chan struct{})
	var blocked atomic.Bool
	w.onCommit = func(c checkpoint.Commit) (bool, error) {
		if c.Offsets[0].Position.Partition == 0 && blocked.CompareAndSwap(false, true) {
			close(inCommit)
			<-release
		}
		return true, nil
	}
	w.mu.Lock()
	w.logs[0] = append(w.logs[0], element.Record{Key: []byte("k0"), Value: []byte("x"), Offset: int64(len(w.logs[0]))})
	close(w.grew)
	w.grew = make(chan struct{})
	w.mu.Unlock()
	<-inCommit
	w.move(b, a, patient, 1)
	require.Eventually(t, func() bool { ca.mu.Lock(); defer ca.mu.Unlock(); return len(ca.joined) == 1 }, patient, time.Millisecond)
	w.produce(40, 4)
	time.Sleep(50 * time.Millisecond) // it processes, and the commit in flight must not have any of it
	close(release)
	w.caughtUp()
	require.NoError(t, stopA())
	require.NoError(t, stopB())
	w.exact()
	require.Zero(t, ca.ended.Load()+cb.ended.Load())
}

// An intake that fails for its own reasons fails the attempt, one whose partition is gone again does not.
func TestAnIntakeOfAPartitionThatIsGoneAgainIsDropped(t *testing.T) {
	w := newWorld(t, 2)
	w.others = true
	a, b := w.member, w.join("i2")
	w.move(a, b, 0, 1)
	var ca, cb watch
	block := make(chan struct{})
	var blocking atomic.Bool
	ports := a.ports()
	ports.Offsets = slowOffsets{a, func(ctx context.Context, tps []element.TopicPartition) error {
		if slices.Contains(tps, tp(1)) && blocking.Load() {
			select {
			case <-ctx.Done():
			case <-block:
			}
			return errors.New("the read was cut off")
		}
		return nil
	}}
	stopB := b.start(b.config(), cb.listener())
	stopA := a.startWith(a.config(), ports, ca.listener())
	w.produce(100, 7)
	w.caughtUp()
	blocking.Store(true)
	w.move(b, a, patient, 1)
	time.Sleep(20 * time.Millisecond)
	w.move(a, b, patient, 1)
	blocking.Store(false)
	w.produce(100, 7)
	w.caughtUp()
	require.NoError(t, stopA())
	require.NoError(t, stopB())
	w.exact()
	require.Zero(t, ca.ended.Load()+cb.ended.Load())
}

type slowOffsets struct {
	*member
	before func(ctx context.Context, tps []element.TopicPartition) error
}

func (o slowOffsets) Stable(ctx context.Context, tps []element.TopicPartition) (map[element.TopicPartition]Committed, error) {
	if err := o.before(ctx, tps); err != nil {
		return nil, err
	}
	return o.member.Stable(ctx, tps)
}

// Partitions move at random between three instances, in order, in haste or without a word, while anything may fail and
// instances stop and come back: the output stays exact.
func TestPartitionsMoveAtRandomWhileAnythingFails(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if s := os.Getenv("ENGINE_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("seed %d: ENGINE_SEED=%d go test ./engine -run TestPartitionsMoveAtRandomWhileAnythingFails", seed, seed)
	const partitions = 6
	w := newWorld(t, partitions)
	w.others = true
	members := []*member{w.member, w.join("i2"), w.join("i3")}
	f := &flaky{rnd: rand.New(rand.NewPCG(seed, 1))}
	w.wrap = func(c Checkpoints) Checkpoints { return flakyStore{c, f} }
	w.onSeal = func(element.CheckpointID) error { return f.attempt(20, func() error { return nil }) }
	w.onCommit = func(checkpoint.Commit) (bool, error) {
		err, done := f.fails(40)
		return done, err
	}
	var joined, left, ended atomic.Int64
	start := func(m *member) func() error {
		m.reopen() // one that takes an earlier process's incarnation for its own takes lower ids for over
		ports := m.ports()
		ports.Committer, ports.Offsets = flakyCommitter{m, f}, flakyOffsets{m, f}
		cfg := m.config()
		cfg.MaxChain, cfg.Interval, cfg.MaxConcurrent = 3, 3*time.Millisecond, 1+f.draw(3)
		return m.startWith(cfg, ports, &Listener{
			Joined:       func(tps []element.TopicPartition) { joined.Add(int64(len(tps))) },
			Left:         func(tps []element.TopicPartition) { left.Add(int64(len(tps))) },
			AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) { ended.Add(1) },
		})
	}
	stops := make([]func() error, len(members))
	for i, m := range members {
		stops[i] = start(m)
	}
	for began := time.Now(); time.Since(began) < 2*time.Second; time.Sleep(time.Duration(f.draw(4)) * time.Millisecond) {
		w.produce(f.draw(60), 29)
		switch from := members[f.draw(len(members))]; f.draw(20) {
		case 0: // an instance stops and comes back
			i := slices.Index(members, from)
			if err := stops[i](); err != nil {
				require.NotEqual(t, fault.Stop, fault.RecoveryOf(err), "%v", err)
			}
			stops[i] = start(from)
		case 1, 2, 3, 4, 5, 6:
			if owned := from.owns(); len(owned) > 0 {
				to := members[f.draw(len(members))]
				n := 1 + f.draw(len(owned))
				budget := []time.Duration{0, time.Millisecond, 10 * time.Millisecond, patient, patient}[f.draw(5)]
				w.move(from, to, budget, owned[:n]...)
			}
		}
	}
	f.end()
	w.produce(10, 29)
	w.caughtUp()
	for _, stop := range stops {
		require.NoError(t, stop())
	}
	w.exact()
	require.Positive(t, joined.Load())
	require.Positive(t, left.Load())
	t.Logf("%d joined, %d left, %d attempts ended, %d commits", joined.Load(), left.Load(), ended.Load(), len(w.commits))
}

// An instance with a directory of its own is refused also where it would begin with partitions that nobody had: what it
// wrote there nobody else could restore.
func TestAnInstanceWithAnotherDirectoryIsRefused(t *testing.T) {
	w := newWorld(t, 2)
	w.assign(1)
	stop := w.start(w.config(), nil)
	w.produce(20, 2)
	require.Eventually(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.committed[tp(0)].Offset == 10 }, patient, time.Millisecond)
	w.dir = t.TempDir()
	b := w.join("i2")
	w.mu.Lock()
	b.gain(slices.Values([]int32{1}))
	w.mu.Unlock()
	r, err := New(countPlan(t), b.config(), b.ports(), nil)
	require.NoError(t, err)
	err = r.Run(t.Context())
	require.ErrorContains(t, err, "set state.checkpoints.dir to the directory that all instances share")
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(err))
	require.NoError(t, stop())
	w.mu.Lock()
	defer w.mu.Unlock()
	require.False(t, w.committed[tp(1)].Found)
}

// latest holds for partitions that were there when the application began, whoever gets them; one that was added since
// starts at its beginning.
func TestLatestHoldsForThePartitionsOfTheBeginning(t *testing.T) {
	w := newWorld(t, 2)
	w.others = true
	w.assign(1)
	w.produce(40, 4)
	a, b := w.member, w.join("i2")
	latest := func(m *member) func() error {
		b := topology.New(app)
		in := topology.FromTopic(b, "in", "in", serde.String(), serde.String(), topology.StartAt(topology.Latest()))
		topology.ToTopic(in, "out", "out", serde.String(), serde.String())
		plan, err := b.Plan()
		require.NoError(t, err)
		return m.startPlan(plan, m.config(), m.ports(), &Listener{AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) { require.NoError(t, err) }})
	}
	stopA := latest(a)
	committed := func(p int32) func() bool {
		return func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.committed[tp(p)].Found }
	}
	require.Eventually(t, committed(0), patient, time.Millisecond)
	w.mu.Lock()
	require.EqualValues(t, 20, w.committed[tp(0)].Offset, "what was there is passed over")
	b.gain(slices.Values([]int32{1}))
	w.mu.Unlock()
	stopB := latest(b)
	require.Eventually(t, committed(1), patient, time.Millisecond)
	w.mu.Lock()
	require.EqualValues(t, 20, w.committed[tp(1)].Offset, "here, too, though the other partition has a committed offset by now")
	w.logs = append(w.logs, nil)
	w.logs[2] = append(w.logs[2], element.Record{Key: []byte("new"), Value: []byte("x")})
	b.gain(slices.Values([]int32{2}))
	w.mu.Unlock()
	require.Eventually(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.committed[tp(2)].Offset == 1 }, patient, time.Millisecond)
	require.NoError(t, stopA())
	require.NoError(t, stopB())
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Len(t, w.output, 1, "the record of the added partition, which came before anybody knew of it")
}

// A partition that is added under keyed state takes keys away from where their state is. The running instance that gets it
// stops before it processes a record of it.
func TestAPartitionAddedUnderKeyedStateStopsTheRunningInstance(t *testing.T) {
	w := newWorld(t, 2)
	r, err := New(countPlan(t), w.config(), w.ports(), nil)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- r.Run(t.Context()) }()
	w.produce(40, 4)
	w.caughtUp()
	w.mu.Lock()
	w.logs = append(w.logs, []element.Record{{Key: []byte("k0"), Value: []byte("x")}})
	w.gain(slices.Values([]int32{2}))
	w.mu.Unlock()
	err = <-done
	require.ErrorContains(t, err, "topic in had 2 partitions when source in began, now it has 3")
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
	require.Len(t, w.output, 40)
}
