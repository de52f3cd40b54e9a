package topology_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// pipe is the environment of two stages in one goroutine: what is sent is received at once.
type pipe struct {
	*memEnv
	behind []*topology.Task
}

func (p *pipe) Send(_, subtask int, parcel topology.Parcel) error {
	return p.behind[subtask].Receive(parcel)
}

func (p *pipe) Parallelism(int) int { return len(p.behind) }

// exchangeBench gives the task of a source whose records go to a count in two subtasks, without sinks.
func exchangeBench(tb testing.TB, keyed bool) *topology.Task {
	b := topology.New("bench")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.Bytes())
	if keyed {
		byKey := topology.GroupBy(in, "by-key", serde.String(), serde.Bytes(), func(k string, _ []byte) string { return k })
		topology.Count(byKey, "count")
	} else {
		topology.Filter(topology.Rebalance(in, "spread", serde.String(), serde.Bytes()), "none", func(string, []byte) bool { return false })
	}
	plan, err := b.Plan()
	require.NoError(tb, err)
	env := &pipe{memEnv: newMemEnv(), behind: make([]*topology.Task, 2)}
	for i := range env.behind {
		own := &pipe{memEnv: newMemEnv(), behind: env.behind}
		env.behind[i], err = plan.NewTask(plan.Stages[1].Name, int32(i), own)
		require.NoError(tb, err)
	}
	source, err := plan.NewTask("in", 0, env)
	require.NoError(tb, err)
	return source
}

// BenchmarkExchange is decode, send and receive; by key with the encoding of the new key and a count behind it. One
// operation is one record.
func BenchmarkExchange(b *testing.B) {
	for _, keyed := range []bool{false, true} {
		for _, keys := range []int{1000} {
			b.Run(fmt.Sprintf("keyed=%t/keys=%d", keyed, keys), func(b *testing.B) {
				benchTask(b, exchangeBench(b, keyed), keys)
			})
		}
	}
	b.Run("none", func(b *testing.B) {
		t := topology.New("bench")
		in := topology.FromTopic(t, "in", "in", serde.String(), serde.Bytes())
		topology.Filter(in, "none", func(string, []byte) bool { return false })
		benchTask(b, newTask(b, t, newMemEnv()), 1000)
	})
	b.Run("none, count", func(b *testing.B) {
		t := topology.New("bench")
		in := topology.FromTopic(t, "in", "in", serde.String(), serde.Bytes())
		topology.Count(in, "count")
		benchTask(b, newTask(b, t, newMemEnv()), 1000)
	})
}

// Sending and receiving allocates per parcel at most, never per record. New keys are encoded into chunks of memory.
func TestAnExchangeAllocatesNothingPerRecord(t *testing.T) {
	for _, keyed := range []bool{false, true} {
		task := exchangeBench(t, keyed)
		recs := benchRecords(10_000, 100)
		for i := range recs {
			recs[i].Headers = []element.Header{{Key: "h", Value: []byte("v")}}
		}
		from := element.TopicPartition{Topic: "in"}
		require.NoError(t, task.Process(from, recs))
		runtime.GC()
		allocs := testing.AllocsPerRun(10, func() { require.NoError(t, task.Process(from, recs)) })
		most := 40.0 // batches; 80 parcels. A collection may empty the pool.
		if raceDetector {
			most = 480 // its sync.Pool drops one in four
		}
		require.LessOrEqual(t, allocs, most, "keyed %t: %v allocations for %d records", keyed, allocs, len(recs))
		t.Logf("keyed %t: %v allocations for %d records", keyed, allocs, len(recs))
	}
}
