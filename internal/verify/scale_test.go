package verify

import (
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestManyRecords checks many records over many keys in bounded memory. It takes long, so it runs on demand:
// VERIFY_RECORDS=4000000 go test -run TestManyRecords -v ./internal/verify
func TestManyRecords(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("VERIFY_RECORDS"))
	if err != nil {
		t.Skip("VERIFY_RECORDS is not set")
	}
	for _, format := range []Format{Binary, JSON} {
		for _, budget := range []int{0, n / 10} {
			w := &world{cfg: Config{Format: format, KeyBudget: budget}}
			w.create(t)
			ctx, cl := t.Context(), producer(t, "")
			keys := n / 4
			sums := make([]int64, keys)
			for i := range n {
				id := i % keys
				r := rec{part: int32(id % partitions), key: strconv.Itoa(id), a: int64(i % 1000)}
				sums[id] += r.a
				in := w.records(w.inName, []rec{r}, false)[0]
				r.a, r.b = int64(i/keys)+1, sums[id]
				out := w.records(w.outName, []rec{r}, true)[0]
				for _, k := range []*kgo.Record{in, out} {
					cl.Produce(ctx, k, func(_ *kgo.Record, err error) {
						if err != nil {
							t.Error(err)
						}
					})
				}
			}
			require.NoError(t, cl.Flush(within(t)))
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			r := w.verify(t)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			require.True(t, r.Exact(), r.String())
			t.Logf("%s, %d records in and out, %d keys, %d passes: %v, %.2f us a record, heap in use +%d MB", format, n, r.Keys, r.Passes,
				took.Round(time.Millisecond), float64(took.Microseconds())/float64(2*n*r.Passes), (int64(after.HeapSys)-int64(before.HeapSys))>>20)
		}
	}
}
