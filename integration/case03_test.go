//go:build unix

package integration

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/processor"
	"github.com/millweir/millweir/snapshot"
)

// slowUpload is a checkpoint store of which one upload takes long.
type slowUpload struct {
	engine.Checkpoints
	next *atomic.Int64 // nanoseconds that the next upload takes longer
}

func (u slowUpload) Persist(ctx context.Context, name element.CheckpointName, deltas []snapshot.TaskDelta) ([]snapshot.Persisted, error) {
	time.Sleep(time.Duration(u.next.Swap(0)))
	return u.Checkpoints.Persist(ctx, name, deltas)
}

// The broker has aborted the transaction when the checkpoint is ready to be committed: it counts as failed, and the work
// starts again from what is committed.
func transactionTimesOut(s *site) {
	const timeout, stall = 2 * time.Second, 6 * time.Second
	s.every = 500 * time.Millisecond
	file := s.file(counts, "timeout: 5s", "timeout: 8s", "{{.TransactionTimeout}}", "14s")
	var next atomic.Int64
	job := s.inside(file, func(c *processor.Config) {
		c.ClientOptions = []kgo.Opt{brief(timeout)}
		c.Decorate = func(p *engine.Ports) { p.Checkpoints = slowUpload{p.Checkpoints, &next} }
	})
	s.tell(100)
	job.caughtUp()
	require.Empty(s.t, job.failed())
	before := s.committed()

	next.Store(int64(stall))
	began := time.Now()
	s.tell(100)
	job.until(10*time.Second, func() bool { return next.Load() == 0 }, "an upload stalls")
	job.until(stall, func() bool { return len(s.open()) > 0 }, "a transaction is open")
	job.until(stall, func() bool { return len(s.open()) == 0 }, "the broker ends it")
	require.Less(s.t, time.Since(began), stall, "the upload is still under way")
	require.Equal(s.t, before, s.committed())
	job.caughtUp()
	require.Greater(s.t, time.Since(began), stall)
	require.Len(s.t, job.failed(), 1, "one attempt fails")
	require.Equal(s.t, 1, job.lost(), "its checkpoint is a failed one")
	require.ErrorContains(s.t, job.failed()[0], "timed out")
	require.Contains(s.t, job.log.String(), `msg="attempt failed, going back to the last committed checkpoint"`)
	job.stop()
	s.countedOnce(200)
}

func TestC03_TransactionTimesOutDuringAnUpload(t *testing.T) {
	t.Parallel()
	transactionTimesOut(fakeSite(t, 2))
}

func TestC03_RealTransactionTimesOutDuringAnUpload(t *testing.T) { transactionTimesOut(realSite(t, 2)) }

// A transaction timeout that a checkpoint may outlast is a mistake of the file.
func TestC03_TransactionTimeoutMustOutlastACheckpoint(t *testing.T) {
	s := &site{t: t, brokers: []string{"127.0.0.1:1"}, app: "short", in: "in", out: "out", dir: t.TempDir(), every: 500 * time.Millisecond, session: 10 * time.Second}
	for _, timeout := range []string{"2s", "5s", "10s"} {
		p := startProcess(t, processorBinary(t), []string{"validate", s.file(counts, "{{.TransactionTimeout}}", timeout)})
		require.Equal(t, 3, p.exit(20*time.Second), "%s: %s", timeout, p.stderr.String())
		require.Contains(t, p.stderr.String(), "transaction.timeout: "+timeout+" is too short")
		require.Contains(t, p.stderr.String(), "checkpointing.timeout (5s)")
	}
	p := startProcess(t, processorBinary(t), []string{"validate", s.file(counts, "{{.TransactionTimeout}}", "10500ms")})
	require.Zero(t, p.exit(20*time.Second), p.stderr.String())
}

// A timeout above the broker's maximum is said once, with both numbers, and nothing is tried again.
func timeoutAboveTheBrokers(s *site) {
	s.orders(0, 100, 10)
	file := s.file(totals, "{{.TransactionTimeout}}", "60s")
	began := time.Now()
	p := s.run(file)
	refused(s.t, p, 12, "transaction timeout 60000 ms", "transaction.max.timeout.ms of 10000")
	require.Less(s.t, time.Since(began), 10*time.Second)
	require.NotContains(s.t, p.stderr.String(), "attempt")
	require.Empty(s.t, s.committed())
	// The greatest one that is allowed.
	s.goesOn(s.file(totals, "timeout: 5s", "timeout: 4s", "{{.TransactionTimeout}}", "10s"))
}

func TestC03_TransactionTimeoutAboveTheBrokers(t *testing.T) {
	t.Parallel()
	processorBinary(t)
	timeoutAboveTheBrokers(fakeSite(t, 1, kfake.BrokerConfigs(map[string]string{"transaction.max.timeout.ms": "10000"})))
}

func TestC03_RealTransactionTimeoutAboveTheBrokers(t *testing.T) {
	timeoutAboveTheBrokers(harshSite(t, 1))
}
