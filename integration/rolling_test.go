//go:build unix

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/verify"
)

// The service file changes under running instances, one after the other: a source with state of its own and fewer
// partitions, and a sink. An instance with the old file never gets the new source, goes on with the old one, also when it
// starts again beside the others or has to take over, and what it did not know of stays whole.
func rollingChange(s *site, calm func()) {
	t := s.t
	refunds, refunded := s.app+"-refunds", s.app+"-refunded"
	old := s.file(totals)
	changed := s.file(totals, "steps:\n", `  refunds: {topic: `+refunds+`, key: string, value: json}
steps:
  refunded: {from: refunds, aggregate: {n: count()}}
`, "sinks:\n", `sinks:
  refunded: {from: refunded, topic: `+refunded+`, key: string, value: json}
`)
	for _, topic := range []string{refunds, refunded} {
		_, err := kafka.EnsureTopic(s.ctx, s.cl, topic, 2, nil)
		require.NoError(t, err)
	}
	as := func(name, file string) *process {
		return s.run(file, "--log-format", "text", "--set", "instance.id="+s.app+"-"+name,
			"--set", "data-dir="+filepath.Join(s.dir, name), "--set", "state.checkpoints.dir="+s.checkpoints())
	}
	const keys = 300
	a, b := as("a", old), as("b", old)
	ctx, stop := context.WithCancel(s.ctx)
	trickle := make(chan int, 1)
	go func() { trickle <- s.trickle(ctx, 0, keys) }()
	a.await("msg=processing")
	b.await("msg=processing")

	put, refundsDone := 0, func(job *process) {
		job.until(30*time.Second, func() bool {
			committed, err := s.adm.FetchOffsets(s.ctx, s.app)
			require.NoError(t, err)
			ends, err := s.adm.ListEndOffsets(s.ctx, refunds)
			require.NoError(t, err)
			done := true
			for p, end := range ends[refunds] {
				o, _ := committed.Lookup(refunds, p)
				done = done && o.At >= end.Offset
			}
			return done
		}, "refunds are not done")
	}
	refund := func(n int) {
		for range n {
			r := &kgo.Record{Topic: refunds, Key: fmt.Appendf(nil, "k-%d", put%7), Value: []byte(`{"amount": 1}`)}
			require.NoError(t, s.cl.ProduceSync(s.ctx, r).FirstErr())
			put++
		}
	}
	progress := func(jobs ...*process) {
		t.Helper()
		for until, end := s.progress()+200, time.Now().Add(30*time.Second); s.progress() < until; time.Sleep(20 * time.Millisecond) {
			for _, j := range jobs {
				require.False(t, j.ended(), "%s", j.stderr.tail(5))
			}
			require.True(t, time.Now().Before(end), "no progress: %s", jobs[0].stderr.tail(5))
		}
	}
	calm()
	b.stop()
	b = as("b", changed)
	refund(50)
	refundsDone(b)
	progress(a, b)
	calm()
	a.kill() // the one that knows less, perhaps the leader
	progress(b)
	a = as("a", old)
	a.await("msg=processing")
	refund(50)
	refundsDone(b)
	calm()
	b.kill() // nobody is there for the new source
	time.Sleep(s.session)
	refund(20)
	progress(a)
	require.NotContains(t, a.stderr.String(), refunds)
	b = as("b", changed)
	refundsDone(b)
	calm()
	a.stop()
	a = as("a", changed)
	progress(a, b)
	calm()
	b.kill()
	refund(30)
	refundsDone(a)
	stop()
	n := <-trickle
	s.caughtUp(a)
	r := s.exact(verify.Config{})
	require.EqualValues(t, n, r.RecordsIn+r.Filtered)
	a.stop()
	counts := map[string]int{}
	total := 0
	for _, r := range s.read(refunded) {
		var v struct{ N int }
		require.NoError(t, json.Unmarshal(r.Value, &v))
		counts[string(r.Key)]++
		require.Equal(t, counts[string(r.Key)], v.N, "%s", r.Key)
		total++
	}
	require.Equal(t, put, total)
	require.NotContains(t, a.stderr.String(), "attempt failed")
	s.nothingOpen(nil, time.Now().Add(2*transactionTimeout))
}

func TestRollingChange(t *testing.T) {
	// Not beside others: the embedded broker, which they share, loses members that join while it is busy with static ones.
	s := fakeSite(t, 4).impatient()
	rollingChange(s, s.betweenRounds)
}
func TestRealRollingChange(t *testing.T) { rollingChange(realSite(t, 4).impatient(), func() {}) }

// betweenRounds waits until the group has been without a round for a while. In the embedded broker a member whose connection
// breaks while it joins never expires, and the round never ends; on the real one nobody waits.
func (s *site) betweenRounds() {
	s.t.Helper()
	stable := 0
	for end := time.Now().Add(20 * time.Second); stable < 20; time.Sleep(50 * time.Millisecond) {
		require.True(s.t, time.Now().Before(end), "the group does not come to rest")
		groups, err := s.adm.DescribeGroups(s.ctx, s.app)
		require.NoError(s.t, err)
		if groups[s.app].State == "Stable" {
			stable++
		} else {
			stable = 0
		}
	}
}
