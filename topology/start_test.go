package topology_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// planned gives the one source of a plan, or what is wrong.
func planned(t *testing.T, opts ...topology.SourceOption) (topology.SourcePlan, error) {
	t.Helper()
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String(), opts...)
	topology.ToTopic(in, "out", "out", serde.String(), serde.String())
	p, err := b.Plan()
	if err != nil {
		return topology.SourcePlan{}, err
	}
	return p.Sources[0], nil
}

func TestStartsSayWhatTheyAre(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 250_900_000, time.UTC)
	offsets := map[int32]int64{2: 20, 0: 5}
	byOffset := topology.StartOffsets(offsets)
	offsets[0] = 99
	many := map[int32]int64{}
	for p := range int32(10) {
		many[p] = 1
	}
	for want, start := range map[string]topology.Start{
		"timestamp 2026-03-01T12:00:00.25Z":                               topology.StartTimestamp(at),
		"ago 1h30m0s":                                                     topology.StartAgo(90 * time.Minute),
		"offsets 0:5 2:20, others earliest":                               byOffset,
		"offsets 0:5 2:20, others latest":                                 byOffset.Otherwise(topology.Latest()),
		"offsets 0:1 1:1 2:1 3:1 4:1 5:1 6:1 7:1 … (10), others earliest": topology.StartOffsets(many),
	} {
		require.Equal(t, want, start.String())
		src, err := planned(t, topology.StartAt(start), topology.OnMissing(topology.MissingEarliest))
		require.NoError(t, err)
		require.True(t, src.Start.Equal(start))
		require.Equal(t, topology.MissingEarliest, src.OnMissing)
	}
	require.Equal(t, at.Truncate(time.Millisecond), topology.StartTimestamp(at).Time(time.Time{}).UTC())
	require.Equal(t, at.Add(-time.Hour), topology.StartAgo(time.Hour).Time(at))
	require.Equal(t, map[int32]int64{0: 5, 2: 20}, byOffset.Offsets())
	require.Equal(t, topology.Earliest(), byOffset.Others())
	require.Nil(t, topology.Latest().Offsets())
	require.Equal(t, topology.Latest(), topology.Latest().Others())
	require.False(t, byOffset.Equal(byOffset.Otherwise(topology.Latest())))
	require.False(t, byOffset.Equal(topology.StartOffsets(map[int32]int64{0: 5})))
	require.False(t, topology.StartAgo(time.Hour).Equal(topology.StartAgo(time.Minute)))
	require.Equal(t, "fail earliest latest missing(7)", topology.MissingFail.String()+" "+topology.MissingEarliest.String()+" "+topology.MissingLatest.String()+" "+topology.Missing(7).String())
}

func TestStartsThatMakeNoSense(t *testing.T) {
	for says, opt := range map[string]topology.SourceOption{
		"before 1970":             topology.StartAt(topology.StartTimestamp(time.UnixMilli(-1))),
		"in the future":           topology.StartAt(topology.StartAgo(-time.Second)),
		"no partition is named":   topology.StartAt(topology.StartOffsets(nil)),
		"partition -1, offset 4":  topology.StartAt(topology.StartOffsets(map[int32]int64{-1: 4, 3: 3})),
		"partition 1, offset -4":  topology.StartAt(topology.StartOffsets(map[int32]int64{1: -4})),
		"start at committed":      topology.StartAt(topology.StartOffsets(map[int32]int64{1: 4}).Otherwise(topology.Committed())),
		"only a start by offsets": topology.StartAt(topology.Latest().Otherwise(topology.Earliest())),
		"missing(3): allowed are fail, earliest and latest": topology.OnMissing(3),
	} {
		_, err := planned(t, opt)
		require.ErrorContains(t, err, says)
	}
}

func TestEndsSayWhatTheyAre(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for want, end := range map[string]topology.End{
		"none": topology.Unbounded(), "latest": topology.EndLatest(), "timestamp 2026-03-01T12:00:00Z": topology.EndTimestamp(at),
		"offsets 0:5 1:0": topology.EndOffsets(map[int32]int64{0: 5, 1: 0}),
	} {
		require.Equal(t, want, end.String())
		src, err := planned(t, topology.EndAt(end))
		require.NoError(t, err)
		require.True(t, src.End.Equal(end))
		require.Equal(t, want != "none", src.End.Bounded())
	}
	require.Equal(t, topology.End{}, topology.Unbounded())
	require.Equal(t, at, topology.EndTimestamp(at).Time().UTC())
	require.False(t, topology.EndOffsets(map[int32]int64{0: 5}).Equal(topology.EndOffsets(map[int32]int64{0: 6})))
	for says, end := range map[string]topology.End{
		"before 1970": topology.EndTimestamp(time.UnixMilli(-1)), "no partition is named": topology.EndOffsets(nil),
		"end by offsets: partition 1, offset -4": topology.EndOffsets(map[int32]int64{1: -4}), "end(9): allowed are none": {Kind: 9},
	} {
		_, err := planned(t, topology.EndAt(end))
		require.ErrorContains(t, err, says)
	}
}

func TestAPlanIsBoundedWhenAllItsSourcesAre(t *testing.T) {
	b := topology.New("app")
	one := topology.FromTopic(b, "one", "one", serde.String(), serde.String(), topology.EndAt(topology.EndLatest()), topology.OnMissing(topology.MissingLatest))
	two := topology.FromTopic(b, "two", "two", serde.String(), serde.String())
	topology.ToTopic(topology.Merge("both", one, two), "out", "out", serde.String(), serde.String())
	p, err := b.Plan()
	require.NoError(t, err)
	require.False(t, p.Bounded())
	require.Contains(t, p.Describe(), "source one: topic one, key string, value string, start committed, end latest, on missing latest")
	p.Sources[1].End = topology.EndLatest()
	require.True(t, p.Bounded())
}
