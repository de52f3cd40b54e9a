package processor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/topology"
)

// commits sets the offsets of the group, as checkpoints would.
func (b *bed) commits(group string, at map[int32]int64) {
	b.t.Helper()
	os := kadm.Offsets{}
	for p, offset := range at {
		os.AddOffset(inTopic(), p, offset, -1)
	}
	require.NoError(b.t, kadm.NewClient(b.cl).CommitAllOffsets(b.t.Context(), group, os))
	b.groups[group], b.groups[endsGroup(group)] = true, true
}

func (b *bed) ends(r reads, end topology.End, ps ...int32) (offsets []int64) {
	b.t.Helper()
	var tps []element.TopicPartition
	for _, p := range ps {
		tps = append(tps, input(p))
	}
	got, err := r.Ends(b.t.Context(), end, tps)
	require.NoError(b.t, err)
	require.Len(b.t, got, len(ps))
	for _, tp := range tps {
		offsets = append(offsets, got[tp])
	}
	return offsets
}

func TestEndPositions(t *testing.T) {
	b := newBed(t)
	b.writes(0, 0, 10, func(i int) int64 { return 1000 + int64(i) })
	b.writes(2, 0, 6, func(i int) int64 { return []int64{100, 300, 200, 400, 350, 500}[i] })
	r := reads{cl: b.cl, group: "ends-of" + inTopic()}
	b.groups[endsGroup(r.group)] = true
	none, err := r.Ends(t.Context(), topology.Unbounded(), []element.TopicPartition{input(0)})
	require.NoError(t, err)
	require.Empty(t, none)
	require.Equal(t, []int64{10, 0, 6, 0}, b.ends(r, topology.EndLatest(), 0, 1, 2, 3))
	require.Equal(t, []int64{4, 0, 6, 0}, b.ends(r, topology.EndTimestamp(time.Unix(1004, 0)), 0, 1, 2, 3))
	require.Equal(t, []int64{0, 0, 1, 0}, b.ends(r, topology.EndTimestamp(time.Unix(250, 0)), 0, 1, 2, 3), "what follows is older and yet behind the end")
	named := topology.EndOffsets(map[int32]int64{0: 3, 1: 100, 2: 0})
	require.Equal(t, []int64{3, 100, 0}, b.ends(r, named, 0, 1, 2))
	_, err = r.Ends(t.Context(), named, []element.TopicPartition{input(3)})
	require.ErrorContains(t, err, "do not name partition 3")
	require.Equal(t, fault.BadFile, fault.CodeOf(err))

	// A transaction that is open comes after the end.
	tx, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.TransactionalID("tx"+inTopic()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer tx.Close()
	require.NoError(t, tx.BeginTransaction())
	require.NoError(t, tx.ProduceSync(t.Context(), &kgo.Record{Topic: inTopic(), Partition: 0, Value: []byte("open")}).FirstErr())
	b.writes(0, 10, 1, nil)
	require.Equal(t, []int64{10}, b.ends(r, topology.EndLatest(), 0))
	require.NoError(t, tx.EndTransaction(t.Context(), kgo.TryAbort))
}

func TestEndsAreThoseOfTheFirstStart(t *testing.T) {
	b := newBed(t)
	b.writes(0, 0, 10, nil)
	group := "run-of" + inTopic()
	r := reads{cl: b.cl, group: group}
	end := topology.EndLatest()
	require.Equal(t, []int64{10, 0}, b.ends(r, end, 0, 1))
	b.writes(0, 10, 5, nil)
	require.Equal(t, []int64{15, 0}, b.ends(r, end, 0, 1), "it died before checkpoint 0")
	b.commits(group, map[int32]int64{0: 0, 1: 0})
	b.writes(0, 15, 5, nil)
	b.writes(1, 0, 5, nil)
	b.writes(2, 0, 3, nil)
	for range 2 { // a restart, and another instance
		require.Equal(t, []int64{15, 0, 3}, b.ends(r, end, 0, 1, 2), "2 is started for the first time")
		b.commits(group, map[int32]int64{2: 0})
		b.writes(2, 3, 0, nil)
	}

	plan := passPlan(t, group, topology.EndAt(end))
	forget := func() bool {
		over, err := r.RunOver(t.Context(), plan.Sources)
		require.NoError(t, err)
		r.run, err = r.beginRun(t.Context(), plan.Sources) // a process starts
		require.NoError(t, err)
		return over
	}
	require.False(t, forget(), "nothing is reached")
	b.commits(group, map[int32]int64{0: 15, 1: 0, 2: 3})
	require.False(t, forget(), "partition 3 was never started")
	require.Equal(t, []int64{0}, b.ends(r, end, 3))
	b.commits(group, map[int32]int64{3: 0})
	require.True(t, forget())
	require.EqualValues(t, 2, r.run)
	require.False(t, forget(), "the next run has not begun")
	require.EqualValues(t, 2, r.run, "another instance that starts takes part in the same")
	require.Equal(t, []int64{20, 5, 3, 0}, b.ends(r, end, 0, 1, 2, 3), "a new run")
	require.False(t, forget())

	// What the source says now counts.
	require.Equal(t, []int64{0}, b.ends(r, topology.EndTimestamp(time.Unix(1, 0)), 0))
	require.Equal(t, []int64{20}, b.ends(r, end, 0))
	named := passPlan(t, group, topology.EndAt(topology.EndOffsets(map[int32]int64{0: 15, 1: 0, 2: 3, 3: 0})))
	over, err := r.RunOver(t.Context(), named.Sources)
	require.NoError(t, err)
	require.True(t, over)
}

// What a file says of partitions that are not there, or does not say of those that are, is told before anything is joined.
func TestEndOffsetsThatDoNotFitTheTopicAreAnErrorOfTheFile(t *testing.T) {
	b := newBed(t)
	for says, offsets := range map[string]map[int32]int64{
		"do not name partitions 1, 3":                   {0: 3, 2: 1},
		"name partitions 4, 7, but it has 4 partitions": {0: 3, 1: 0, 2: 0, 3: 0, 4: 1, 7: 0},
	} {
		group := "misfit" + inTopic()
		err := Run(t.Context(), passPlan(t, group, topology.EndAt(topology.EndOffsets(offsets))), b.config())
		require.ErrorContains(t, err, "the end offsets of topic "+inTopic()+" "+says)
		require.Equal(t, int(fault.BadFile), ExitCode(err))
	}
}
