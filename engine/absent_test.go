package engine

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// topicsPlan counts per key what is in some topics, behind one exchange or each by itself.
func topicsPlan(t *testing.T, exchange bool, topics ...string) *topology.Plan {
	b := topology.New(app)
	var all []topology.Stream[string, string]
	for _, topic := range topics {
		in := topology.FromTopic(b, topic, topic, serde.String(), serde.String())
		if all = append(all, in); !exchange {
			topology.ToTopic(topology.Count(in, "count-"+topic), "out-"+topic, "out", serde.String(), serde.Int64())
		}
	}
	if exchange {
		in := all[0]
		if len(all) > 1 {
			in = topology.Merge("all", all[0], all[1:]...)
		}
		by := topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(2))
		topology.ToTopic(topology.Count(by, "count"), "out", "out", serde.String(), serde.Int64())
	}
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// refusedStart is the error of a start that is refused.
func (w *world) refusedStart(plan *topology.Plan, cfg Config) error {
	return w.refusedAs(fault.HandleMismatch, plan, cfg)
}

func (w *world) refusedAs(code fault.Code, plan *topology.Plan, cfg Config) error {
	w.t.Helper()
	r, err := New(plan, cfg, withFrom(w.ports()), nil)
	require.NoError(w.t, err)
	err = r.Run(w.t.Context())
	require.Equal(w.t, code, fault.CodeOf(err), "%v", err)
	return err
}

// endsEarly runs a process that ends before its first checkpoint is committed.
func (w *world) endsEarly(plan *topology.Plan, cfg Config) {
	w.t.Helper()
	cfg.Restart = restart.Config{Strategy: restart.None}
	w.onCommit = func(c checkpoint.Commit) (apply bool, err error) {
		if c.Name.ID > 0 {
			return false, errSpoiled
		}
		return true, nil
	}
	r, err := New(plan, cfg, withFrom(w.ports()), nil)
	require.NoError(w.t, err)
	require.ErrorIs(w.t, r.Run(w.t.Context()), errSpoiled)
	w.onCommit = nil
}

// TestAStartOverIsNotOlderThanTheStore: a partition that the store knows and the savepoint does not begins anew, and the process
// ends before its first checkpoint. The next one goes on from there.
func TestAStartOverIsNotOlderThanTheStore(t *testing.T) {
	w := newWorld(t, 1)
	ref := w.cut(topicsPlan(t, false, "in"), aligned, 50)
	begin := contents(t, ref.Path)
	w.logs, w.more = append(w.logs, nil), 1
	w.assign(2)
	stop := w.startPlan(topicsPlan(t, false, "in", "more"), w.config(), w.ports(), nil)
	w.produce(100, 8)
	w.outputs()
	w.caughtUp()
	require.NoError(t, stop())
	w.forget()
	w.output = nil

	cfg := w.configOf(app, ref.Path)
	cfg.From.AcceptDuplicates = true
	w.endsEarly(topicsPlan(t, false, "in", "more"), cfg)
	require.Len(t, w.committed, 1, "the start position of what the savepoint does not hold")
	stop = w.startPlan(topicsPlan(t, false, "in", "more"), cfg, withFrom(w.ports()), nil)
	w.outputsFrom(begin)
	w.caughtUp()
	require.NoError(t, stop())
	has := 0
	for _, n := range begin {
		has += int(n)
	}
	require.Equal(t, w.total()-has, w.done(), "one output for every input behind the savepoint")
}

// without runs what is left when the topic "more" was taken out for some checkpoints.
func (w *world) without(plan *topology.Plan) {
	w.t.Helper()
	w.assign(1)
	stop := w.startPlan(plan, w.config(), w.ports(), nil)
	for range 3 {
		w.produce(40, 8)
		require.Eventually(w.t, func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.committed[tp(0)].Offset == int64(len(w.logs[0]))
		}, 10*time.Second, time.Millisecond)
	}
	require.NoError(w.t, stop())
	w.assign(2)
}

// tookOut is a world with an exchange that has read two topics, and then one of them.
func tookOut(t *testing.T) *world {
	w := newWorld(t, 2)
	w.more = 1
	w.assign(2)
	stop := w.startPlan(topicsPlan(t, true, "in", "more"), w.config(), w.ports(), nil)
	w.produce(100, 8)
	w.outputs()
	w.caughtUp()
	require.NoError(t, stop())
	w.without(topicsPlan(t, true, "in"))
	return w
}

// TestATopicIsTakenOutAndComesBack: nothing repeats and nothing is left out, also when the process is killed before the first
// checkpoint that has the topic again.
func TestATopicIsTakenOutAndComesBack(t *testing.T) {
	w := tookOut(t)
	w.endsEarly(topicsPlan(t, true, "in", "more"), w.config())
	back := element.TaskID{Source: "more"}
	had, err := snapshot.ParseHandle(w.committed[element.TopicPartition{Topic: "more"}].Metadata)
	require.NoError(t, err)
	for n := range 2 {
		var said losses
		stop := w.startPlan(topicsPlan(t, true, "in", "more"), w.config(), w.ports(), said.listener())
		w.produce(50, 8)
		w.outputs()
		w.caughtUp()
		require.NoError(t, stop())
		require.Empty(t, said.empty, "its handle says nothing of that")
		if n == 0 {
			require.Equal(t, map[element.TaskID]snapshot.RootRef{back: had.Root}, said.back)
		} else {
			require.Empty(t, said.back)
		}
	}
	w.exact()
}

// TestATopicIsTakenOutAndComesBackWithoutOffset: it begins where its source starts on request only, and what is committed then is
// not older than what lies in the store.
func TestATopicIsTakenOutAndComesBackWithoutOffset(t *testing.T) {
	w := tookOut(t)
	more := element.TopicPartition{Topic: "more"}
	had := w.committed[more]
	delete(w.committed, more)
	before := maps.Clone(w.committed)
	plan := topicsPlan(t, true, "in", "more")
	require.ErrorContains(t, w.refusedStart(plan, w.config()), "begin it where its source starts with --allow-dropped-state")
	require.Equal(t, before, w.committed)

	cfg := w.config()
	cfg.AllowDropped = true
	w.endsEarly(plan, cfg)
	h, err := snapshot.ParseHandle(w.committed[more].Metadata)
	require.NoError(t, err)
	require.Equal(t, snapshot.HandleEmpty, h.Kind)
	require.Zero(t, h.Offset)
	then, err := snapshot.ParseHandle(had.Metadata)
	require.NoError(t, err)
	require.Greater(t, h.Root.Name.ID, then.Root.Name.ID)
	stop := w.startPlan(plan, w.config(), w.ports(), nil)
	w.caughtUp()
	require.NoError(t, stop())
}

// TestAllSourcesAreReplaced: what the stages have goes on request only. It is said, and once it is granted the start after a crash
// needs no request any more.
func TestAllSourcesAreReplaced(t *testing.T) {
	for _, disabled := range []bool{false, true} {
		w := newWorld(t, 2)
		w.more = 1
		w.without(topicsPlan(t, true, "in"))
		w.assign(0)
		w.mu.Lock()
		w.gain(slices.Values([]int32{1}))
		w.mu.Unlock()
		begun := w.committed[tp(0)]
		plan, cfg := topicsPlan(t, true, "more"), w.config()
		cfg.NoSnapshots = disabled
		require.ErrorContains(t, w.refusedAs(fault.StateMismatch, plan, cfg), "holds state count/aggregate of it, and nothing of what the topology reads now; give the topology one of its sources back (in), beside the others")
		require.Equal(t, map[element.TopicPartition]Committed{tp(0): begun}, w.committed)

		cfg.AllowDropped = true
		w.endsEarly(plan, cfg)
		then, err := snapshot.ParseHandle(begun.Metadata)
		require.NoError(t, err)
		h, err := snapshot.ParseHandle(w.committed[w.at(1)].Metadata)
		require.NoError(t, err)
		require.NotEqual(t, snapshot.HandleCheckpoint, h.Kind)
		require.GreaterOrEqual(t, h.Root.Name.ID, then.Root.Name.ID)
		cfg.AllowDropped = false
		for range 2 {
			stop := w.startPlan(plan, cfg, w.ports(), nil)
			w.produce(20, 8)
			require.Eventually(t, func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.committed[w.at(1)].Offset == int64(len(w.logs[1]))
			}, 10*time.Second, time.Millisecond)
			require.NoError(t, stop())
		}
	}
}

// handOnPlan hands on what is in a topic over an exchange, without state.
func handOnPlan(t *testing.T, topic string) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, topic, topic, serde.String(), serde.String())
	by := topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(2))
	topology.ToTopic(by, "out", "out", serde.String(), serde.String())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// TestSourcesThatAreReplacedTwice: where the checkpoints hold nothing all sources may be replaced unasked. What the new ones lead to
// is newer than what is in the store, so that it is not let go unasked, either, when it holds something.
func TestSourcesThatAreReplacedTwice(t *testing.T) {
	w := newWorld(t, 2)
	w.more = 1
	w.without(handOnPlan(t, "in"))
	w.assign(0)
	w.mu.Lock()
	w.gain(slices.Values([]int32{1}))
	w.mu.Unlock()
	then, err := snapshot.ParseHandle(w.committed[tp(0)].Metadata)
	require.NoError(t, err)
	for _, plan := range []*topology.Plan{handOnPlan(t, "more"), topicsPlan(t, true, "more")} {
		stop := w.startPlan(plan, w.config(), w.ports(), nil)
		w.produce(20, 8)
		require.Eventually(t, func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.committed[w.at(1)].Offset == int64(len(w.logs[1]))
		}, 10*time.Second, time.Millisecond)
		require.NoError(t, stop())
		h, err := snapshot.ParseHandle(w.committed[w.at(1)].Metadata)
		require.NoError(t, err)
		require.Greater(t, h.Root.Name.ID, then.Root.Name.ID)
	}
	w.assign(1)
	require.ErrorContains(t, w.refusedAs(fault.StateMismatch, topicsPlan(t, true, "in"), w.config()), "nothing of what the topology reads now")
}

// TestAllSourcesAreReplacedBehindACrash: the process was killed between the commit of a checkpoint and its marker, so that only the
// offsets tell that it was committed. Where they do not say so, it was not.
func TestAllSourcesAreReplacedBehindACrash(t *testing.T) {
	for name, begin := range map[string]func(*testing.T) *world{
		"by a topic that comes back": tookOut,
		"by a new one": func(t *testing.T) *world {
			w := newWorld(t, 2)
			w.more = 1
			w.without(topicsPlan(t, true, "in"))
			return w
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begin(t)
			then, err := snapshot.ParseHandle(w.committed[tp(0)].Metadata)
			require.NoError(t, err)
			back, _ := snapshot.ParseHandle(w.committed[w.at(1)].Metadata)
			infos, err := w.repo.List(t.Context())
			require.NoError(t, err)
			for _, info := range infos {
				if info.Marked && info.Ref.Name.ID > back.Root.Name.ID {
					require.NoError(t, os.Remove(filepath.Join(w.dir, strings.TrimSuffix(info.Ref.Path, ".root")+".committed")))
				}
			}
			w.assign(0)
			w.mu.Lock()
			w.gain(slices.Values([]int32{1}))
			w.mu.Unlock()
			plan, cfg := topicsPlan(t, true, "more"), w.config()
			for _, cfg.RecoverFromStore = range []bool{false, true} {
				err = w.refusedAs(fault.StateMismatch, plan, cfg)
				require.ErrorContains(t, err, "checkpoint "+then.Root.Name.String())
				require.ErrorContains(t, err, "holds state count/aggregate of it, and nothing of what the topology reads now; give the topology one of its sources back (in), beside the others")
			}
			cfg.RecoverFromStore = false
			w.mu.Lock()
			delete(w.committed, tp(0)) // as where the commit has failed
			w.mu.Unlock()
			stop := w.startPlan(plan, cfg, w.ports(), nil)
			w.produce(20, 8)
			w.inputDone(1)
			require.NoError(t, stop())
		})
	}
}

// inputDone waits until all of a log is committed.
func (w *world) inputDone(i int) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.committed[w.at(i)].Offset == int64(len(w.logs[i]))
	}, 10*time.Second, time.Millisecond)
}
