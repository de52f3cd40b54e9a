package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
	"github.com/millweir/millweir/topology"
)

// world is everything outside the engine: a log per partition, the group's offsets, and transactional output. Its
// faults are functions that tests set; each is asked before the step it is named after.
type world struct {
	t       *testing.T
	dir     string
	others  bool // ids of several instances are not in order
	*member      // the first one, for tests that need no other

	mu         sync.Mutex
	logs       [][]element.Record // by partition
	committed  map[element.TopicPartition]Committed
	output     []element.Record // committed
	commits    []element.CheckpointID
	grew       chan struct{} // closed and replaced when a log grows
	staleReads int           // stable reads that give nothing although something is committed

	plain    bool                             // at least once: output is there when it is written
	more     int                              // so many of the last logs are those of a second topic
	second   string                           // its name
	ends     map[element.TopicPartition]int64 // of a bounded run
	lag      time.Duration                    // until a member knows what it owns, at most; commits count by what it really owns
	slowDrop time.Duration
	onSeal   func(id element.CheckpointID) error
	onCommit func(c checkpoint.Commit) (apply bool, err error)
	wrap     func(Checkpoints) Checkpoints
}

// member is one instance: its part of the group, its transaction and its files.
type member struct {
	w    *world
	name string
	repo *snapshot.Repository
	r    *Runner

	// guarded by world.mu
	open       []element.Record // output of the open transaction
	sealed     element.CheckpointID
	assignment Assignment
	view       Assignment // what it knows of that
	changes    chan struct{}
	inits      int
}

const app = "world"

func newWorld(t *testing.T, partitions int) *world {
	w := &world{t: t, dir: t.TempDir(), logs: make([][]element.Record, partitions), committed: map[element.TopicPartition]Committed{}, grew: make(chan struct{}), ends: map[element.TopicPartition]int64{}, second: "more"}
	w.member = w.join("i1")
	w.assign(partitions)
	return w
}

// join makes a further instance, which owns nothing yet.
func (w *world) join(name string) *member {
	m := &member{w: w, name: name, changes: make(chan struct{}, 1), assignment: Assignment{Since: map[element.TopicPartition]uint64{}}}
	m.reopen()
	return m
}

// reopen gives the member another repository, as another process has.
func (m *member) reopen() {
	repo, err := snapshot.OpenRepository(m.w.t.Context(), snapshot.Config{Dir: m.w.dir, Application: app, Instance: m.name, NumRetained: 2,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	require.NoError(m.w.t, err)
	m.w.t.Cleanup(func() { require.NoError(m.w.t, repo.Close()) })
	m.repo = repo
}

// assign takes everything away from a member and gives it the first n partitions.
func (m *member) assign(n int) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.assignment.Since = map[element.TopicPartition]uint64{}
	m.gain(func(yield func(int32) bool) {
		for p := range n {
			if !yield(int32(p)) {
				return
			}
		}
	})
}

// gain and lose change what the member owns. They need the lock.
func (m *member) gain(ps iter.Seq[int32]) {
	m.assignment.Epoch++
	for p := range ps {
		m.assignment.Since[m.w.at(int(p))] = m.assignment.Epoch
	}
	m.changed()
}

func (m *member) lose(ps ...int32) {
	m.assignment.Epoch++
	for _, p := range ps {
		delete(m.assignment.Since, tp(p))
	}
	m.changed()
}

func (m *member) changed() {
	m.assignment.Partitions = slices.SortedFunc(maps.Keys(m.assignment.Since), element.TopicPartition.Compare)
	if m.w.lag == 0 {
		m.look()
		m.tell()
		return
	}
	time.AfterFunc(time.Duration(rand.Int64N(int64(m.w.lag))), func() {
		m.w.mu.Lock()
		defer m.w.mu.Unlock()
		m.look()
		m.tell()
	})
}

// look shows the member what it owns, and tell says that there is something to look at. They need the lock.
func (m *member) look() {
	m.view = Assignment{Epoch: m.assignment.Epoch, Partitions: slices.Clone(m.assignment.Partitions), Since: maps.Clone(m.assignment.Since)}
}

func (m *member) tell() {
	select {
	case m.changes <- struct{}{}:
	default:
	}
}

// owns lists the member's partitions.
func (m *member) owns() []int32 {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	var ps []int32
	for _, p := range m.assignment.Partitions {
		ps = append(ps, p.Partition)
	}
	return ps
}

// at names the partition of a log, and index finds its log.
func (w *world) at(i int) element.TopicPartition {
	if first := len(w.logs) - w.more; i >= first {
		return element.TopicPartition{Topic: w.second, Partition: int32(i - first)}
	}
	return tp(int32(i))
}

func (w *world) index(p element.TopicPartition) int {
	if p.Topic == w.second {
		return len(w.logs) - w.more + int(p.Partition)
	}
	return int(p.Partition)
}

// move takes partitions from one member, in order within the budget, and gives them to another one.
func (w *world) move(from, to *member, budget time.Duration, ps ...int32) {
	var tps []element.TopicPartition
	for _, p := range ps {
		tps = append(tps, tp(p))
	}
	if budget > 0 && from.r != nil {
		ctx, cancel := context.WithTimeout(context.Background(), budget)
		from.r.Revoke(ctx, tps)
		cancel()
		time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond / 2) // the group takes its time, and names them as owned
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	from.lose(ps...)
	to.gain(slices.Values(ps))
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
func (m *member) Changes() <-chan struct{} { return m.changes }
func (m *member) Err() error               { return nil }
func (m *member) Current() Assignment {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return Assignment{Epoch: m.view.Epoch, Partitions: slices.Clone(m.view.Partitions), Since: maps.Clone(m.view.Since)}
}

func (m *member) Stable(_ context.Context, tps []element.TopicPartition) (map[element.TopicPartition]Committed, error) {
	w := m.w
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

func (m *member) Start(_ context.Context, start topology.Start, tps []element.TopicPartition) (map[element.TopicPartition]int64, error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	out := map[element.TopicPartition]int64{}
	for _, p := range tps {
		if out[p] = 0; start == topology.Latest() {
			out[p] = int64(len(m.w.logs[m.w.index(p)]))
		}
	}
	return out, nil
}

func (m *member) Ends(_ context.Context, end topology.End, tps []element.TopicPartition) (map[element.TopicPartition]int64, error) {
	w := m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[element.TopicPartition]int64{}
	for _, p := range tps {
		if _, known := w.ends[p]; !known && end.Bounded() {
			w.ends[p] = int64(len(w.logs[w.index(p)]))
		}
		out[p] = w.ends[p]
	}
	return out, nil
}

func (m *member) Outlived(context.Context) error { return nil }

func (m *member) RunOver(context.Context, []topology.SourcePlan) (bool, error) {
	w := m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for p, end := range w.ends {
		if w.committed[p].Offset < end {
			return false, nil
		}
	}
	return true, nil
}

func (m *member) Topics(_ context.Context, names []string) (map[string]Topic, error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	out := map[string]Topic{}
	for _, n := range names {
		out[n] = Topic{ID: element.TopicID{1}, Partitions: int32(len(m.w.logs) - m.w.more)}
		if n == m.w.second {
			out[n] = Topic{ID: element.TopicID{2}, Partitions: int32(m.w.more)}
		}
	}
	return out, nil
}

// Committer.
func (m *member) Init(context.Context) error {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.inits++
	m.open, m.sealed = nil, 0 // what a predecessor left open is aborted
	return nil
}

func (m *member) CommitInitial(ctx context.Context, c checkpoint.Commit) error {
	m.w.mu.Lock()
	if m.sealed == 0 && len(m.open) == 0 {
		m.sealed = c.Name.ID // in a transaction of its own
	}
	m.w.mu.Unlock()
	return m.commit(c)
}

func (m *member) Commit(ctx context.Context, c checkpoint.Commit) error {
	if !c.Permit.Allows(c.Name.ID) {
		return errors.New("commit without a permit")
	}
	return m.commit(c)
}

func (m *member) commit(c checkpoint.Commit) error {
	w := m.w
	apply, err := true, error(nil)
	if w.onCommit != nil {
		apply, err = w.onCommit(c)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range c.Offsets {
		if since := m.assignment.Since[o.Position.TopicPartition]; since == 0 || since != o.Epoch {
			return fault.New(fault.Rejoin, fault.Failed, "ownership epoch %d of %s is over", o.Epoch, o.Position.TopicPartition)
		}
	}
	if m.sealed != c.Name.ID {
		return fmt.Errorf("commit of %d, sealed is %d", c.Name.ID, m.sealed)
	}
	if apply {
		for _, o := range c.Offsets {
			w.committed[o.Position.TopicPartition] = Committed{Found: true, Offset: o.Position.Offset, LeaderEpoch: o.Position.LeaderEpoch, Metadata: o.Metadata}
		}
		w.output = append(w.output, m.open...)
		w.commits = append(w.commits, c.Name.ID)
	}
	m.open, m.sealed = nil, 0
	return err
}

func (m *member) FenceGone(context.Context) {}

func (m *member) Abort(context.Context) error {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.open, m.sealed = nil, 0
	return nil
}

// worldSource delivers the logs in small pieces.
type worldSource struct {
	w     *world
	next  []element.Position
	ends  map[element.TopicPartition]int64
	ended map[element.TopicPartition]bool
}

func (s *worldSource) SetEnds(ends map[element.TopicPartition]int64) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.ends == nil {
		s.ends, s.ended = map[element.TopicPartition]int64{}, map[element.TopicPartition]bool{}
	}
	maps.Copy(s.ends, ends)
}

// end gives where a partition ends, if it does.
func (s *worldSource) end(p element.Position) int64 {
	if end, ok := s.ends[p.TopicPartition]; ok {
		return end
	}
	return math.MaxInt64
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
			end := s.end(*pos)
			if pos.Offset >= end && !s.ended[pos.TopicPartition] {
				s.ended[pos.TopicPartition] = true
				d = element.Delivery{From: pos.TopicPartition, Next: pos.Offset, LeaderEpoch: -1, Ended: true}
				break
			}
			if log := s.w.logs[s.w.index(pos.TopicPartition)]; int64(len(log)) > pos.Offset && pos.Offset < end {
				n := min(len(log)-int(pos.Offset), 1+rand.IntN(20), int(min(end-pos.Offset, 1<<20)))
				d = element.Delivery{From: pos.TopicPartition, Records: slices.Clone(log[pos.Offset : int(pos.Offset)+n]), Next: pos.Offset + int64(n), LeaderEpoch: 0}
				pos.Offset = d.Next
				break
			}
		}
		s.w.mu.Unlock()
		if d.Next > 0 || d.Ended {
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
	w       *world
	m       *member
	mu      sync.Mutex
	writers map[element.TaskID]bool
	held    map[element.TaskID][]worldQueue
	over    bool
	back    []span // barriers that were taken back
}

type worldQueue struct {
	after element.CheckpointID
	recs  []element.Record
}

func (s *worldSink) Writer(task element.TaskID, behind ...element.CheckpointID) SinkWriter {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writers[task] = true
	for _, id := range behind {
		s.held[task] = append(s.held[task], worldQueue{after: id})
	}
	return &worldWriter{s, task}
}

func (s *worldSink) Seal(_ context.Context, id element.CheckpointID) error {
	if s.w.onSeal != nil {
		if err := s.w.onSeal(id); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w.plain {
		s.w.mu.Lock()
		defer s.w.mu.Unlock()
		s.m.sealed = id
		return nil
	}
	for task := range s.writers { // as strict as the real one: what is sealed must have everything, and nothing too much
		if qs := s.held[task]; len(qs) == 0 || qs[0].after != id {
			return fault.Stopf(fault.Failed, "seal %d: task %s holds %d queues", id, task, len(qs))
		}
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.m.sealed = id
	return nil
}

func (s *worldSink) Release(id element.CheckpointID) error {
	time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	for task, qs := range s.held {
		if qs[0].after > id {
			continue // it came when the barrier had passed the others, and has passed the next one already
		}
		if qs[0].after != id {
			return fmt.Errorf("release %d: task %s holds since %d", id, task, qs[0].after)
		}
		s.m.open = append(s.m.open, qs[0].recs...)
		if s.held[task] = qs[1:]; len(qs) == 1 {
			delete(s.held, task)
		}
	}
	return nil
}

func (s *worldSink) Resume(_ context.Context, id, last element.CheckpointID) error {
	time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if id <= s.m.sealed && s.m.sealed <= last {
		s.m.sealed = 0
	}
	s.back = append(s.back, span{id, last}) // who passes one of them now passes nothing
	for task, qs := range s.held {
		var kept []worldQueue
		for _, q := range qs {
			switch {
			case q.after < id || q.after > last:
				kept = append(kept, q)
			case len(kept) == 0:
				s.m.open = append(s.m.open, q.recs...)
			default:
				kept[len(kept)-1].recs = append(kept[len(kept)-1].recs, q.recs...)
			}
		}
		if s.held[task] = kept; len(kept) == 0 {
			delete(s.held, task)
		}
	}
	return nil
}

func (s *worldSink) Drop(task element.TaskID) {
	time.Sleep(s.w.slowDrop) // whatever is released until then is out
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, task)
	delete(s.writers, task)
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
	if w.s.w.plain {
		w.s.w.mu.Lock()
		defer w.s.w.mu.Unlock()
		w.s.w.output = append(w.s.w.output, recs...)
		return nil
	}
	if qs := w.s.held[w.task]; len(qs) > 0 {
		last := &qs[len(qs)-1]
		last.recs = append(last.recs, recs...)
		return nil
	}
	w.s.w.mu.Lock()
	defer w.s.w.mu.Unlock()
	if w.s.m.sealed != 0 {
		return errors.New("write into a sealed transaction")
	}
	w.s.m.open = append(w.s.m.open, recs...)
	return nil
}

func (w *worldWriter) Barrier(id element.CheckpointID) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if !w.s.w.plain && !slices.ContainsFunc(w.s.back, func(b span) bool { return b.has(id) }) {
		w.s.held[w.task] = append(w.s.held[w.task], worldQueue{after: id})
	}
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

func (s worldState) FreezeFull(id element.CheckpointID) Frozen {
	return worldFrozen{s.Store.FreezeFull(id)}
}

type worldFrozen struct{ *store.Frozen }

func (f worldFrozen) Full() iter.Seq[snapshot.Entry] {
	return func(yield func(snapshot.Entry) bool) {
		for e := range f.Frozen.Full() {
			if !yield(snapshot.Entry{State: e.Table, Key: e.Key, Value: e.Value, Deleted: e.Deleted}) {
				return
			}
		}
	}
}

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

// groupRoots gives the roots that are committed.
func (w *world) groupRoots(context.Context) (roots []snapshot.RootRef, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for tp, c := range w.committed {
		h, err := snapshot.ParseHandle(c.Metadata)
		if err != nil {
			return nil, fmt.Errorf("%v: %w", tp, err)
		}
		if h.Kind == snapshot.HandleCheckpoint {
			roots = append(roots, h.Root)
		}
	}
	return roots, nil
}

func (m *member) ports() Ports {
	var cp Checkpoints = m.repo
	if m.w.wrap != nil {
		cp = m.w.wrap(cp)
	}
	return Ports{
		Group: m, Offsets: m, Committer: m, Checkpoints: cp, GroupRoots: m.w.groupRoots,
		NewSource: func(p []element.Position) (Source, error) { return &worldSource{w: m.w, next: slices.Clone(p)}, nil },
		NewSink: func() (Sink, error) {
			return &worldSink{w: m.w, m: m, writers: map[element.TaskID]bool{}, held: map[element.TaskID][]worldQueue{}}, nil
		},
		NewState: func(element.TaskID) State { return worldState{store.New(store.Config{})} },
	}
}

func (m *member) config() Config {
	return Config{Application: app, Instance: m.name, ClusterID: "c1", Incarnation: element.Incarnation(1 + rand.Uint64()>>1),
		Interval: 5 * time.Millisecond, LossDelay: time.Millisecond,
		Restart: restart.Config{Exponential: restart.Exponential{InitialBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond}}}
}

// start runs the engine until stop.
func (m *member) start(cfg Config, lis *Listener) (stop func() error) {
	return m.startWith(cfg, m.ports(), lis)
}

func (m *member) startWith(cfg Config, ports Ports, lis *Listener) (stop func() error) {
	return m.startPlan(countPlan(m.w.t), cfg, ports, lis)
}

func (m *member) startPlan(plan *topology.Plan, cfg Config, ports Ports, lis *Listener) (stop func() error) {
	r, err := New(plan, cfg, ports, lis)
	require.NoError(m.w.t, err)
	return m.run(r)
}

func (m *member) run(r *Runner) (stop func() error) {
	m.r = r
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
			if w.committed[w.at(p)].Offset != int64(len(w.logs[p])) {
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
	if w.others {
		return
	}
	ids := slices.DeleteFunc(slices.Clone(w.commits), func(id element.CheckpointID) bool { return id == 0 }) // 0: of start positions
	require.True(w.t, slices.IsSorted(ids), "ids of commits %v", w.commits)
}
