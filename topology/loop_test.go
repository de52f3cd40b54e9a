package topology_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

func TestALoopThroughATopicIsSaidAloud(t *testing.T) {
	build := func(readers string, opts ...topology.SinkOption) *topology.Builder {
		b := topology.New("app")
		jobs := topology.FromTopic(b, "jobs", readers, serde.String(), serde.String())
		topology.ToTopic(jobs, "again", "jobs", serde.String(), serde.String(), opts...)
		return b
	}
	require.Equal(t, `application app
source jobs: topic jobs, key string, value string, start committed
└─ sink again: topic jobs, key string (as read), value string (as read), loop
`, planOf(t, build("jobs", topology.Loop())).Describe())

	_, err := build("jobs").Plan()
	require.ErrorContains(t, err, `sink "again": topic "jobs" is read by source "jobs": a loop; where that is meant, say so with Loop()`)
	_, err = build("others", topology.Loop()).Plan()
	require.ErrorContains(t, err, `sink "again": it has Loop(), but no source reads topic "jobs"`)

	b := topology.New("app")
	jobs := topology.FromTopic(b, "jobs", "jobs", serde.String(), serde.String(), topology.EndAt(topology.EndLatest()))
	topology.ToTopic(jobs, "again", "jobs", serde.String(), serde.String(), topology.Loop())
	_, err = b.Plan()
	require.ErrorContains(t, err, `sink "again": source "jobs", which reads the loop, has an end: what goes round would lie behind it`)
}

func TestAKeyFunctionMayLeaveRecordsOut(t *testing.T) {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	s := topology.GroupByRec(in, "g", serde.String(), serde.String(), func(r *topology.Rec[string, string]) (string, bool, error) {
		if r.Tombstone {
			return "", false, topology.ErrTombstone
		}
		return r.Value, false, nil
	})
	topology.ToTopic(s, "out", "out", serde.String(), serde.String())
	g := newGraph(t, planOf(t, b), 1, 128, nil, nil)
	require.NoError(t, g.process("in", 0, kv(0, "a", "x"), rec(1, []byte("a"), nil), kv(2, "b", "y")), "the policy is to fail")
	require.NoError(t, g.settle(first))
	require.ElementsMatch(t, []string{"x=x", "y=y"}, pairs(g.out["out"]))
	require.Equal(t, []string{"g: tombstone"}, g.skips())
	g.close()
}
