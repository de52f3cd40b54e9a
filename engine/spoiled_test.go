package engine

import (
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

var errTorn = errors.New("the whole state cannot be read")

// torn is a state of which only a part is read, when bad is set, where the whole is asked for. Its changes can be read.
type torn struct {
	State
	bad *atomic.Bool
}

func (s torn) FreezeFull(id element.CheckpointID) Frozen {
	return &tornFrozen{Frozen: s.State.FreezeFull(id), bad: s.bad}
}

type tornFrozen struct {
	Frozen
	bad    *atomic.Bool
	failed atomic.Bool
}

func (f *tornFrozen) Full() iter.Seq[snapshot.Entry] {
	return func(yield func(snapshot.Entry) bool) {
		for e := range f.Frozen.Full() {
			if !yield(e) {
				return
			}
			if f.bad.Load() {
				f.failed.Store(true)
				return
			}
		}
	}
}

func (f *tornFrozen) Err() error {
	if f.failed.Load() {
		return errTorn
	}
	return f.Frozen.Err()
}

// endings listens to the errors of attempts.
type endings struct {
	mu   sync.Mutex
	errs []error
}

func (e *endings) listener() *Listener {
	return &Listener{AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if err != nil {
			e.errs = append(e.errs, err)
		}
	}}
}

func (e *endings) all() []error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]error(nil), e.errs...)
}

// A state whose changes were written and that cannot be read whole is no savepoint, and a checkpoint all the same.
func TestASavepointThatCannotBeReadIsNoFailureOfTheCheckpoint(t *testing.T) {
	w := newWorld(t, 1)
	dir := t.TempDir()
	var bad atomic.Bool
	var opened atomic.Int64
	var ended endings
	ports := withSavepoints(w.ports(), &opened)
	open := ports.NewState
	ports.NewState = func(id element.TaskID) State { return torn{open(id), &bad} }
	r, err := New(countPlan(t), w.config(), ports, ended.listener())
	require.NoError(t, err)
	stop := w.run(r)
	w.produceUntil(func() bool { return w.done() > 50 })
	bad.Store(true)
	for range 3 {
		_, err = r.Savepoint(t.Context(), "", dir)
		require.ErrorContains(t, err, errTorn.Error())
	}
	list, err := snapshot.ListSavepoints(t.Context(), dir)
	require.NoError(t, err)
	require.Empty(t, list)
	w.caughtUp()
	bad.Store(false)
	ref, err := r.Savepoint(t.Context(), "", dir)
	require.NoError(t, err)
	require.Equal(t, w.counts(), contents(t, ref.Path))
	w.outputs()
	require.NoError(t, stop())
	require.Empty(t, ended.all())
	w.exact()
}

// Where the whole state is the checkpoint it is the checkpoint's failure, and the next attempt does not go on with a state that
// cannot be read whole.
func TestAStateThatCannotBeReadWholeIsNotKept(t *testing.T) {
	w := newWorld(t, 1)
	var made atomic.Int64
	var first, never atomic.Bool
	var ended endings
	ports := w.ports()
	open := ports.NewState
	ports.NewState = func(id element.TaskID) State {
		if made.Add(1) == 1 {
			return torn{open(id), &first}
		}
		return torn{open(id), &never}
	}
	cfg := w.config()
	cfg.FullSnapshots = true
	stop := w.startPlan(countPlan(t), cfg, ports, ended.listener())
	w.produce(50, 7)
	w.caughtUp()
	first.Store(true)
	w.produce(50, 7)
	w.caughtUp()
	w.outputs()
	require.NoError(t, stop())
	require.EqualValues(t, 2, made.Load())
	require.Len(t, ended.all(), 1)
	require.ErrorIs(t, ended.all()[0], errTorn)
	w.exact()
}

// misled counts per key, and gives up for good when it misses what must be there. lose takes the values away, at a record or at
// a timer.
type misled struct {
	lose func()
	at   string
	n    *topology.Value[int64]
	seen int
}

func (m *misled) Open(ctx *topology.ProcessContext) error {
	m.n = topology.ValueState(ctx, "n", serde.Int64())
	return nil
}

func (m *misled) Process(ctx *topology.ProcessContext, in *topology.Rec[string, string], out *topology.Collector[string, int64]) error {
	if m.at == "timer" {
		ctx.SetTimer(time.UnixMilli(in.Offset))
		n, _ := m.n.Get()
		m.n.Set(n)
		return nil
	}
	return m.count(in.Offset > 20, out)
}

func (m *misled) OnTimer(_ *topology.ProcessContext, _ string, _ time.Time, out *topology.Collector[string, int64]) error {
	return m.count(true, out)
}

func (m *misled) count(known bool, out *topology.Collector[string, int64]) error {
	if m.seen++; m.seen == 30 {
		m.lose()
	}
	n, ok := m.n.Get()
	if known && !ok {
		if m.at == "panic" {
			panic("a phantom")
		}
		return topology.Permanent(errors.New("a phantom"))
	}
	m.n.Set(n + 1)
	out.Emit(n + 1)
	return nil
}

// User code that fails since the state cannot be read is not to blame: the attempt ends for the state, and the next one goes on.
func TestUserCodeThatMissesWhatCannotBeReadIsNotToBlame(t *testing.T) {
	for name, c := range map[string]struct {
		at       string
		exchange bool
	}{
		"a record": {"record", false}, "a parcel": {"record", true}, "a timer": {"timer", false}, "a panic": {"panic", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			b := topology.New(app)
			in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
			if c.exchange {
				in = topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(1))
			}
			var first atomic.Bool // of the first state of the step
			var once sync.Once
			step := func() topology.Processor[string, string, int64] {
				return &misled{at: c.at, lose: func() { once.Do(func() { first.Store(true) }) }}
			}
			topology.ToTopic(topology.Process(in, "step", step), "out", "out", serde.String(), serde.Int64())
			plan, err := b.Plan()
			require.NoError(t, err)
			var closed atomic.Int64
			var ended endings
			var mu sync.Mutex
			made := map[element.TaskID]bool{}
			ports := w.ports()
			open := ports.NewState
			ports.NewState = func(id element.TaskID) State {
				mu.Lock()
				defer mu.Unlock()
				bad := &first
				if made[id] || c.exchange == (id.Source == "in") {
					bad = &atomic.Bool{}
				}
				made[id] = true
				return unreadable{open(id), bad, &closed}
			}
			stop := w.startPlan(plan, w.config(), ports, ended.listener())
			w.produce(60, 7)
			w.outputs()
			require.NoError(t, stop())
			require.Len(t, ended.all(), 1)
			require.ErrorIs(t, ended.all()[0], errUnread)
			require.ErrorContains(t, ended.all()[0], "a phantom")
			require.Equal(t, fault.Restart, fault.RecoveryOf(ended.all()[0]))
			_, blamed := restart.RecordOf(ended.all()[0])
			require.False(t, blamed)
			w.exact()
		})
	}
}

// Whole states that cannot be read for want of something that all tasks need, such as room on disk, fail one attempt and not
// one for each task: the next one keeps none of those that the checkpoint was to have whole, though it came to read one only.
func TestStatesThatWereToBeReadWholeAreNotKept(t *testing.T) {
	w := newWorld(t, 4)
	var first, bad atomic.Bool
	first.Store(true)
	var never atomic.Bool
	var ended endings
	ports := w.ports()
	open := ports.NewState
	ports.NewState = func(id element.TaskID) State {
		if first.Load() {
			return torn{open(id), &bad}
		}
		return torn{open(id), &never}
	}
	cfg := w.config()
	cfg.FullSnapshots = true
	stop := w.startPlan(countPlan(t), cfg, ports, ended.listener())
	w.produceUntil(func() bool { return w.done() > 100 })
	w.caughtUp()
	first.Store(false)
	bad.Store(true) // of all states that there are
	w.produceUntil(func() bool { return len(ended.all()) > 0 })
	w.outputs()
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
	require.Len(t, ended.all(), 1)
	require.ErrorIs(t, ended.all()[0], errTorn)
}
