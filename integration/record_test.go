//go:build unix

package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/verify"
)

// Records that cannot be processed: fail stops before any of their effects and names them; skip counts them and goes on.
// What was committed before stays, and the change of policy loses nothing.
func badRecords(s *site) {
	file := s.file(totals)
	s.orders(0, 500, 50)
	s.goesOn(file)
	skip := s.file(totals, "value: json}\nsteps", "value: json, on-error: skip}\nsteps")
	for i, c := range []struct {
		name   string
		bad    kgo.Record
		reason string
	}{
		{"no JSON", kgo.Record{Key: []byte("customer-1"), Value: []byte(`{"amount": 1, "status`)}, "step orders: decode value as json: "},
		{"empty", kgo.Record{Key: []byte("customer-1"), Value: []byte{}}, "step orders: decode value as json: "},
		{"null key", kgo.Record{Value: []byte(`{"amount": 1, "status": "paid"}`)}, "step totals: null key"},
		{"missing field", kgo.Record{Key: []byte("customer-1"), Value: []byte(`{"status": "paid"}`)}, "step totals: "},
		{"text for a number", kgo.Record{Key: []byte("customer-1"), Value: []byte(`{"status": "paid", "amount": "12"}`)}, "step totals: "},
	} {
		_, ends := s.ends(s.in)
		bad := c.bad
		bad.Topic = s.in
		rec, err := s.cl.ProduceSync(s.ctx, &bad).First()
		require.NoError(s.t, err, c.name)
		require.Equal(s.t, ends[rec.Partition], rec.Offset)
		s.orders(500+100*i, 100, 50)
		for range 2 { // a new start meets the same record again
			refused(s.t, s.run(file), 30, fmt.Sprintf("topic %s partition %d offset %d: %s", s.in, rec.Partition, rec.Offset, c.reason))
		}
		require.LessOrEqual(s.t, s.committed()[rec.Partition].At, rec.Offset, c.name)

		job := s.run(skip)
		job.await(`msg="record skipped"`)
		s.caughtUp(job)
		job.stop()
		log := job.stderr.String()
		require.Equal(s.t, 1, strings.Count(log, `msg="record skipped"`), c.name)
		require.Contains(s.t, log, "skipped=1")
		r := s.exact(verify.Config{})
		require.EqualValues(s.t, i+1, r.Skipped, c.name)
		require.EqualValues(s.t, 600+100*i, r.RecordsIn+r.Filtered, c.name)
	}
	s.nothingOpen(nil, time.Now())
	s.storeIsWhole()
}

func TestRefusedBadRecords(t *testing.T)     { badRecords(embeddedSite(t, 2)) }
func TestRealRefusedBadRecords(t *testing.T) { badRecords(realSite(t, 2)) }
