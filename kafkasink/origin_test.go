package kafkasink

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

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
		out := convert(&Target{Topic: "out", Partitions: 1}, 0, recs).recs
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
