package kafkasink

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
)

// The Context of a record says which input made it, however many writes came between.
func TestOriginNamesTheInput(t *testing.T) {
	var from origins
	task := element.TaskID{Source: "orders", Partition: 3}
	var writes [][]kgo.Record
	for i := range 3 * originsAtOnce {
		recs := make([]element.Record, 1+(i*37)%100)
		for k := range recs {
			recs[k].Offset = int64(i*1000 + k*2)
		}
		out, _ := convert(&Target{Topic: "out", Partitions: 1}, 0, recs)
		from.mark(task, recs, out)
		writes = append(writes, out)
	}
	for i, out := range writes {
		for k := range out {
			o := out[k].Context.(*origin)
			require.Equal(t, fmt.Sprintf("task %s, offset %d", task, i*1000+k*2), o.Origin(&out[k]))
		}
	}
	require.Empty(t, writes[0][0].Context.(*origin).Origin(new(kgo.Record)))
}

// batchSize is the size on the wire, to the byte.
func TestBatchSizeIsTheSizeOnTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := func(label string) []byte {
			n := rapid.OneOf(rapid.IntRange(-1, 70), rapid.IntRange(8000, 9000)).Draw(t, label)
			if n < 0 {
				return nil
			}
			return make([]byte, n)
		}
		r := element.Record{Key: bytes("key"), Value: bytes("value")}
		wire := kmsg.Record{Key: r.Key, Value: r.Value}
		for range rapid.IntRange(0, 70).Draw(t, "headers") {
			h := element.Header{Key: strings.Repeat("h", rapid.IntRange(0, 70).Draw(t, "header")), Value: bytes("header value")}
			r.Headers = append(r.Headers, h)
			wire.Headers = append(wire.Headers, kmsg.Header{Key: h.Key, Value: h.Value})
		}
		wire.Length = int32(len(wire.AppendTo(nil)) - 1) // a length of 0 takes one byte
		batch := kmsg.RecordBatch{NumRecords: 1, Records: wire.AppendTo(nil)}
		require.EqualValues(t, len(batch.AppendTo(nil)), batchSize(&r))
	})
}
