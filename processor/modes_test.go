package processor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

func countByKey(t *testing.T, app string) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", inTopic(), serde.String(), serde.String())
	topology.ToTopic(topology.Count(in, "count"), "out", outTopic(), serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

func (b *bed) put(n int) {
	b.t.Helper()
	recs := make([]*kgo.Record, n)
	for i := range recs {
		recs[i] = &kgo.Record{Key: fmt.Appendf(nil, "k%d", i%10), Value: []byte("v")}
	}
	require.NoError(b.t, b.cl.ProduceSync(b.t.Context(), recs...).FirstErr())
}

// The state goes on from run to run although there are no transactions, and output is there before the commit.
func TestAtLeastOnceKeepsTheState(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "loose"
	for round := range 3 {
		cfg := b.config()
		cfg.Mode, cfg.RetainedCheckpoints = AtLeastOnce, 1
		hold := make(chan struct{}) // no checkpoint is durable before its end
		cfg.Decorate = func(p *engine.Ports) {
			p.Checkpoints = persisting{p.Checkpoints, func(ctx context.Context) error {
				select {
				case <-hold:
				case <-ctx.Done():
				}
				return ctx.Err()
			}}
		}
		stop := b.start(countByKey(t, app), cfg)
		b.put(100)
		require.Eventually(t, func() bool { return len(b.counts()) >= 100*(round+1) }, 10*time.Second, 50*time.Millisecond, "output waits for a commit")
		close(hold)
		require.Eventually(t, func() bool { return b.lag(app) == 0 }, 30*time.Second, 50*time.Millisecond)
		require.NoError(t, stop())
	}
	highest := map[string]int64{}
	for _, c := range b.counts() {
		highest[c.key] = max(highest[c.key], c.n)
	}
	require.Len(t, highest, 10)
	for key, n := range highest {
		require.EqualValues(t, 30, n, key)
	}
	// And exactly-once goes on from there.
	stop := b.start(countByKey(t, app), b.config())
	b.put(10)
	require.Eventually(t, func() bool { return len(b.counts()) >= 310 && b.lag(app) == 0 }, 30*time.Second, 50*time.Millisecond)
	require.NoError(t, stop())
	last := 0
	for _, c := range b.counts() {
		if c.n == 31 {
			last++
		}
	}
	require.Equal(t, 10, last)
}

// Without checkpoints no file is written, it is said loudly, offsets go on and state does not.
func TestDisabledCheckpoints(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "disabled"
	var log logBuffer
	cfg := b.config()
	cfg.DisabledCheckpoints = true
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	cfg.AdminListen = "127.0.0.1:0"
	out := outside{t, cfg.DataDir}
	for round := range 2 {
		stop := b.start(countByKey(t, app), cfg)
		b.put(100)
		require.Eventually(t, func() bool { return len(b.counts()) >= 100*(round+1) && b.lag(app) == 0 }, 30*time.Second, 50*time.Millisecond)
		b.refusesSnapshots(app, cfg, out)
		require.NoError(t, stop())
	}
	require.Equal(t, 2, log.count("CHECKPOINTS ARE DISABLED"))
	require.Equal(t, 2, log.count("offsets committed"))
	for _, no := range []string{"checkpoint committed", "transaction_timeout=", " interval="} {
		require.Zero(t, log.count(no), no)
	}
	for _, c := range b.counts() {
		require.LessOrEqual(t, c.n, int64(10), "the state began empty")
	}
	var files []string
	require.NoError(t, filepath.WalkDir(cfg.DataDir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && (filepath.Ext(path) == ".root" || filepath.Ext(path) == ".data") {
			files = append(files, path)
		}
		return err
	}))
	require.Empty(t, files)
}

// What says how checkpoints are taken holds no offset back without them, and no local copy is kept.
func TestDisabledCheckpointsObeyNoOtherSetting(t *testing.T) {
	testbed.Alongside(t)
	s := newSettled(t)
	s.cfg.DisabledCheckpoints, s.cfg.Backend, s.cfg.local = true, Badger, fast
	s.cfg.MinPause, s.cfg.MaxConcurrent, s.cfg.Unaligned, s.cfg.AlignedTimeout = time.Hour, 3, true, time.Second
	s.cfg.FullSnapshots, s.cfg.SyncSnapshots = true, true
	stop := s.start(s.plan(0), s.cfg)
	for round := range 2 { // the first commit of an attempt comes early in any case
		s.put(10)
		s.eventually(func() bool { return s.seen.Load() == int64(10*(round+1)) && s.lag(s.app) == 0 }, "the offsets are committed")
	}
	require.NoError(t, stop())
	require.NoDirExists(t, filepath.Join(s.dir, "local"))
}

// No transaction can end, so its timeout bounds no failures that are tolerated.
func TestAtLeastOnceToleratesBeyondTheTransactionTimeout(t *testing.T) {
	testbed.Alongside(t)
	s := newSettled(t)
	s.cfg.Mode, s.cfg.TolerableFailures, s.cfg.Restart = AtLeastOnce, -1, restart.Config{Strategy: restart.None}
	s.cfg.CheckpointTimeout, s.cfg.TransactionTimeout = 300*time.Millisecond, time.Second
	var calls atomic.Int64
	s.beforePersist(func(ctx context.Context) error {
		if calls.Add(1) > 5 {
			return nil
		}
		return hang(ctx)
	})
	s.put(10)
	stop := s.start(s.plan(0), s.cfg)
	s.eventually(func() bool { return s.lag(s.app) == 0 }, "the sixth checkpoint covers the work of all")
	require.Equal(t, 5, s.givenUp())
	require.Empty(t, s.failures())
	require.NoError(t, stop())
}

// An offset commit that was carried out in part is no mixture without transactions: what is behind an exchange goes on, from the
// newest checkpoint that is named.
func TestAtLeastOnceGoesOnFromACommitInPart(t *testing.T) {
	testbed.Alongside(t)
	s := newSettled(t)
	s.cfg.Mode, s.cfg.RetainedCheckpoints = AtLeastOnce, 50
	adm := kadm.NewClient(s.cl)
	var before kadm.OffsetResponses
	stop := s.start(s.plan(2), s.cfg)
	for round := range 2 {
		s.put(100)
		s.eventually(func() bool { return s.seen.Load() == int64(100*(round+1)) && s.lag(s.app) == 0 }, "all is committed")
		if round == 0 {
			var err error
			before, err = adm.FetchOffsets(t.Context(), s.app)
			require.NoError(t, err)
		}
	}
	require.NoError(t, stop())
	part := kadm.Offsets{}
	for _, o := range before.Sorted() {
		if o.At > 0 && len(part) == 0 {
			part.Add(o.Offset)
		}
	}
	require.NoError(t, adm.CommitAllOffsets(t.Context(), s.app, part))
	require.NotZero(t, s.lag(s.app))
	markers, err := filepath.Glob(filepath.Join(s.dir, "checkpoints", s.app, "*", "*.committed")) // they follow a whole commit
	require.NoError(t, err)
	require.NotEmpty(t, markers)
	for _, m := range markers {
		require.NoError(t, os.Remove(m))
	}
	stop = s.start(s.plan(2), s.cfg)
	s.put(10)
	s.eventually(func() bool { return s.lag(s.app) == 0 }, "it goes on")
	require.NoError(t, stop())
}

// As the start says, the timeout of transactions has no effect without any: an offset commit may take longer.
func TestAtLeastOnceCommitsBeyondTheTransactionTimeout(t *testing.T) {
	testbed.Alongside(t)
	s := newSettled(t)
	s.cfg.Mode, s.cfg.TransactionTimeout, s.cfg.Restart = AtLeastOnce, time.Second, restart.Config{Strategy: restart.None}
	var tap testbed.Tap
	slow := testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}}
	slow.Before = func(kmsg.Request) error {
		if slow.Hits() == 1 {
			time.Sleep(1500 * time.Millisecond)
		}
		return nil
	}
	tap.Add(&slow)
	s.cfg.ClientOptions = []kgo.Opt{tap.Opt()}
	s.put(10)
	stop := s.start(s.plan(0), s.cfg)
	s.eventually(func() bool { return len(s.failures()) > 0 || s.lag(s.app) == 0 }, "all is committed")
	require.Empty(t, s.failures())
	require.NoError(t, stop())
}

// refusesSnapshots asks a service without checkpoints for what it cannot do: it says so at once, and goes on.
func (b *bed) refusesSnapshots(app string, cfg Config, out outside) {
	b.t.Helper()
	const want = "checkpointing.interval: disabled"
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	for _, cmd := range []Send{{Command: CheckpointCommand}, {Command: SavepointCommand}, {Command: CancelCommand, Savepoint: true, Dir: b.t.TempDir()}} {
		cmd.Timeout = time.Minute
		o, err := SendAll(ctx, app, cfg, cmd)
		require.NoError(b.t, err)
		require.Len(b.t, o.Replies, 1)
		require.Contains(b.t, o.Replies[0].Error, want)
		require.Equal(b.t, fault.NotRunning, fault.CodeOf(o.Err()))
	}
	_, err := out.client().TriggerSavepoint(ctx, b.t.TempDir())
	require.ErrorContains(b.t, err, want)
	require.Equal(b.t, fault.NotRunning, fault.CodeOf(err))
	out.says("/readyz", 200, "processing") // the cancel has stopped nothing
	require.Zero(b.t, sum(out.metrics("number_of_completed_checkpoints")))
	require.Empty(b.t, out.metrics("last_completed_checkpoint_id"))
}
