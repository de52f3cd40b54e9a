package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// besidePlan copies what is in one topic and counts what is in another.
func besidePlan(t *testing.T, counted string) *topology.Plan {
	b := topology.New(app)
	topology.ToTopic(topology.FromTopic(b, "x", "in", serde.String(), serde.String()), "copies", "out", serde.String(), serde.String())
	topology.ToTopic(topology.Count(topology.FromTopic(b, "a", counted, serde.String(), serde.String()), "count"), "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// TestAClaimedSavepointStaysForASourceOfAWrongTopic: the instance that has the source is refused, and told to give it back its
// topic. The other one, which has all that it reads, leaves the savepoint to it.
func TestAClaimedSavepointStaysForASourceOfAWrongTopic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.more = 1
	w.assign(2)
	ref := w.cut(besidePlan(t, "more"), aligned, 200)
	f := w.fork("fork", 2)
	f.more, f.second, f.others = 1, "wrong", true
	a, b := f.member, f.join("i2")
	b.fork("fork")
	f.assign(1)
	f.mu.Lock()
	b.gain(func(yield func(int32) bool) { yield(1) })
	f.mu.Unlock()

	configOf := func(m *member) Config {
		cfg := m.configOf("fork", ref.Path)
		cfg.From.Claim = true
		return cfg
	}
	r, err := New(besidePlan(t, "wrong"), configOf(b), withFrom(b.ports()), nil)
	require.NoError(t, err)
	err = r.Run(t.Context())
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "give it back its topic")

	var gone atomic.Bool
	stop := a.startPlan(besidePlan(t, "wrong"), configOf(a), withFrom(a.ports()), &Listener{Claimed: func([]string, error) { gone.Store(true) }})
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.committed[tp(0)].Found
	}, 10*time.Second, time.Millisecond)
	time.Sleep(3 * claimInterval)
	require.NoError(t, stop())
	require.False(t, gone.Load(), "it holds the only state of the source")
	require.DirExists(t, ref.Path)
}

// What is needed of a savepoint is what the plan reads, and what its sources read before, unless they go on with something else
// that it holds.
func TestWhatIsNeededOfAClaimedSavepoint(t *testing.T) {
	at := func(topic string, p int32) element.TopicPartition {
		return element.TopicPartition{Topic: topic, Partition: p}
	}
	entry := func(source, topic string, p int32) snapshot.TaskEntry {
		return snapshot.TaskEntry{Task: element.TaskID{Source: source, Partition: p}, Positions: []element.Position{{TopicPartition: at(topic, p)}}}
	}
	roots := []*snapshot.Root{
		{Tasks: []snapshot.TaskEntry{entry("x", "in", 0), entry("a", "more", 0), entry("a", "more", 1)}},
		{Tasks: []snapshot.TaskEntry{entry("z", "zs", 0)}},
	}
	for _, c := range []struct {
		counted    string
		partitions int32 // that it has now
		want       []element.TopicPartition
	}{
		{"more", 2, []element.TopicPartition{at("in", 0), at("more", 0), at("more", 1)}},
		{"wrong", 2, []element.TopicPartition{at("in", 0), at("more", 0), at("more", 1)}},
		{"wrong", 1, []element.TopicPartition{at("in", 0), at("more", 0)}},
		{"zs", 2, []element.TopicPartition{at("in", 0), at("more", 1), at("zs", 0)}}, // its second task would be refused
		{"zs", 1, []element.TopicPartition{at("in", 0), at("zs", 0)}},
	} {
		topics := map[string]Topic{"in": {Partitions: 1}, c.counted: {Partitions: c.partitions}}
		require.ElementsMatch(t, c.want, inputsOf(roots, besidePlan(t, c.counted), topics), "%s %d", c.counted, c.partitions)
	}
}
