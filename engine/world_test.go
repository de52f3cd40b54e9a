package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
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

// world is everything outside the engine: a log per partition, the group's offsets, and transactional output. Its
// faults are functions that tests set; each is asked before the step it is named after.
type world struct {
	t    *testing.T
	repo *snapshot.Repository

	mu         sync.Mutex
	logs       [][]element.Record // by partition
	committed  map[element.TopicPartition]Committed
	open       []element.Record // output of the open transaction
	sealed     element.CheckpointID
	output     []element.Record // committed
	commits    []element.CheckpointID
	assignment Assignment
	changes    chan struct{}
	grew       chan struct{} // closed and replaced when a log grows
	inits      int
	staleReads int // stable reads that give nothing although something is committed

	onSeal   func(id element.CheckpointID) error
	onCommit func(c checkpoint.Commit) (apply bool, err error)
	wrap     func(Checkpoints) Checkpoints
}

const app = "world"

func newWorld(t *testing.T, partitions int) *world {
	repo, err := snapshot.OpenRepository(t.Context(), snapshot.Config{Dir: t.TempDir(), Application: app, Instance: "i1", NumRetained: 2,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, repo.Close()) })
	w := &world{t: t, repo: repo, logs: make([][]element.Record, partitions), committed: map[element.TopicPartition]Committed{},
		changes: make(chan struct{}, 1), grew: make(chan struct{})}
	w.assign(partitions)
	return w
}

func (w *world) assign(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.assignment = Assignment{Epoch: w.assignment.Epoch + 1, Since: map[element.TopicPartition]uint64{}}
	for p := range n { // all of them were lost and gained again
		w.assignment.Partitions = append(w.assignment.Partitions, tp(int32(p)))
		w.assignment.Since[tp(int32(p))] = w.assignment.Epoch
	}
	select {
	case w.changes <- struct{}{}:
	default:
	}
}

// produce appends records with values 1, 2, … of the keys in turn.
func (w *world) produce(n, keys int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range n {
		p := 0
		total := 0
		for i := range w.logs {
			total += len(w.logs[i])
		}
		k := total % keys
		p = k % len(w.logs)
		w.logs[p] = append(w.logs[p], element.Record{Key: fmt.Appendf(nil, "k%d", k), Value: []byte("x"), Offset: int64(len(w.logs[p]))})
	}
	close(w.grew)
	w.grew = make(chan struct{})
}

// produceUntil produces little by little until cond holds.
func (w *world) produceUntil(cond func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !cond() {
		require.True(w.t, time.Now().Before(deadline), "what the test waits for did not happen")
		w.produce(20, 7)
		time.Sleep(time.Millisecond)
	}
}

// Group, Offsets.
func (w *world) Changes() <-chan struct{} { return w.changes }
func (w *world) Err() error               { return nil }
func (w *world) Current() Assignment {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Assignment{Epoch: w.assignment.Epoch, Partitions: slices.Clone(w.assignment.Partitions), Since: maps.Clone(w.assignment.Since)}
}

func (w *world) Stable(_ context.Context, tps []element.TopicPartition) (map[element.TopicPartition]Committed, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[element.TopicPartition]Committed{}
	if w.staleReads > 0 {
		w.staleReads-- // as of before the first commit
		return out, nil
	}
	for _, p := range tps {
		out[p] = w.committed[p]
	}
	return out, nil
}

func (w *world) Start(_ context.Context, _ topology.Start, tps []element.TopicPartition) (map[element.TopicPartition]int64, error) {
	out := map[element.TopicPartition]int64{}
	for _, p := range tps {
		out[p] = 0
	}
	return out, nil
}

func (w *world) Topics(_ context.Context, names []string) (map[string]Topic, error) {
	out := map[string]Topic{}
	for _, n := range names {
		out[n] = Topic{ID: element.TopicID{1}, Partitions: int32(len(w.logs))}
	}
	return out, nil
}

// Committer.
func (w *world) Init(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inits++
	w.open, w.sealed = nil, 0 // what a predecessor left open is aborted
	return nil
}

func (w *world) CommitInitial(ctx context.Context, c checkpoint.Commit) error {
	return w.commit(c)
}

func (w *world) Commit(ctx context.Context, c checkpoint.Commit) error {
	if !c.Permit.Allows(c.Name.ID) {
		return errors.New("commit without a permit")
	}
	return w.commit(c)
}

func (w *world) commit(c checkpoint.Commit) error {
	apply, err := true, error(nil)
	if w.onCommit != nil {
		apply, err = w.onCommit(c)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range c.Offsets {
		if since := w.assignment.Since[o.Position.TopicPartition]; since == 0 || since != o.Epoch {
			return fault.New(fault.Rejoin, fault.Failed, "ownership epoch %d of %s is over", o.Epoch, o.Position.TopicPartition)
		}
	}
	if w.sealed != c.Name.ID {
		return fmt.Errorf("commit of %d, sealed is %d", c.Name.ID, w.sealed)
	}
	if apply {
		for _, o := range c.Offsets {
			w.committed[o.Position.TopicPartition] = Committed{Found: true, Offset: o.Position.Offset, LeaderEpoch: o.Position.LeaderEpoch, Metadata: o.Metadata}
		}
		w.output = append(w.output, w.open...)
		w.commits = append(w.commits, c.Name.ID)
	}
	w.open, w.sealed = nil, 0
	return err
}

func (w *world) FenceGone(context.Context) {}

func (w *world) Abort(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open, w.sealed = nil, 0
	return nil
}

// worldSource delivers the logs in small pieces.
type worldSource struct {
	w    *world
	next []element.Position
}

func (s *worldSource) Add(ps ...element.Position) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.next = append(s.next, ps...)
	close(s.w.grew)
	s.w.grew = make(chan struct{})
	return nil
}

func (s *worldSource) Remove(tps ...element.TopicPartition) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.next = slices.DeleteFunc(s.next, func(p element.Position) bool { return slices.Contains(tps, p.TopicPartition) })
}

func (s *worldSource) Pause(...element.TopicPartition)  {}
func (s *worldSource) Resume(...element.TopicPartition) {}
func (s *worldSource) Close()                           {}
func (s *worldSource) Run(ctx context.Context, deliver func(context.Context, element.Delivery) error) error {
	for {
		s.w.mu.Lock()
		grew := s.w.grew
		var d element.Delivery
		for i := range s.next {
			pos := &s.next[i]
			if log := s.w.logs[pos.Partition]; int(pos.Offset) < len(log) {
				n := min(len(log)-int(pos.Offset), 1+rand.IntN(20))
				d = element.Delivery{From: pos.TopicPartition, Records: slices.Clone(log[pos.Offset : int(pos.Offset)+n]), Next: pos.Offset + int64(n), LeaderEpoch: 0}
				pos.Offset = d.Next
				break
			}
		}
		s.w.mu.Unlock()
		if d.Next > 0 {
			if err := deliver(ctx, d); err != nil {
				return err
			}
			continue
		}
		select {
		case <-grew:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// worldSink writes into the open transaction, holding back after barriers as a sink must: one queue per barrier that was
// passed and not released yet.
type worldSink struct {
	w    *world
	mu   sync.Mutex
	held map[element.TaskID][]worldQueue
	over bool
}

type worldQueue struct {
	after element.CheckpointID
	recs  []element.Record
}

func (s *worldSink) Writer(task element.TaskID) SinkWriter { return &worldWriter{s, task} }

func (s *worldSink) Seal(_ context.Context, id element.CheckpointID) error {
	if s.w.onSeal != nil {
		if err := s.w.onSeal(id); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for task, qs := range s.held {
		if len(qs) == 0 || qs[0].after != id {
			return fmt.Errorf("seal %d: task %s holds %v", id, task, qs)
		}
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.sealed = id
	return nil
}

func (s *worldSink) Release(id element.CheckpointID) error {
	time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	for task, qs := range s.held {
		if qs[0].after != id {
			return fmt.Errorf("release %d: task %s holds since %d", id, task, qs[0].after)
		}
		s.w.open = append(s.w.open, qs[0].recs...)
		if s.held[task] = qs[1:]; len(qs) == 1 {
			delete(s.held, task)
		}
	}
	return nil
}

func (s *worldSink) Drop(task element.TaskID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, task)
}

func (s *worldSink) Discard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

type worldWriter struct {
	s    *worldSink
	task element.TaskID
}

func (w *worldWriter) Write(_ context.Context, _ int, recs []element.Record) error {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if w.s.over {
		return errors.New("discarded")
	}
	if qs := w.s.held[w.task]; len(qs) > 0 {
		last := &qs[len(qs)-1]
		last.recs = append(last.recs, recs...)
		return nil
	}
	w.s.w.mu.Lock()
	defer w.s.w.mu.Unlock()
	if w.s.w.sealed != 0 {
		return errors.New("write into a sealed transaction")
	}
	w.s.w.open = append(w.s.w.open, recs...)
	return nil
}

func (w *worldWriter) Barrier(id element.CheckpointID) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.held[w.task] = append(w.s.held[w.task], worldQueue{after: id})
}

// worldState is the store behind the engine's interface.
type worldState struct{ *store.Store }

func (s worldState) Table(name, codec string) (topology.StateTable, error) {
	return s.Store.Table(name, codec)
}
func (s worldState) Freeze(id element.CheckpointID) Frozen { return worldFrozen{s.Store.Freeze(id)} }
func (s worldState) Load(e snapshot.Entry) error {
	name := s.Tables()[e.State].Name
	if e.Deleted {
		return s.LoadDelete(name, e.Key)
	}
	return s.Store.Load(name, e.Key, e.Value)
}

type worldFrozen struct{ *store.Frozen }

func (f worldFrozen) Sorted() iter.Seq[snapshot.Entry] {
	return func(yield func(snapshot.Entry) bool) {
		for e := range f.Frozen.Sorted() {
			if !yield(snapshot.Entry{State: e.Table, Key: e.Key, Value: e.Value, Deleted: e.Deleted}) {
				return
			}
		}
	}
}

// countPlan counts per key, in text so that failures can be read.
func countPlan(t *testing.T) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	topology.ToTopic(topology.Count(in, "count"), "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

func (w *world) ports() Ports {
	var cp Checkpoints = w.repo
	if w.wrap != nil {
		cp = w.wrap(cp)
	}
	return Ports{
		Group: w, Offsets: w, Committer: w, Checkpoints: cp,
		NewSource: func(p []element.Position) (Source, error) { return &worldSource{w, slices.Clone(p)}, nil },
		NewSink:   func() (Sink, error) { return &worldSink{w: w, held: map[element.TaskID][]worldQueue{}}, nil },
		NewState:  func(element.TaskID) State { return worldState{store.New(store.Config{})} },
	}
}

func (w *world) config() Config {
	return Config{Application: app, Instance: "i1", ClusterID: "c1", Incarnation: element.Incarnation(1 + rand.Uint64()>>1),
		Partitions: len(w.logs), Interval: 5 * time.Millisecond, InitialBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond}
}

// start runs the engine until stop.
func (w *world) start(cfg Config, lis *Listener) (stop func() error) {
	r, err := New(countPlan(w.t), cfg, w.ports(), lis)
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(10 * time.Second):
			return errors.New("the engine did not stop")
		}
	}
}

// caughtUp waits until everything produced is covered by the committed offsets.
func (w *world) caughtUp() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for p := range w.logs {
			if w.committed[tp(int32(p))].Offset != int64(len(w.logs[p])) {
				return false
			}
		}
		return true
	}, 10*time.Second, time.Millisecond)
}

// exact checks the oracle: per key the outputs are 1…n, each once and in order, one for every input.
func (w *world) exact() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	want := map[string]int64{}
	for _, log := range w.logs {
		for _, r := range log {
			want[string(r.Key)]++
		}
	}
	got := map[string]int64{}
	for i, r := range w.output {
		n, err := serde.Int64().Decode(r.Value)
		require.NoError(w.t, err)
		require.Equal(w.t, got[string(r.Key)]+1, n, "output %d of key %s after commits %v", i, r.Key, w.commits)
		got[string(r.Key)] = n
	}
	require.Equal(w.t, want, got)
	ids := slices.DeleteFunc(slices.Clone(w.commits), func(id element.CheckpointID) bool { return id == 0 }) // 0: of start positions
	require.True(w.t, slices.IsSorted(ids), "ids of commits %v", w.commits)
}
