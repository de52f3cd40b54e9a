package engine

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// flaky lets any step fail now and then, with any class, before it was done or after.
type flaky struct {
	mu   sync.Mutex
	rnd  *rand.Rand
	calm bool
}

// fails draws whether a call fails at all, and whether its work is done all the same.
func (f *flaky) fails(percent int) (err error, done bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calm || f.rnd.IntN(100) >= percent {
		return nil, true
	}
	class := []fault.Recovery{fault.Restart, fault.Rejoin, fault.Unconfirmed}[f.rnd.IntN(3)]
	return fault.New(class, fault.Failed, "planted: %w", errPlanted), f.rnd.IntN(2) == 0
}

func (f *flaky) draw(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rnd.IntN(n)
}

func (f *flaky) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calm = true
}

// attempt makes a call that may fail.
func (f *flaky) attempt(percent int, call func() error) error {
	err, done := f.fails(percent)
	if done {
		if cerr := call(); err == nil {
			err = cerr
		}
	}
	return err
}

type flakyStore struct {
	Checkpoints
	f *flaky
}

func (s flakyStore) Persist(ctx context.Context, name element.CheckpointName, d []snapshot.TaskDelta) (refs []snapshot.Persisted, err error) {
	return refs, s.f.attempt(3, func() (err error) { refs, err = s.Checkpoints.Persist(ctx, name, d); return err })
}

func (s flakyStore) WriteRoot(ctx context.Context, root *snapshot.Root) (ref snapshot.RootRef, err error) {
	return ref, s.f.attempt(3, func() (err error) { ref, err = s.Checkpoints.WriteRoot(ctx, root); return err })
}

func (s flakyStore) LoadRoots(ctx context.Context, refs []snapshot.RootRef) (roots map[snapshot.RootRef]snapshot.LoadedRoot, err error) {
	return roots, s.f.attempt(10, func() (err error) { roots, err = s.Checkpoints.LoadRoots(ctx, refs); return err })
}

func (s flakyStore) MarkCommitted(ctx context.Context, ref snapshot.RootRef) error {
	return s.f.attempt(20, func() error { return s.Checkpoints.MarkCommitted(ctx, ref) })
}

func (s flakyStore) Restore(ctx context.Context, entry snapshot.TaskEntry, keep func(state int, key []byte) bool, apply func(snapshot.Entry) error) (snapshot.Stats, error) {
	planted, _ := s.f.fails(15)
	left := s.f.draw(5)
	return s.Checkpoints.Restore(ctx, entry, keep, func(e snapshot.Entry) error {
		if left--; left < 0 && planted != nil {
			return planted
		}
		return apply(e)
	})
}

func (s flakyStore) Merge(ctx context.Context, name element.CheckpointName, entry snapshot.TaskEntry) (ref snapshot.RunRef, err error) {
	err = s.f.attempt(20, func() (err error) { ref, err = s.Checkpoints.Merge(ctx, name, entry); return err })
	if err != nil {
		s.Checkpoints.Forget(ref)
		ref = snapshot.RunRef{}
		if s.f.draw(2) == 0 { // as if a file were damaged: then the next checkpoint has the whole state
			err = fault.Stopf(fault.Corrupt, "%w", &snapshot.CorruptError{Checkpoint: name.String(), Kind: "run", Reason: "planted", Err: err})
		}
	}
	return ref, err
}

func (s flakyStore) Clean(ctx context.Context, committed []snapshot.RootRef, group snapshot.GroupRoots) (rep snapshot.CleanReport, err error) {
	return rep, s.f.attempt(10, func() (err error) { rep, err = s.Checkpoints.Clean(ctx, committed, group); return err })
}

type flakyCommitter struct {
	*member
	f *flaky
}

func (c flakyCommitter) Init(ctx context.Context) error {
	return c.f.attempt(15, func() error { return c.member.Init(ctx) })
}

type flakyOffsets struct {
	*member
	f *flaky
}

func (o flakyOffsets) Stable(ctx context.Context, tps []element.TopicPartition) (got map[element.TopicPartition]Committed, err error) {
	return got, o.f.attempt(10, func() (err error) { got, err = o.member.Stable(ctx, tps); return err })
}

// Anything may fail at any time, with any class of error, and the assignment may change under it: the output stays
// exact, the process goes on by itself, and so does its successor.
func TestAnythingMayFailAtAnyTime(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if s := os.Getenv("ENGINE_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("seed %d: ENGINE_SEED=%d go test ./engine -run TestAnythingMayFailAtAnyTime", seed, seed)
	w := newWorld(t, 3)
	for range 3 { // processes
		f := &flaky{rnd: rand.New(rand.NewPCG(seed, 1))}
		seed++
		w.wrap = func(c Checkpoints) Checkpoints { return flakyStore{c, f} }
		w.onSeal = func(element.CheckpointID) error { return f.attempt(3, func() error { return nil }) }
		w.onCommit = func(checkpoint.Commit) (bool, error) {
			err, done := f.fails(8)
			return done, err
		}
		ports := w.ports()
		ports.Committer, ports.Offsets = flakyCommitter{w.member, f}, flakyOffsets{w.member, f}
		cfg := w.config()
		cfg.MaxChain, cfg.Interval = 3, 2*time.Millisecond
		r, err := New(countPlan(t), cfg, ports, nil)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		for began := time.Now(); time.Since(began) < 500*time.Millisecond; time.Sleep(time.Millisecond) {
			w.produce(f.draw(30), 11)
			if f.draw(50) == 0 {
				w.assign(3)
			}
		}
		f.end()
		w.produce(10, 11)
		w.caughtUp()
		cancel()
		require.NoError(t, <-done)
		w.exact()
	}
}
