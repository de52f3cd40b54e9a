package topology_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

// wide is totalSerde without its size: the same accumulator by the general path.
type wide struct{ totalSerde }

func (wide) FixedSize() int { return 0 }

func int64s(t testing.TB, recs []element.Record) []int64 {
	out := make([]int64, len(recs))
	for i, r := range recs {
		v, err := serde.Int64().Decode(r.Value)
		require.NoError(t, err)
		out[i] = v
	}
	return out
}

// TestAggregatesMatchAModel runs random records, in random deliveries and over a task that is rebuilt on its state, and
// compares every output with a plain map. The in-place and the general path must give the same.
func TestAggregatesMatchAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := topology.New("app")
		s := topology.FromTopic(b, "src", "in", serde.String(), serde.Bytes(), topology.OnError(topology.Skip))
		fail := func(acc total, r *topology.Rec[string, []byte]) (total, error) {
			if len(r.Value) == 3 {
				return total{-1, -1}, errors.New("three")
			}
			if len(r.Value) == 4 {
				panic("four")
			}
			return addTotal(acc, r.Value), nil
		}
		topology.ToTopic(topology.AggregateRec(s, "fixed", totalSerde{}, fail), "fixed", "out", serde.String(), totalSerde{})
		topology.ToTopic(topology.AggregateRec(s, "wide", wide{}, fail), "wide", "out", serde.String(), wide{})
		topology.ToTopic(topology.AggregateRec(s, "unseen", wide{}, fail), "unseen", "out", serde.String(), json.Of[total]())
		topology.ToTopic(topology.Count(s, "count"), "count", "out", serde.String(), serde.Int64())
		p, err := b.Plan()
		require.NoError(rt, err)
		env := newMemEnv()

		model, counts := map[string]total{}, map[string]int64{}
		var want, wantCounts []string
		for range rapid.IntRange(1, 4).Draw(rt, "tasks") {
			task, err := p.NewTask("src", from.Partition, env)
			require.NoError(rt, err)
			recs := make([]element.Record, rapid.IntRange(0, 400).Draw(rt, "records"))
			for i := range recs {
				k := fmt.Sprintf("k%d", rapid.IntRange(0, 9).Draw(rt, "key"))
				v := make([]byte, rapid.IntRange(0, 5).Draw(rt, "bytes"))
				recs[i] = rec(int64(i), []byte(k), v)
				counts[k]++
				wantCounts = append(wantCounts, fmt.Sprintf("%s=%d", k, counts[k]))
				if len(v) < 3 || len(v) > 4 {
					model[k] = addTotal(model[k], v)
					want = append(want, fmt.Sprintf("%s=%v", k, model[k]))
				}
			}
			require.NoError(rt, task.Process(from, recs))
			require.NoError(rt, task.Close())
		}
		for sink := range 2 {
			got := []string{}
			for _, r := range env.Out[sink] {
				v, err := totalSerde{}.Decode(r.Value)
				require.NoError(rt, err)
				got = append(got, fmt.Sprintf("%s=%v", r.Key, v))
			}
			require.Equal(rt, append([]string{}, want...), got)
		}
		require.Len(rt, env.Out[2], len(want))
		got := []string{}
		for _, r := range env.Out[3] {
			got = append(got, fmt.Sprintf("%s=%d", r.Key, binary.BigEndian.Uint64(r.Value)))
		}
		require.Equal(rt, append([]string{}, wantCounts...), got)
		require.NoError(rt, env.Check())
		for _, step := range []string{"fixed", "wide", "unseen"} {
			require.Equal(rt, len(model), env.Tables[step+"/aggregate"].Len(), "a failed first record leaves no key")
			for k, raw := range env.Tables[step+"/aggregate"].All() {
				v, err := totalSerde{}.Decode(raw)
				require.NoError(rt, err)
				require.Equal(rt, model[string(k)], v)
			}
		}
	})
}

func TestInt64AggregatesNeverWrapAround(t *testing.T) {
	for _, c := range []struct {
		values []int64
		want   []int64
		err    bool
	}{
		{[]int64{math.MaxInt64, 0, -1, 1}, []int64{math.MaxInt64, math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64}, false},
		{[]int64{math.MaxInt64, 1}, []int64{math.MaxInt64}, true},
		{[]int64{math.MinInt64, -1}, []int64{math.MinInt64}, true},
		{[]int64{math.MinInt64, math.MinInt64}, []int64{math.MinInt64}, true},
		{[]int64{math.MaxInt64, math.MaxInt64}, []int64{math.MaxInt64}, true},
		{[]int64{math.MinInt64, math.MaxInt64, 1}, []int64{math.MinInt64, -1, 0}, false},
	} {
		b := topology.New("app")
		s := topology.FromTopic(b, "src", "in", serde.String(), serde.Int64(), topology.OnError(topology.Skip))
		sum := topology.Sum(s, "sum", func(_ string, v int64) int64 { return v })
		topology.ToTopic(sum, "out", "out", serde.String(), serde.Int64())
		task, env := drive(t, b)
		for i, v := range c.values {
			raw, err := serde.Int64().Append(nil, v)
			require.NoError(t, err)
			require.NoError(t, task.Process(from, []element.Record{rec(int64(i), []byte("k"), raw)}))
		}
		require.Equal(t, c.want, int64s(t, env.Out[0]))
		require.Equal(t, c.err, len(env.Skips) == 1)
		if c.err {
			require.ErrorIs(t, env.Skips[0].Reason, topology.ErrOverflow)
			require.EqualError(t, env.Skips[0].Reason, "topic in partition 3 offset 1: step sum: int64 overflow")
		}
	}
}

func TestCountAtTheEndOfItsRangeFails(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.Bytes())
	topology.ToTopic(topology.Count(s, "count"), "out", "out", serde.String(), serde.Int64())
	task, env := drive(t, b)
	raw, err := serde.Int64().Append(nil, math.MaxInt64)
	require.NoError(t, err)
	env.Tables["count/aggregate"].Put([]byte("k"), raw)
	require.ErrorIs(t, task.Process(from, []element.Record{kv(0, "k", "")}), topology.ErrOverflow)
}

func TestMinMaxSumOfFloatsAndStrings(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), json.Of[float64](), topology.OnError(topology.Skip))
	id := func(_ string, v float64) float64 {
		if v == 99 {
			return math.NaN()
		}
		return v
	}
	topology.ToTopic(topology.Min(s, "min", id), "min", "out", serde.String(), json.Of[float64]())
	topology.ToTopic(topology.Max(s, "max", id), "max", "out", serde.String(), json.Of[float64]())
	topology.ToTopic(topology.Sum(s, "sum", id), "sum", "out", serde.String(), json.Of[float64]())
	name := func(_ string, v float64) string { return fmt.Sprint(v) }
	topology.ToTopic(topology.Min(s, "least", name), "least", "out", serde.String(), serde.String())
	topology.ToTopic(topology.Max(s, "greatest", name), "greatest", "out", serde.String(), serde.String())
	task, env := drive(t, b)
	require.NoError(t, task.Process(from, []element.Record{
		kv(0, "k", "2.5"), kv(1, "k", "-1"), kv(2, "k", "10"), kv(3, "other", "7"), kv(4, "k", "99"),
	}))
	require.Equal(t, []string{"k=2.5", "k=-1", "k=-1", "other=7"}, pairs(env.Out[0]))
	require.Equal(t, []string{"k=2.5", "k=2.5", "k=10", "other=7"}, pairs(env.Out[1]))
	require.Equal(t, []string{"k=2.5", "k=1.5", "k=11.5", "other=7"}, pairs(env.Out[2]))
	require.Equal(t, []string{"k=2.5", "k=-1", "k=-1", "other=7", "k=-1"}, pairs(env.Out[3]))
	require.Equal(t, []string{"k=2.5", "k=2.5", "k=2.5", "other=7", "k=99"}, pairs(env.Out[4]))
	var nan int
	for _, s := range env.Skips {
		if errors.Is(s.Reason, topology.ErrNaN) {
			nan++
		}
	}
	require.Equal(t, 2, nan, "min and max; the sum has become NaN, which JSON cannot hold")
	require.Len(t, env.Skips, 3)
}

// sliceSerde hands out slices that alias what they are decoded from, and has a fixed size.
type sliceSerde struct{}

func (sliceSerde) Name() string { return "slice" }

func (sliceSerde) FixedSize() int { return 4 }

func (sliceSerde) Append(dst []byte, v []byte) ([]byte, error) { return append(dst, v...), nil }

func (sliceSerde) Decode(b []byte) ([]byte, error) { return b, nil }

// TestAccumulatorsThatAliasTheirBytes: the outputs of one batch must not share memory with each other or with state,
// although fold changes the accumulator where it is.
func TestAccumulatorsThatAliasTheirBytes(t *testing.T) {
	for _, sink := range []serde.Serde[[]byte]{sliceSerde{}, serde.Bytes()} {
		b := topology.New("app")
		s := topology.FromTopic(b, "src", "in", serde.String(), serde.Bytes())
		acc := topology.Aggregate(s, "acc", serde.Serde[[]byte](sliceSerde{}), func(a []byte, v []byte) []byte {
			if a == nil {
				a = []byte("....")
			}
			copy(a[1:], a)
			a[0] = v[0]
			return a
		})
		topology.ToTopic(acc, "out", "out", serde.String(), sink)
		task, env := drive(t, b)
		recs := []element.Record{kv(0, "k", "1"), kv(1, "k", "2"), kv(2, "j", "3"), kv(3, "k", "4"), kv(4, "k", "5")}
		require.NoError(t, task.Process(from, recs))
		require.NoError(t, task.Process(from, recs[:1]))
		require.Equal(t, []string{"k=1...", "k=21..", "j=3...", "k=421.", "k=5421", "k=1542"}, pairs(env.Out[0]))
	}
}

// short breaks its promise of a size.
type short struct{ totalSerde }

func (short) Append(dst []byte, _ total) ([]byte, error) { return append(dst, 1), nil }

func TestACodecThatBreaksItsSizeFailsTheRecord(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.Bytes())
	topology.ToTopic(topology.Aggregate(s, "sum", serde.Serde[total](short{}), addTotal), "out", "out", serde.String(), totalSerde{})
	task, env := drive(t, b)
	require.EqualError(t, task.Process(from, []element.Record{kv(0, "k", "")}),
		"topic in partition 3 offset 0: step sum: accumulator: total needs 16 bytes, got 1")
	require.Zero(t, env.Tables["sum/aggregate"].Len())
}

// refusing notices in the middle that it does not take an accumulator.
type refusing struct{ totalSerde }

func (refusing) Append(dst []byte, t total) ([]byte, error) {
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.records))
	switch t.bytes {
	case 4:
		return dst, errors.New("four bytes")
	case 5:
		panic("five bytes")
	case 6:
		return dst, nil
	}
	return binary.BigEndian.AppendUint64(dst, uint64(t.bytes)), nil
}

func TestASkippedRecordLeavesTheAccumulatorAsItWas(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.Bytes(), topology.OnError(topology.Skip))
	topology.ToTopic(topology.Aggregate(s, "sum", serde.Serde[total](refusing{}), addTotal), "out", "out", serde.String(), json.Of[total]())
	task, env := drive(t, b)
	require.NoError(t, task.Process(from, []element.Record{kv(0, "k", "a"), kv(1, "k", "bbb"), kv(2, "k", "cccc"), kv(3, "k", "ddddd"), kv(4, "k", "e")}))
	require.Len(t, env.Skips, 3)
	state, ok := env.Tables["sum/aggregate"].Get([]byte("k"))
	require.True(t, ok)
	got, err := totalSerde{}.Decode(state)
	require.NoError(t, err)
	require.Equal(t, total{2, 2}, got)
}

func TestStateThatCannotBeReadFailsTheRecord(t *testing.T) {
	for _, acc := range []serde.Serde[total]{totalSerde{}, wide{}} {
		b := topology.New("app")
		s := topology.FromTopic(b, "src", "in", serde.String(), serde.Bytes())
		topology.ToTopic(topology.Aggregate(s, "sum", serde.Serde[total](unreadable{acc}), addTotal), "out", "out", serde.String(), totalSerde{})
		task, _ := drive(t, b)
		require.NoError(t, task.Process(from, []element.Record{kv(0, "k", "")}))
		require.EqualError(t, task.Process(from, []element.Record{kv(1, "k", "")}),
			"topic in partition 3 offset 1: step sum: decode state as total: no")
	}
}

type unreadable struct{ serde.Serde[total] }

func (u unreadable) FixedSize() int { return u.Serde.(serde.Fixed).FixedSize() }

func (unreadable) Decode([]byte) (total, error) { return total{}, errors.New("no") }

// TestCountChainAllocatesPerBatchOnly is what the benchmark's 0 allocs/op rounds.
func TestCountChainAllocatesPerBatchOnly(t *testing.T) {
	env := newMemEnv()
	env.Discard = true
	task := countChain(t, env)
	recs := benchRecords(4096, 1000)
	in := element.TopicPartition{Topic: "in"}
	require.NoError(t, task.Process(in, recs))
	allocs := testing.AllocsPerRun(20, func() {
		if err := task.Process(in, recs); err != nil {
			t.Fatal(err)
		}
	})
	require.LessOrEqual(t, allocs, 2.0, "4096 records of 16 bytes fill one chunk of the arena")
}
