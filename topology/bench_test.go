package topology_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// total is an accumulator of 16 bytes.
type total struct{ records, bytes int64 }

// totalSerde is a codec as users write it.
type totalSerde struct{}

func (totalSerde) Name() string { return "total" }

func (totalSerde) FixedSize() int { return 16 }

func (totalSerde) Append(dst []byte, t total) ([]byte, error) {
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.records))
	return binary.BigEndian.AppendUint64(dst, uint64(t.bytes)), nil
}

func (totalSerde) Decode(b []byte) (total, error) {
	if len(b) != 16 {
		return total{}, &serde.LengthError{Codec: "total", Want: 16, Got: len(b)}
	}
	return total{int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))}, nil
}

func addTotal(t total, v []byte) total { return total{t.records + 1, t.bytes + int64(len(v))} }

// countChain is source, aggregate with a fixed accumulator, sink.
func countChain(tb testing.TB, env topology.Env) *topology.Task {
	b := topology.New("bench")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.Bytes())
	sums := topology.Aggregate(in, "totals", totalSerde{}, addTotal)
	topology.ToTopic(sums, "out", "out", serde.String(), totalSerde{})
	return newTask(tb, b, env)
}

func newTask(tb testing.TB, b *topology.Builder, env topology.Env) *topology.Task {
	p, err := b.Plan()
	require.NoError(tb, err)
	task, err := p.NewTask(p.Sources[0].Name, 0, env)
	require.NoError(tb, err)
	return task
}

func benchRecords(n, keys int) []element.Record {
	recs := make([]element.Record, n)
	value := make([]byte, 100)
	for i := range recs {
		recs[i] = element.Record{Key: fmt.Appendf(nil, "key-%08d", i*7919%keys), Value: value, Offset: int64(i), Timestamp: 1}
	}
	return recs
}

func benchTask(b *testing.B, task *topology.Task, keys int) {
	recs := benchRecords(100_000, keys)
	from := element.TopicPartition{Topic: "in"}
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; {
		at := done % len(recs)
		n := min(1000, b.N-done, len(recs)-at)
		if err := task.Process(from, recs[at:at+n]); err != nil {
			b.Fatal(err)
		}
		done += n
	}
}

// BenchmarkCountChain is decode, aggregate into 16 bytes in place, encode; one operation is one record.
func BenchmarkCountChain(b *testing.B) {
	for _, keys := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			env := newMemEnv()
			env.Discard = true
			benchTask(b, countChain(b, env), keys)
		})
	}
}
