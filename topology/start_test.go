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
