package txn

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// BenchmarkAnswered is the cost of one record's promise.
func BenchmarkAnswered(b *testing.B) {
	c := newClient(0, "x", nil, nil)
	c.reset()
	r := &kgo.Record{Topic: "out"}
	c.pending.Add(int64(b.N))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		c.promise(r, nil)
	}
}

func TestPromisesAllocateNothing(t *testing.T) {
	c := newClient(0, "x", nil, nil)
	c.reset()
	r := &kgo.Record{Topic: "out"}
	c.pending.Add(1000)
	require.Zero(t, testing.AllocsPerRun(100, func() { c.promise(r, nil) }))
}
