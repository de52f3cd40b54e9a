//go:build unix

package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/processor"
)

// relay passes orders on.
const relay = settings + `sources:
  orders: {topic: {{.In}}, key: string, value: json}
steps:
  paid: {from: orders, filter: value.status == "paid"}
sinks:
  totals: {from: paid, topic: {{.Out}}, key: string, value: json}
`

// quota lets the brokers hold the service's output to so many bytes a second. They look at it over a few seconds: as many
// times that goes through at once.
func (s *site) quota(bytesPerSecond float64) {
	s.t.Helper()
	_, err := s.adm.AlterClientQuotas(s.ctx, []kadm.AlterClientQuotaEntry{{
		Entity: kadm.ClientQuotaEntity{{Type: "client-id", Name: &s.app}},
		Ops:    []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: bytesPerSecond}},
	}})
	require.NoError(s.t, err)
}

// wideOrders puts orders of so many bytes into the input.
func (s *site) wideOrders(n, size int) {
	pad := strings.Repeat("x", size)
	recs := make([]*kgo.Record, n)
	for i := range recs {
		recs[i] = &kgo.Record{Key: fmt.Appendf(nil, "customer-%d", i%50), Value: fmt.Appendf(nil, `{"order_id":"o-%d","status":"paid","pad":"%s"}`, i, pad)}
	}
	s.put(recs...)
}

// relayed counts, by order, what a reader of committed records finds in the output.
func (s *site) relayed() map[string]int {
	s.t.Helper()
	ends, _ := s.ends(s.out)
	cl, err := kafka.NewClient(s.kafka(), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.ConsumeTopics(s.out), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(s.t, err)
	defer cl.Close()
	for p, end := range ends {
		if end == 0 {
			delete(ends, p)
		}
	}
	found := map[string]int{}
	for len(ends) > 0 {
		fs := cl.PollFetches(s.ctx)
		require.NoError(s.t, fs.Err())
		fs.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= ends[r.Partition] {
				delete(ends, r.Partition)
			}
			if r.Attrs.IsControl() {
				return
			}
			var o struct {
				ID string `json:"order_id"`
			}
			require.NoError(s.t, json.Unmarshal(r.Value, &o))
			found[o.ID]++
		})
	}
	return found
}

// TestRealProducerQuota: what is in the input takes twice as long to go out as a checkpoint may take. It must go out in as
// many checkpoints as that needs.
func TestRealProducerQuota(t *testing.T) {
	s := realSite(t, 2)
	const orders = 5_000
	s.wideOrders(orders, 1000)
	s.quota(500_000)
	p := s.run(s.file(relay))
	start := time.Now()
	s.caughtUp(p)
	log := p.stderr.String()
	t.Logf("caught up after %v, %d failed attempts, %d checkpoints", time.Since(start), strings.Count(log, "attempt failed"), strings.Count(log, "checkpoint committed"))
	require.LessOrEqual(t, strings.Count(log, "attempt failed"), 4)
	require.Equal(t, 1, strings.Count(log, "output is held up by the brokers"), "%s", p.stderr.tail(30))
	found := s.relayed()
	require.Len(t, found, orders)
	for id, n := range found {
		require.Equal(t, 1, n, "order %s", id)
	}
	p.stop()
}

// TestASlowWayOutTakesLargeRecords: the brokers take 100 KB a second, all the time. A thousand records of four kilobytes, which
// a task without exchanges could take at once, are eight times what goes out within the timeout of a checkpoint.
func TestASlowWayOutTakesLargeRecords(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, 2)
	const orders = 1000
	s.wideOrders(orders, 4000)
	var tap testbed.Tap
	tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Before: func(r kmsg.Request) error {
		size := 0
		for _, topic := range r.(*kmsg.ProduceRequest).Topics {
			for _, p := range topic.Partitions {
				size += len(p.Records)
			}
		}
		time.Sleep(time.Duration(size) * time.Second / 100_000)
		return nil
	}})
	job := s.inside(s.file(relay, "{timeout: {{.TransactionTimeout}}}", "{timeout: 60s}"), func(c *processor.Config) { c.ClientOptions = []kgo.Opt{tap.Opt()} })
	require.Eventually(t, func() bool { return len(job.failed()) > 2 || s.lag() < orders }, 40*time.Second, 100*time.Millisecond)
	require.LessOrEqual(t, len(job.failed()), 2, "more than it takes to learn how slow they are")
}
