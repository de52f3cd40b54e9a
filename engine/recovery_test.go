package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
	"github.com/millweir/millweir/topology"
)

// reading wraps the checkpoints: the first restores break off in the middle.
type reading struct {
	Checkpoints
	breaks *atomic.Int64 // how many restores still break off
	after  int           // entries
}

func (r reading) Restore(ctx context.Context, entry snapshot.TaskEntry, keep func(state int, key []byte) bool, apply func(snapshot.Entry) error) (snapshot.Stats, error) {
	n := 0
	breaks := len(entry.Runs) > 0 && r.breaks.Add(-1) >= 0
	return r.Checkpoints.Restore(ctx, entry, keep, func(e snapshot.Entry) error {
		if n++; breaks && n > r.after {
			return errPlanted
		}
		return apply(e)
	})
}

// A restore that breaks off leaves part of the state in memory. The next attempt must read it again from the start.
func TestAStateThatWasReadHalfwayIsNotReused(t *testing.T) {
	w := newWorld(t, 2)
	stop := w.start(w.config(), nil)
	w.produce(500, 20)
	w.caughtUp()
	require.NoError(t, stop())

	var breaks, failed atomic.Int64
	breaks.Store(2)
	w.wrap = func(c Checkpoints) Checkpoints { return reading{Checkpoints: c, breaks: &breaks, after: 3} }
	stop = w.start(w.config(), &Listener{AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) {
		if errors.Is(err, errPlanted) {
			failed.Add(1)
		}
	}})
	w.produce(500, 20)
	w.caughtUp()
	require.NoError(t, stop())
	require.NotZero(t, failed.Load(), "the planted failure happened")
	w.exact()
}

// seventySeven is a count.
var seventySeven = binary.BigEndian.AppendUint64(nil, 77)

// stale is a local copy that loads a key too many and is then found to be of no use.
type stale struct {
	farewells
	loads atomic.Int64
}

func (s *stale) Restore(_ context.Context, _ snapshot.RootRef, _ snapshot.TaskEntry, load func(snapshot.Entry) error) (snapshot.Stats, bool) {
	s.loads.Add(1)
	for k := range 50 { // no checkpoint says anything of those behind the first ones
		if err := load(snapshot.Entry{Key: fmt.Appendf(nil, "k%d", k), Value: seventySeven}); err != nil {
			panic(err)
		}
	}
	return snapshot.Stats{}, false
}

// Nothing of a local copy that is of no use becomes state.
func TestWhatAStaleCopyHasLoadedIsThrownAway(t *testing.T) {
	w := newWorld(t, 2)
	stop := w.start(w.config(), nil)
	w.produce(100, 7)
	w.caughtUp()
	require.NoError(t, stop())
	copies := &stale{}
	ports := w.ports()
	ports.Local = copies
	stop = w.startWith(w.config(), ports, nil)
	w.produce(100, 20)
	w.caughtUp()
	require.NoError(t, stop())
	require.EqualValues(t, 2, copies.loads.Load())
	w.exact()
}

// twoStatesPlan is countPlan with a second keyed step behind the first.
func twoStatesPlan(t *testing.T) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	topology.ToTopic(topology.Count(in, "count"), "out", "out", serde.String(), serde.Int64())
	topology.ToTopic(topology.Count(in, "again"), "out2", "out2", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// A step that is new in the topology has a state that no checkpoint lists yet. The attempt that meets it first may fail
// before its first commit; the next one reuses the state in memory and must still know of the new one.
func TestAStateNewInTheTopologySurvivesARollBack(t *testing.T) {
	w := newWorld(t, 2)
	stop := w.start(w.config(), nil)
	w.produce(200, 7)
	w.caughtUp()
	require.NoError(t, stop())

	first := failOnce(1, errPlanted)
	w.wrap = func(c Checkpoints) Checkpoints { return failing{Checkpoints: c, persist: first} }
	var reused atomic.Int64
	r, err := New(twoStatesPlan(t), w.config(), w.ports(), &Listener{Reused: func(element.TaskID, snapshot.RootRef) { reused.Add(1) }})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	w.produce(200, 7)
	w.caughtUp()
	cancel()
	require.NoError(t, <-done)
	require.NotZero(t, reused.Load(), "states were reused after the planted failure")

	// What was committed can be read again, both states.
	restored := map[string]int{}
	for _, c := range w.committed {
		h, err := snapshot.ParseHandle(c.Metadata)
		require.NoError(t, err)
		root, err := w.repo.ReadRoot(t.Context(), h.Root)
		require.NoError(t, err)
		for _, task := range root.Tasks {
			_, err := w.repo.Restore(t.Context(), task, nil, func(e snapshot.Entry) error {
				restored[task.States[e.State].Name]++
				return nil
			})
			require.NoError(t, err)
		}
		break // all handles name the same root
	}
	require.Len(t, restored, 2)
}

// unreachable wraps the committer: some of the calls of Init fail.
type unreachable struct {
	Committer
	init func() error
}

func (u unreachable) Init(ctx context.Context) error {
	if err := u.init(); err != nil {
		return err
	}
	return u.Committer.Init(ctx)
}

// While the broker cannot be reached, attempts end before they have read anything. The states in memory stay for the one
// that succeeds.
func TestStatesInMemoryOutliveAttemptsThatDidNotGetToThem(t *testing.T) {
	w := newWorld(t, 2)
	seal := failOnce(4, errPlanted)
	w.onSeal = func(element.CheckpointID) error { return seal() }
	var inits, reused, restored atomic.Int64
	ports := w.ports()
	ports.Committer = unreachable{w, func() error {
		if n := inits.Add(1); n > 1 && n < 5 {
			return errPlanted
		}
		return nil
	}}
	r, err := New(countPlan(t), w.config(), ports, &Listener{
		Reused:   func(element.TaskID, snapshot.RootRef) { reused.Add(1) },
		Restored: func(element.TaskID, snapshot.RootRef, snapshot.Stats, time.Duration) { restored.Add(1) },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	w.produceUntil(func() bool { return reused.Load()+restored.Load() > 0 })
	w.caughtUp()
	cancel()
	require.NoError(t, <-done)
	w.exact()
	require.Zero(t, restored.Load())
	require.EqualValues(t, 2, reused.Load())
}

// An attempt whose sinks cannot be opened ends like any other that fails.
func TestSinksThatCannotBeOpenedAreTriedAgain(t *testing.T) {
	w := newWorld(t, 2)
	ports := w.ports()
	open, first := ports.NewSink, failOnce(1, errPlanted)
	ports.NewSink = func() (Sink, error) {
		if err := first(); err != nil {
			return nil, err
		}
		return open()
	}
	r, err := New(countPlan(t), w.config(), ports, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	w.produce(100, 7)
	w.caughtUp()
	cancel()
	require.NoError(t, <-done)
	w.exact()
}

// measured notes the most uncommitted bytes that a task's state ever had.
type measured struct {
	worldState
	most *atomic.Int64
}

func (m measured) UncommittedBytes() int64 {
	n := m.worldState.UncommittedBytes()
	for {
		if old := m.most.Load(); n <= old || m.most.CompareAndSwap(old, n) {
			return n
		}
	}
}

// While min-pause lets no checkpoint start, the state changed since the last one stays within its limit: the task waits, or
// behind an exchange the sources do, and goes on by itself.
func TestUncommittedStateStaysBoundedDuringMinPause(t *testing.T) {
	t.Parallel()
	for name, plan := range map[string]*topology.Plan{"chained": countPlan(t), "behind an exchange": exchangePlan(t, 2)} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			var most atomic.Int64
			ports := w.ports()
			ports.NewState = func(element.TaskID) State { return measured{worldState{store.New(store.Config{})}, &most} }
			cfg := w.config()
			cfg.InboxRecords, cfg.ChannelRecords, cfg.UncommittedLimit, cfg.MinPause = 50, 50, 10_000, 100*time.Millisecond
			stop := w.startPlan(plan, cfg, ports, nil)
			w.produce(5000, 5000) // each key changes once: about 50 bytes
			w.caughtUp()
			require.NoError(t, stop())
			w.exact()
			require.Less(t, most.Load(), 2*cfg.UncommittedLimit+200*60, "two times the limit and what the inbox, a channel and a delivery hold")
		})
	}
}

// Attempts leave nothing behind: neither goroutines nor open files.
func TestManyAttemptsLeaveNothingBehind(t *testing.T) {
	w := newWorld(t, 3)
	var seals, ended atomic.Int64
	var calm atomic.Bool
	w.onSeal = func(element.CheckpointID) error {
		if !calm.Load() && seals.Add(1)%3 == 0 {
			return errPlanted
		}
		return nil
	}
	cfg := w.config()
	cfg.MaxChain = 2
	stop := w.start(cfg, &Listener{AttemptEnded: func(int, error, fault.Recovery, time.Duration) { ended.Add(1) }})
	after := func(n int64) (goroutines, files int) {
		w.produceUntil(func() bool { return ended.Load() >= n })
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc/self/fd here")
		}
		return runtime.NumGoroutine(), len(entries)
	}
	g1, f1 := after(20)
	var g2, f2 int
	for n := int64(40); n <= 200; n += 20 {
		g2, f2 = after(n)
	}
	w.caughtUp()
	calm.Store(true)
	require.NoError(t, stop())
	w.exact()
	require.LessOrEqual(t, g2, g1+15)
	require.LessOrEqual(t, f2, f1+10)
}

// A partition that was added to a topic after the source had started is read from its beginning, also with start latest:
// what was written to it before anybody noticed must not be lost.
func TestAPartitionAddedLaterStartsAtItsBeginning(t *testing.T) {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String(), topology.StartAt(topology.Latest()))
	topology.ToTopic(in, "out", "out", serde.String(), serde.String())
	plan, err := b.Plan()
	require.NoError(t, err)
	starts := make(map[element.TopicPartition]topology.StartKind)
	run := func(partitions int) {
		w := newWorld(t, partitions)
		for p := range partitions / 2 {
			h := snapshot.Handle{Kind: snapshot.HandleEmpty, ClusterID: "c1", StoreID: w.repo.StoreID(), TopicID: element.TopicID{1}, PartitionCount: int32(partitions / 2), Partition: int32(p)}
			h.Root.Name.Incarnation = 7
			text, err := h.Encode()
			require.NoError(t, err)
			w.committed[tp(int32(p))] = Committed{Found: true, Metadata: text}
		}
		ports := w.ports()
		ports.Offsets = asked{w, starts}
		r, err := New(plan, w.config(), ports, nil)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		w.produce(50, 7)
		w.caughtUp()
		cancel()
		require.NoError(t, <-done)
	}
	run(1)
	require.Equal(t, map[element.TopicPartition]topology.StartKind{tp(0): topology.StartLatest}, starts)
	clear(starts)
	run(4)
	require.Equal(t, map[element.TopicPartition]topology.StartKind{tp(2): topology.StartEarliest, tp(3): topology.StartEarliest}, starts)
}

// asked notes which start positions were asked for.
type asked struct {
	Offsets
	starts map[element.TopicPartition]topology.StartKind
}

func (a asked) Start(ctx context.Context, start topology.Start, tps []element.TopicPartition) (map[element.TopicPartition]int64, error) {
	for _, p := range tps {
		a.starts[p] = start.Kind
	}
	return a.Offsets.Start(ctx, start, tps)
}

// hanging wraps the offsets: the stable read gets no answer.
type hanging struct {
	Offsets
	asked chan<- struct{}
}

func (h hanging) Stable(ctx context.Context, _ []element.TopicPartition) (map[element.TopicPartition]Committed, error) {
	close(h.asked)
	<-ctx.Done()
	return nil, ctx.Err()
}

// Before the first record there is nothing that a stop would have to commit: it does not wait for a restore, or for a
// broker that gives no answer.
func TestAStopBeforeTheFirstRecordIsImmediate(t *testing.T) {
	w := newWorld(t, 1)
	ports, asked := w.ports(), make(chan struct{})
	ports.Offsets = hanging{w, asked}
	r, err := New(countPlan(t), w.config(), ports, nil) // with a shutdown timeout of 30 s
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	<-asked
	cancel()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(5 * time.Second):
		t.Fatal("it waits")
	}
}

// A loss of ownership is followed by the next attempt at once, but one attempt after the other that commits nothing
// waits as after any failure: the group's answer may be the same for long.
func TestRejoiningAgainAndAgainBacksOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.onCommit = func(c checkpoint.Commit) (bool, error) {
		if c.Name.ID <= 2 {
			return true, nil
		}
		return false, fault.New(fault.Rejoin, fault.Failed, "not known to the group")
	}
	cfg := w.config()
	cfg.LossDelay = 100 * time.Millisecond
	var delays []time.Duration
	ended := make(chan struct{}, 100)
	stop := w.start(cfg, &Listener{AttemptEnded: func(_ int, err error, _ fault.Recovery, delay time.Duration) {
		if err != nil && len(delays) < 4 {
			delays = append(delays, delay)
			ended <- struct{}{}
		}
	}})
	w.produceUntil(func() bool { return len(ended) == 4 })
	require.NoError(t, stop())
	require.Zero(t, delays[0], "the first one after a commit")
	for _, d := range delays[1:] {
		require.NotZero(t, d)
	}
}

// watched wraps the checkpoints: it looks at what is kept in memory whenever a state is read.
type watched struct {
	Checkpoints
	look func()
}

func (w watched) Restore(ctx context.Context, entry snapshot.TaskEntry, keep func(state int, key []byte) bool, apply func(snapshot.Entry) error) (snapshot.Stats, error) {
	w.look()
	return w.Checkpoints.Restore(ctx, entry, keep, apply)
}

// A state in memory that turns out to be of no use is let go before its successor is read: large states must not be there
// twice.
func TestAStateOfNoUseIsLetGoBeforeItIsReadAgain(t *testing.T) {
	w := newWorld(t, 2)
	lost := failOnce(4, fault.New(fault.Unconfirmed, fault.Failed, "no answer"))
	w.onCommit = func(checkpoint.Commit) (bool, error) { return true, lost() }
	var r *Runner
	var reads, kept atomic.Int64
	w.wrap = func(c Checkpoints) Checkpoints {
		return watched{c, func() { reads.Add(1); kept.Add(int64(len(r.kept))) }}
	}
	r, err := New(countPlan(t), w.config(), w.ports(), nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	w.produceUntil(func() bool { return reads.Load() == 2 })
	w.caughtUp()
	cancel()
	require.NoError(t, <-done)
	w.exact()
	require.Zero(t, kept.Load())
}

// A process that was frozen between its read of the offsets and its look into the checkpoint directory sees checkpoints
// of its successor that its offsets do not know. That is no reason to stop and to ask for offsets to be put back.
func TestARefusalThatASecondReadDoesNotConfirmIsNone(t *testing.T) {
	w := newWorld(t, 2)
	stop := w.start(w.config(), nil)
	w.produce(100, 5)
	w.caughtUp()
	require.NoError(t, stop())
	w.mu.Lock()
	w.staleReads = 1
	w.mu.Unlock()
	var rejoined atomic.Int64
	stop = w.start(w.config(), &Listener{AttemptEnded: func(_ int, err error, rec fault.Recovery, _ time.Duration) {
		if rec == fault.Rejoin {
			rejoined.Add(1)
		}
	}})
	w.produce(100, 5)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
	require.EqualValues(t, 1, rejoined.Load())
	// What a second read confirms is refused.
	w.mu.Lock()
	w.staleReads = 2
	w.mu.Unlock()
	r, err := New(countPlan(t), w.config(), w.ports(), nil)
	require.NoError(t, err)
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(r.Run(t.Context())))
}

// Files of the committed chain vanish under a running service. The state in memory replaces them (see
// TestARunWhoseFileGoesIsReplacedByTheWholeState); where there is none they end it, with the file's name: not at the write of
// the next root, where a replaced process would see the same, but when the files are read again and are still not there.
func TestAFileThatVanishesIsFoundByTheNextRestore(t *testing.T) {
	w := newWorld(t, 1)
	var w2 watch
	vanish := func() {
		files, err := filepath.Glob(filepath.Join(w.repo.Location(), app, "i1", "*.data"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, f := range files {
			require.NoError(t, os.Remove(f))
		}
	}
	stop := w.startWith(w.config(), w.ports(), w2.logging(t))
	w.produce(50, 5)
	w.caughtUp()
	vanish()
	w.produce(50, 5)
	w.caughtUp()
	require.NoError(t, stop())
	require.LessOrEqual(t, w2.ended.Load(), int64(1))
	w.exact()
	vanish()
	r, err := New(countPlan(t), w.config(), w.ports(), nil)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- r.Run(t.Context()) }()
	select {
	case err = <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the service goes on, or tries for ever")
	}
	require.Equal(t, fault.Corrupt, fault.CodeOf(err))
	require.ErrorContains(t, err, ".data")
	require.ErrorContains(t, err, "restore task")
}
