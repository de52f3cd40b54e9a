package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
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
)

// logging is listener, and says why attempts end.
func (c *watch) logging(t *testing.T) *Listener {
	lis := c.listener()
	count := lis.AttemptEnded
	lis.AttemptEnded = func(n int, err error, class fault.Recovery, delay time.Duration) {
		t.Logf("attempt %d ended: %v", n, err)
		count(n, err, class, delay)
	}
	return lis
}

// give hands partitions to a member that nobody had.
func (w *world) give(to *member, ps ...int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	to.gain(slices.Values(ps))
}

// found reports that a partition has a committed offset.
func (w *world) found(p int32) func() bool {
	return func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.committed[tp(p)].Found }
}

// works reports that the first member's attempt runs, with the partition: its start is committed while the attempt prepares itself, when
// it cannot be told yet that a partition goes.
func (w *world) works(p int32) func() bool {
	return func() bool { return w.found(p)() && w.r.running.Load() != nil }
}

// Two partitions come to an instance that has had nothing to do for longer than the interval. The first of them makes a
// checkpoint due at once, which does not cover the second: that one holds back from the beginning.
//
//	intake: task 1 joins, has moved         coordinator: interval over: trigger n (tasks 0, 1)
//	intake: task 2 joins                    n is in flight, though its barriers are not out yet
func TestPartitionsComeTogetherToAnIdleInstance(t *testing.T) {
	w := newWorld(t, 4)
	w.assign(1)
	var ca watch
	cfg := w.config()
	cfg.Interval = 20 * time.Millisecond
	stop := w.start(cfg, ca.logging(t))
	require.Eventually(t, w.works(0), patient, time.Millisecond)
	time.Sleep(3 * cfg.Interval)
	w.give(w.member, 1, 2, 3)
	w.produce(80, 8)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
	require.Zero(t, ca.ended.Load())
}

// The first checkpoint with a late partition fails when its root is written. Nothing of the partition is committed, so the
// next attempt begins with it anew; the root that lies there is no sign of offsets that were lost.
func TestALatePartitionWhoseFirstCheckpointFailedBeginsAnew(t *testing.T) {
	w := newWorld(t, 2)
	w.assign(1)
	var ca watch
	var failed atomic.Bool
	w.onCommit = func(c checkpoint.Commit) (bool, error) {
		if c.Name.ID > 0 && len(c.Offsets) == 2 && failed.CompareAndSwap(false, true) {
			return false, errors.New("the commit is aborted")
		}
		return true, nil
	}
	stop := w.start(w.config(), ca.logging(t))
	w.produce(40, 8)
	require.Eventually(t, w.works(0), patient, time.Millisecond)
	w.give(w.member, 1)
	require.Eventually(t, failed.Load, patient, time.Millisecond)
	w.produce(40, 8)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
	require.EqualValues(t, 1, ca.ended.Load())
}

// The group takes a partition back that is on its way in, together with one that works. The intake is cut off while the
// last checkpoint of the other goes on, and the group still names the partition as owned until that is over: no reason to
// fail, nor to take it in once more.
func TestAPartitionOnItsWayInIsRevokedWithOneThatWorks(t *testing.T) {
	w := newWorld(t, 3)
	w.others = true
	w.assign(2)
	a, b := w.member, w.join("i2")
	var ca, cb watch
	var slow atomic.Bool
	reading, sealing := make(chan struct{}, 8), make(chan struct{})
	ports := a.ports()
	ports.Offsets = slowOffsets{a, func(ctx context.Context, tps []element.TopicPartition) error {
		if slices.Contains(tps, tp(2)) && slow.Load() {
			reading <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}}
	w.onSeal = func(element.CheckpointID) error {
		if slow.Load() {
			<-sealing
		}
		return nil
	}
	stopA := a.startWith(a.config(), ports, ca.logging(t))
	require.Eventually(t, w.works(0), patient, time.Millisecond)
	slow.Store(true)
	w.give(a, 2)
	<-reading
	w.produce(30, 6) // a checkpoint begins and stays in flight
	time.Sleep(30 * time.Millisecond)
	moved := make(chan struct{})
	go func() { w.move(a, b, patient, 1, 2); close(moved) }()
	time.Sleep(30 * time.Millisecond)
	slow.Store(false)
	close(sealing)
	<-moved
	stopB := b.start(b.config(), cb.logging(t))
	w.produce(30, 6)
	w.caughtUp()
	require.NoError(t, stopA())
	require.NoError(t, stopB())
	w.exact()
	require.Zero(t, ca.ended.Load()+cb.ended.Load())
	require.Empty(t, ca.joined, "it was never taken in")
}

// An intake is done at the moment when the group takes its partition back: the report waits behind the wish. What the group
// takes is not taken in.
func TestAnIntakeThatIsDoneWhenItsPartitionIsRevokedIsDropped(t *testing.T) {
	w := newWorld(t, 2)
	w.others = true
	w.assign(1)
	a, b := w.member, w.join("i2")
	var ca, cb watch
	stopA := a.start(a.config(), ca.logging(t))
	require.Eventually(t, w.works(0), patient, time.Millisecond)
	// The wish comes first, and the group takes the partition away only a while after it was answered.
	w.mu.Lock()
	a.assignment.Epoch++
	a.assignment.Since[tp(1)] = a.assignment.Epoch
	a.assignment.Partitions = []element.TopicPartition{tp(0), tp(1)}
	a.look()
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	a.r.Revoke(ctx, []element.TopicPartition{tp(1)})
	w.mu.Lock()
	a.changed()
	w.mu.Unlock()
	time.Sleep(50 * time.Millisecond)
	w.move(a, b, 0, 1)
	stopB := b.start(b.config(), cb.logging(t))
	w.produce(30, 6)
	w.caughtUp()
	require.NoError(t, stopA())
	require.NoError(t, stopB())
	w.exact()
	require.Zero(t, ca.ended.Load()+cb.ended.Load())
	require.Empty(t, ca.joined)
}

// A late partition's start position is committed, and the attempt fails before the next checkpoint: it goes on at that
// position, without state, and not where its source would begin now.
func TestALatePartitionGoesOnAtItsCommittedStart(t *testing.T) {
	w := newWorld(t, 2)
	w.assign(1)
	var ca watch
	var started, failed atomic.Bool
	w.onCommit = func(c checkpoint.Commit) (bool, error) {
		switch {
		case c.Name.ID == 0 || len(c.Offsets) < 2 || started.CompareAndSwap(false, true):
			return true, nil
		case failed.CompareAndSwap(false, true):
			return false, errors.New("the commit is aborted")
		}
		return true, nil
	}
	stop := w.start(w.config(), ca.logging(t))
	w.produce(40, 8)
	require.Eventually(t, w.works(0), patient, time.Millisecond)
	w.give(w.member, 1)
	w.produce(40, 8)
	w.caughtUp()
	require.True(t, failed.Load())
	require.NoError(t, stop())
	w.exact()
	require.EqualValues(t, 1, ca.ended.Load())
}

// All that an instance had leaves while a late partition is on its way in: it becomes the only one, and the checkpoint with
// its start position has no state of anybody in it.
func TestALatePartitionMayBeTheOnlyOne(t *testing.T) {
	w := newWorld(t, 2)
	w.others = true
	w.assign(1)
	a, b := w.member, w.join("i2")
	var ca, cb watch
	var slow atomic.Bool
	reading, read := make(chan struct{}), make(chan struct{})
	ports := a.ports()
	ports.Offsets = slowOffsets{a, func(ctx context.Context, tps []element.TopicPartition) error {
		if slices.Contains(tps, tp(1)) && slow.CompareAndSwap(true, false) {
			reading <- struct{}{}
			<-read
		}
		return nil
	}}
	stopA := a.startWith(a.config(), ports, ca.logging(t))
	w.produce(10, 8)
	require.Eventually(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.committed[tp(0)].Offset > 0 }, patient, time.Millisecond)
	slow.Store(true)
	w.give(a, 1)
	<-reading
	w.move(a, b, patient, 0)
	stopB := b.start(b.config(), cb.logging(t))
	close(read)
	w.produce(40, 8)
	w.caughtUp()
	w.move(a, b, patient, 1)
	w.produce(40, 8)
	w.caughtUp()
	require.NoError(t, stopA())
	require.NoError(t, stopB())
	w.exact()
	require.Zero(t, ca.ended.Load()+cb.ended.Load())
}

// A task is taken in while the sink is about to look whether everybody has passed the barrier of the checkpoint in flight,
// which does not cover it. There is no moment at which its writer is there and does not hold back.
//
//	loop: the writer of task 1 is made          seal of n: has task 1 passed n?
//	loop: it holds back since n
func TestAWriterThatComesDuringASealHoldsBackFromTheBeginning(t *testing.T) {
	w := newWorld(t, 2)
	w.others = true
	a, b := w.member, w.join("i2")
	var ca, cb watch
	stopB := func() func() error { w.move(a, b, 0, 1); return b.start(b.config(), cb.logging(t)) }()
	ports := a.ports()
	came := make(chan struct{})
	ports.NewSink = func() (Sink, error) {
		sink, err := a.ports().NewSink()
		return slowWriters{sink, func(task element.TaskID) {
			if task.Partition == 1 {
				close(came)
				time.Sleep(20 * time.Millisecond)
			}
		}}, err
	}
	stopA := a.startWith(a.config(), ports, ca.logging(t))
	w.produce(40, 4)
	w.caughtUp()
	var waited atomic.Bool
	sealing := make(chan struct{})
	w.onSeal = func(element.CheckpointID) error {
		if w.found(0)() && waited.CompareAndSwap(false, true) {
			close(sealing)
			<-came
		}
		return nil
	}
	w.append(0)
	<-sealing
	w.move(b, a, patient, 1)
	w.produce(40, 4)
	w.caughtUp()
	require.NoError(t, stopA())
	require.NoError(t, stopB())
	w.exact()
	require.Zero(t, ca.ended.Load()+cb.ended.Load())
}

// slowWriters takes its time after a writer was made.
type slowWriters struct {
	Sink
	made func(element.TaskID)
}

func (s slowWriters) Writer(task element.TaskID, behind ...element.CheckpointID) SinkWriter {
	w := s.Sink.Writer(task, behind...)
	s.made(task)
	return w
}

// A partition comes from an instance whose ids are far above while a checkpoint is in flight whose root is not written yet.
// That root follows what was committed when it was triggered, not the root that the partition brings along.
func TestAPartitionWithHighIDsComesBeforeTheRootIsWritten(t *testing.T) {
	w := newWorld(t, 2)
	w.others = true
	a, b := w.member, w.join("i2")
	var ca, cb watch
	w.move(a, b, 0, 1)
	stopB := b.startFrom(1000, cb.logging(t))
	stopA := a.start(a.config(), ca.logging(t))
	w.produce(40, 4)
	w.caughtUp()
	var waited atomic.Bool
	sealing, seal := make(chan struct{}), make(chan struct{})
	w.onSeal = func(id element.CheckpointID) error {
		if id < 1000 && waited.CompareAndSwap(false, true) {
			close(sealing)
			<-seal
		}
		return nil
	}
	w.append(0)
	<-sealing
	w.move(b, a, patient, 1)
	require.Eventually(t, func() bool { ca.mu.Lock(); defer ca.mu.Unlock(); return len(ca.joined) == 1 }, patient, time.Millisecond)
	close(seal)
	w.produce(40, 4)
	w.caughtUp()
	require.NoError(t, stopA())
	require.NoError(t, stopB())
	w.exact()
	require.Zero(t, ca.ended.Load()+cb.ended.Load())
	infos, err := a.repo.List(t.Context())
	require.NoError(t, err)
	for _, info := range infos {
		require.NoError(t, info.Err)
	}
}

// startFrom starts a member as if it had taken checkpoints up to an id.
func (m *member) startFrom(last element.CheckpointID, lis *Listener) (stop func() error) {
	r, err := New(countPlan(m.w.t), m.config(), m.ports(), lis)
	require.NoError(m.w.t, err)
	r.lastID = last
	return m.run(r)
}

// append adds one record to a partition.
func (w *world) append(p int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logs[p] = append(w.logs[p], element.Record{Key: fmt.Appendf(nil, "k%d", p), Value: []byte("x"), Offset: int64(len(w.logs[p]))})
	close(w.grew)
	w.grew = make(chan struct{})
}

// Partitions come into use one after the other while those that are there move, in order, in haste or without a word, and
// anything may fail and instances stop and come back: no member stops for good, no goroutine is left, and the output is exact.
func TestLatePartitionsComeAndMoveAtRandomWhileAnythingFails(t *testing.T) {
	seed := rand.Uint64()
	if s := os.Getenv("ENGINE_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("seed %d: ENGINE_SEED=%d go test ./engine -run TestLatePartitionsComeAndMoveAtRandomWhileAnythingFails", seed, seed)
	const partitions = 24
	w := newWorld(t, partitions)
	w.others = true
	w.assign(1)
	w.lag = 10 * time.Millisecond
	members := []*member{w.member, w.join("i2"), w.join("i3")}
	f := &flaky{rnd: rand.New(rand.NewPCG(seed, 1))}
	w.wrap = func(c Checkpoints) Checkpoints { return flakyStore{c, f} }
	w.onSeal = func(element.CheckpointID) error { return f.attempt(40, func() error { return nil }) }
	w.onCommit = func(checkpoint.Commit) (bool, error) {
		err, done := f.fails(40)
		return done, err
	}
	var stopped sync.Map
	start := func(m *member) func() error {
		ports := m.ports()
		ports.Committer, ports.Offsets = flakyCommitter{m, f}, flakyOffsets{m, f}
		cfg := m.config()
		cfg.MaxChain, cfg.Interval = 3, 3*time.Millisecond
		return m.startWith(cfg, ports, &Listener{AttemptEnded: func(n int, err error, class fault.Recovery, _ time.Duration) {
			if err != nil && class == fault.Stop {
				stopped.Store(m.name, fmt.Sprintf("%s, attempt %d: %v", m.name, n, err))
			}
		}})
	}
	goroutines := runtime.NumGoroutine()
	stops := make([]func() error, len(members))
	for i, m := range members {
		stops[i] = start(m)
	}
	late := 1
	for began := time.Now(); time.Since(began) < 2*time.Second; time.Sleep(time.Duration(f.draw(4)) * time.Millisecond) {
		w.produce(f.draw(40), 53)
		if late < partitions && f.draw(8) == 0 {
			n := min(partitions-late, 1+f.draw(3))
			ps := make([]int32, n)
			for i := range ps {
				ps[i] = int32(late + i)
			}
			w.give(members[f.draw(len(members))], ps...)
			late += n
		}
		from, to := members[f.draw(len(members))], members[f.draw(len(members))]
		if f.draw(40) == 0 {
			i := slices.Index(members, from)
			require.NoError(t, stops[i]())
			stops[i] = start(from)
		}
		if owned := from.owns(); len(owned) > 0 && from != to && f.draw(3) > 0 {
			budget := []time.Duration{0, time.Millisecond, 10 * time.Millisecond, patient, patient, patient}[f.draw(6)]
			at := f.draw(len(owned))
			w.move(from, to, budget, owned[at:min(len(owned), at+1+f.draw(3))]...)
		}
	}
	for ; late < partitions; late++ {
		w.give(members[0], int32(late))
	}
	f.end()
	w.produce(10, 53)
	stopped.Range(func(_, why any) bool { t.Error(why); return true })
	require.False(t, t.Failed())
	w.caughtUp()
	for _, stop := range stops {
		require.NoError(t, stop())
	}
	w.exact()
	for end := time.Now().Add(patient); runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("goroutines are left:\n%s", stacks[:runtime.Stack(stacks, true)])
		}
	}
}

// A late partition moves on when nothing but its start position is committed. The ids of its checkpoints go on from there: a
// root that its first owner wrote and could not commit must not look newer than all that its next owner commits.
func TestTheIDsOfALatePartitionGoOnFromItsStart(t *testing.T) {
	w := newWorld(t, 2)
	w.others = true
	w.assign(1)
	a, b := w.member, w.join("i2")
	stopA, stopB := a.startFrom(1000, nil), b.start(b.config(), nil)
	w.append(0)
	require.Eventually(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.output) == 1 }, patient, time.Millisecond)
	w.give(a, 1)
	require.Eventually(t, w.found(1), patient, time.Millisecond)
	w.move(a, b, patient, 1)
	w.append(1)
	w.caughtUp()
	w.mu.Lock()
	require.Greater(t, w.commits[len(w.commits)-1], element.CheckpointID(1001))
	w.mu.Unlock()
	require.NoError(t, stopA())
	require.NoError(t, stopB())
	w.exact()
}
