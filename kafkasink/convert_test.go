package kafkasink

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
)

// TestPartitionsAgreeWithTheClient compares with kgo's own Java-compatible partitioner.
func TestPartitionsAgreeWithTheClient(t *testing.T) {
	p := kgo.StickyKeyPartitioner(nil).ForTopic("t")
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "key")
		if key == nil {
			key = []byte{}
		}
		n := rapid.Int32Range(1, math.MaxInt32).Draw(t, "partitions")
		require.Equal(t, int32(p.Partition(&kgo.Record{Key: key}, int(n))), partitionFor(key, n))
	})
}

func TestConvertKeepsTheRecord(t *testing.T) {
	target := &Target{Topic: "out", Partitions: 3}
	headers := []element.Header{{Key: "a", Value: []byte("1")}, {Key: "a", Value: nil}, {Key: "b", Value: []byte{}}}
	recs := []element.Record{
		{Key: []byte("k"), Value: []byte("v"), Headers: headers, Timestamp: 1234},
		{Key: nil, Value: []byte{}},
		{Key: []byte{}, Value: nil, Headers: headers[2:]},
	}
	b := convert(target, 7, recs)
	out := b.recs
	require.Len(t, out, 3)
	require.Equal(t, int64(recs[0].Size()+recs[1].Size()+recs[2].Size()), b.size)
	require.Equal(t, int64(7), b.payload)
	require.Equal(t, []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a"}, {Key: "b", Value: []byte{}}}, out[0].Headers)
	require.Equal(t, "out", out[0].Topic)
	require.Equal(t, int64(1234), out[0].Timestamp.UnixMilli())
	require.Equal(t, time.UnixMilli(0), out[1].Timestamp, "zero is a time of its own, not now")
	require.Equal(t, int32(7%3), out[1].Partition, "without a key: the task's partition")
	require.Nil(t, out[1].Key)
	require.NotNil(t, out[1].Value)
	require.Equal(t, partitionFor([]byte{}, 3), out[2].Partition, "an empty key is a key")
	require.NotNil(t, out[2].Key)
	require.Nil(t, out[2].Value)
	require.Nil(t, out[1].Headers)
	// The caller uses its header slice again.
	headers[0] = element.Header{Key: "changed"}
	require.Equal(t, "a", out[0].Headers[0].Key)
	// One record's headers do not grow into the next one's.
	require.Equal(t, 3, cap(out[0].Headers))
}

// sinkhole takes everything and keeps nothing.
type sinkhole struct{}

func (sinkhole) ProduceBatch(context.Context, []kgo.Record) error { return nil }
func (sinkhole) Seal(context.Context, element.CheckpointID) error { return nil }
func (sinkhole) Reopen(context.Context) error                     { return nil }
func (sinkhole) Unanswered() int64                                { return 0 }

func TestWriteAllocatesOncePerBatch(t *testing.T) {
	s, err := New(Config{Transactions: sinkhole{}, Targets: []Target{{Name: "out", Topic: "out", Partitions: 4}}})
	require.NoError(t, err)
	w := s.Writer(element.TaskID{Source: "in"})
	recs := make([]element.Record, 500)
	for i := range recs {
		recs[i] = element.Record{Key: []byte{byte(i)}, Value: []byte("v"), Timestamp: 1}
	}
	require.LessOrEqual(t, testing.AllocsPerRun(50, func() { _ = w.Write(t.Context(), 0, recs) }), 1.0)
}

func BenchmarkWrite(b *testing.B) {
	for name, headers := range map[string][]element.Header{"plain": nil, "headers": {{Key: "trace", Value: []byte("0123456789")}}} {
		b.Run(name, func(b *testing.B) {
			s, err := New(Config{Transactions: sinkhole{}, Targets: []Target{{Name: "out", Topic: "out", Partitions: 64}}})
			require.NoError(b, err)
			w := s.Writer(element.TaskID{Source: "in"})
			const size = 500
			recs := make([]element.Record, size)
			for i := range recs {
				recs[i] = element.Record{Key: []byte("customer-0123456"), Value: make([]byte, 100), Timestamp: 1, Headers: headers}
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if err := w.Write(b.Context(), 0, recs); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/record")
		})
	}
}
