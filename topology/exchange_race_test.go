package topology_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// wire is the environment of a task whose parcels cross to another goroutine.
type wire struct {
	*memEnv
	to []chan topology.Parcel
}

func (w *wire) Send(_, subtask int, p topology.Parcel) error {
	w.to[subtask] <- p
	return nil
}

func (w *wire) Parallelism(int) int { return max(len(w.to), 1) }

// parrot passes on what its state held before, so values that alias state go over an exchange.
type parrot struct{ last *topology.Value[[]byte] }

func (p *parrot) Open(ctx *topology.ProcessContext) error {
	p.last = topology.ValueState(ctx, "last", serde.Bytes())
	return nil
}

func (p *parrot) Process(_ *topology.ProcessContext, in *topology.Rec[string, []byte], out *topology.Collector[string, []byte]) error {
	if last, ok := p.last.Get(); ok {
		out.Emit(last)
	}
	p.last.Set(in.Value)
	out.Emit(in.Value)
	return nil
}

// aliasing is a graph whose values before the exchange alias as much as they can: records, state of aggregates and of a
// Processor, accumulators of a fixed size; keys too.
func aliasing(t *testing.T) *topology.Plan {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.Bytes())
	last := topology.Last(in, "last", serde.Bytes())
	joined := topology.Aggregate(in, "joined", serde.Bytes(), func(acc, v []byte) []byte {
		return append(acc[max(0, len(acc)-20):len(acc):len(acc)], v...)
	})
	first := topology.Aggregate(in, "first", serde.Bytes(), func(acc, v []byte) []byte {
		if len(acc) == 0 {
			return v
		}
		return acc
	})
	overlaid := topology.Aggregate(in, "overlaid", serde.Bytes(), func(acc, v []byte) []byte {
		if len(acc) != len(v) {
			return bytes.Clone(v)
		}
		copy(acc, v)
		return acc
	})
	said := topology.Process(in, "parrot", func() topology.Processor[string, []byte, []byte] { return &parrot{} })
	totals := topology.Map(topology.Aggregate(in, "totals", totalSerde{}, addTotal), "text", func(_ string, t total) []byte {
		return fmt.Append(nil, t)
	})
	marked := topology.MapRec(topology.Merge("to-mark", last, joined), "mark", func(r, out *topology.Rec[string, []byte]) error {
		out.Value = r.Value
		out.AddHeader("mark", r.RawKey)
		return nil
	})
	all := topology.Merge("all", marked, first, overlaid, said, totals)
	byKey := topology.GroupBy(all, "by-key", serde.String(), serde.Bytes(), func(k string, v []byte) string { return k[4:] })
	topology.ToTopic(byKey, "out", "out", serde.String(), serde.Bytes())
	topology.ToTopic(topology.Last(byKey, "kept", serde.Bytes()), "kept", "kept", serde.String(), serde.Bytes())
	return planOf(t, b)
}

// feedAliasing gives the records of a task. The slices of records and headers are used again, as Process allows.
func feedAliasing(task *topology.Task, batches int) error {
	recs, headers := make([]element.Record, 100), make([]element.Header, 100)
	for n := range batches {
		for i := range recs {
			text := fmt.Appendf(nil, "key-%d", (n+i)%7)
			headers[i] = element.Header{Key: fmt.Sprint("h", n), Value: text}
			recs[i] = element.Record{Key: text, Value: fmt.Appendf(nil, "value-%04d-%02d", n, i), Headers: headers[i : i+1 : i+1], Offset: int64(n*100 + i)}
		}
		if err := task.Process(element.TopicPartition{Topic: "in"}, recs); err != nil {
			return err
		}
		clear(recs)
		clear(headers)
	}
	return nil
}

// Tasks in goroutines of their own exchange pooled parcels while a part of them is kept and encoded by a third: the race
// detector and the comparison with a run in one goroutine find memory that is used again too early.
func TestParcelsCrossGoroutines(t *testing.T) {
	const batches, subtasks = 30, 2
	plan := aliasing(t)
	straightEnv := &pipe{memEnv: newMemEnv(), behind: make([]*topology.Task, subtasks)}
	var err error
	want := make([]*memEnv, subtasks)
	for i := range subtasks {
		want[i] = newMemEnv()
		straightEnv.behind[i], err = plan.NewTask("by-key", int32(i), &pipe{memEnv: want[i], behind: straightEnv.behind})
		require.NoError(t, err)
	}
	task, err := plan.NewTask("in", 0, straightEnv)
	require.NoError(t, err)
	require.NoError(t, feedAliasing(task, batches))

	env := &wire{memEnv: newMemEnv()}
	snapshot := make(chan topology.Parcel, 4)
	got := make([]*memEnv, subtasks)
	errs := make(chan error, 8)
	var receivers, encoder sync.WaitGroup
	for i := range subtasks {
		env.to = append(env.to, make(chan topology.Parcel, 8))
		got[i] = newMemEnv()
	}
	var flights [][]byte
	encoder.Go(func() {
		for p := range snapshot {
			errs <- p.Encode(func(_ int, data []byte) error {
				flights = append(flights, bytes.Clone(data))
				return nil
			})
		}
	})
	for i := range subtasks {
		behind, err := plan.NewTask("by-key", int32(i), &wire{memEnv: got[i], to: env.to})
		require.NoError(t, err)
		receivers.Go(func() {
			n := 0
			for p := range env.to[i] {
				if n++; n%10 == 7 {
					p.Keep()
					snapshot <- p
				}
				if err := behind.Receive(p); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	var failed []error
	var collect sync.WaitGroup
	collect.Go(func() {
		for err := range errs {
			if err != nil {
				failed = append(failed, err)
			}
		}
	})
	sender, err := plan.NewTask("in", 0, env)
	require.NoError(t, err)
	require.NoError(t, feedAliasing(sender, batches))
	for _, c := range env.to {
		close(c)
	}
	receivers.Wait()
	close(snapshot)
	encoder.Wait()
	close(errs)
	collect.Wait()
	require.Empty(t, failed)
	require.NotEmpty(t, flights)
	for i := range subtasks {
		require.NotEmpty(t, want[i].Out[0])
		require.Equal(t, want[i].Out, got[i].Out)
		require.NoError(t, got[i].Check())
	}
	require.NoError(t, env.Check())

	// What was encoded beside the work is whole.
	again, err := plan.NewTask("by-key", 0, &wire{memEnv: newMemEnv(), to: env.to})
	require.NoError(t, err)
	p, err := again.Restore(flights)
	require.NoError(t, err)
	require.NoError(t, again.Receive(p))
}
