package processor

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// The tests of the files setting_*_test.go run the service once with a setting and once without it, or with two values, and
// look at what is different: each would fail if the setting did nothing.

// ending is how an attempt ended.
type ending struct {
	err   error
	delay time.Duration
}

// heard is what the listener was told.
type heard struct {
	mu        sync.Mutex
	triggered int
	completed []checkpoint.CheckpointStats
	abandoned int
	endings   []ending
}

func (h *heard) listener() engine.Listener {
	locked := func(f func()) {
		h.mu.Lock()
		defer h.mu.Unlock()
		f()
	}
	return engine.Listener{
		CheckpointTriggered: func(element.CheckpointID) { locked(func() { h.triggered++ }) },
		CheckpointCompleted: func(s checkpoint.CheckpointStats) { locked(func() { h.completed = append(h.completed, s) }) },
		CheckpointAbandoned: func(ids []element.CheckpointID, _ checkpoint.FailureReason, _ error) {
			locked(func() { h.abandoned += len(ids) })
		},
		AttemptEnded: func(_ int, err error, _ fault.Recovery, delay time.Duration) {
			locked(func() { h.endings = append(h.endings, ending{err, delay}) })
		},
	}
}

func (h *heard) triggers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.triggered
}

func (h *heard) done() []checkpoint.CheckpointStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]checkpoint.CheckpointStats(nil), h.completed...)
}

func (h *heard) givenUp() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.abandoned
}

func (h *heard) failures() []ending {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]ending(nil), h.endings...)
}

// settled is a service under test with one setting changed.
type settled struct {
	*bed
	*heard
	cfg  Config
	app  string
	seen atomic.Int64 // records that came to the step
	work func(v string) error
}

func newSettled(t *testing.T) *settled {
	s := &settled{bed: newBed(t), heard: &heard{}}
	s.cfg, s.app = s.config(), "setting"+os.Getenv(topicSuffix)
	s.cfg.Listener = s.listener()
	return s
}

// plan counts by key behind a step that does the test's work; with subtasks above 0 the step is behind an exchange.
func (s *settled) plan(subtasks int) *topology.Plan {
	b := topology.New(s.app)
	in := topology.FromTopic(b, "in", inTopic(), serde.String(), serde.String())
	if subtasks > 0 {
		in = topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(subtasks))
	}
	step := topology.MapRec(in, "step", func(r *topology.Rec[string, string], out *topology.Rec[string, string]) error {
		s.seen.Add(1)
		out.Value = r.Value
		if s.work != nil {
			return s.work(r.Value)
		}
		return nil
	})
	topology.ToTopic(topology.Count(step, "count"), "out", outTopic(), serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(s.t, err)
	return p
}

// flow produces a record now and then until the test ends.
func (s *settled) flow() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			s.cl.Produce(ctx, &kgo.Record{Key: fmt.Appendf(nil, "k%d", n%10), Value: []byte("v")}, nil)
			time.Sleep(5 * time.Millisecond)
		}
	})
	s.t.Cleanup(func() { cancel(); wg.Wait() })
}

// putKeys produces n records, each with a key of its own and a value of some size.
func (s *settled) putKeys(n, size int) {
	s.t.Helper()
	recs := make([]*kgo.Record, n)
	for i := range recs {
		recs[i] = &kgo.Record{Key: fmt.Appendf(nil, "key-%08d", i), Value: make([]byte, size)}
	}
	require.NoError(s.t, s.cl.ProduceSync(s.t.Context(), recs...).FirstErr())
}

func (s *settled) eventually(ok func() bool, what string) {
	s.t.Helper()
	require.Eventually(s.t, ok, 20*time.Second, 5*time.Millisecond, what)
}

// files counts the files of the checkpoint directory with an extension.
func (s *settled) files(ext string) (n int) {
	s.t.Helper()
	require.NoError(s.t, filepath.WalkDir(filepath.Join(s.dir, "checkpoints"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ext {
			n++
		}
		return nil // a file may go meanwhile
	}))
	return n
}

// persisting decorates where the state is written.
type persisting struct {
	engine.Checkpoints
	before func(ctx context.Context) error
}

func (p persisting) Persist(ctx context.Context, name element.CheckpointName, deltas []snapshot.TaskDelta) ([]snapshot.Persisted, error) {
	if err := p.before(ctx); err != nil {
		return nil, err
	}
	return p.Checkpoints.Persist(ctx, name, deltas)
}

// beforePersist has f called whenever the state of a checkpoint is about to be written.
func (s *settled) beforePersist(f func(context.Context) error) {
	s.cfg.Decorate = func(p *engine.Ports) { p.Checkpoints = persisting{p.Checkpoints, f} }
}

// hang waits for the end of what it is part of.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
