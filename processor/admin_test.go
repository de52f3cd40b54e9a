package processor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/snapshot"
)

// outside is what others see of a running instance.
type outside struct {
	t   *testing.T
	dir string // data directory
}

func (o outside) get(path string) (int, string) {
	o.t.Helper()
	var addr string
	require.Eventually(o.t, func() (ok bool) {
		var err error
		addr, _, err = admin.ReadAddress(o.dir)
		return err == nil
	}, 10*time.Second, 5*time.Millisecond)
	resp, err := http.Get("http://" + addr + path)
	require.NoError(o.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(o.t, err)
	return resp.StatusCode, string(b)
}

// says waits until a probe answers with a code and a text.
func (o outside) says(path string, code int, text string) {
	o.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		got, body := o.get(path)
		if got == code && strings.Contains(body, text) {
			return
		}
		require.True(o.t, time.Now().Before(end), "want %d %s, last %d %s", code, text, got, body)
	}
}

// metrics gives the series of one name by their labels as /metrics writes them.
func (o outside) metrics(name string) map[string]float64 {
	o.t.Helper()
	code, body := o.get("/metrics")
	require.Equal(o.t, 200, code, body)
	out := map[string]float64{}
	for line := range strings.Lines(body) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "millweir_"+name)
		labels, value, _ := strings.Cut(rest, " ")
		if !ok || labels != "" && labels[0] != '{' {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		require.NoError(o.t, err, line)
		out[labels] = v
	}
	return out
}

func sum(series map[string]float64) (n float64) {
	for _, v := range series {
		n += v
	}
	return n
}

func (o outside) client() admin.Client {
	addr, _, err := admin.ReadAddress(o.dir)
	require.NoError(o.t, err)
	return admin.Client{Address: addr}
}

// instance gives a configuration with a data directory of its own and the bed's checkpoint directory.
func (b *bed) instance(name string) (Config, outside) {
	cfg := b.config()
	cfg.DataDir, cfg.CheckpointsDir = filepath.Join(b.dir, name), filepath.Join(b.dir, "checkpoints")
	cfg.AdminListen = "127.0.0.1:0"
	return cfg, outside{b.t, cfg.DataDir}
}

// guarded holds the restore of states, or fails the writing of root files.
type guarded struct {
	engine.Checkpoints
	hold   chan struct{}
	broken *atomic.Bool
}

func (g guarded) Restore(ctx context.Context, e snapshot.TaskEntry, keep func(int, []byte) bool, apply func(snapshot.Entry) error) (snapshot.Stats, error) {
	if g.hold != nil {
		select {
		case <-g.hold:
		case <-ctx.Done():
			return snapshot.Stats{}, ctx.Err()
		}
	}
	return g.Checkpoints.Restore(ctx, e, keep, apply)
}

func (g guarded) WriteRoot(ctx context.Context, root *snapshot.Root) (snapshot.RootRef, error) {
	if g.broken.Load() {
		return snapshot.RootRef{}, errors.New("the disk says no")
	}
	return g.Checkpoints.WriteRoot(ctx, root)
}

func TestC12_NotReadyWithoutABroker(t *testing.T) {
	var log logText
	cfg := Config{Brokers: []string{"127.0.0.1:1"}, DataDir: t.TempDir(), AdminListen: "127.0.0.1:0", Logger: slog.New(slog.NewTextHandler(&log, nil)), waitTold: 100 * time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, countPlan(t, "nobody"), cfg) }()
	o := outside{t, cfg.DataDir}
	o.says("/readyz", 503, "connecting to the brokers [127.0.0.1:1]")
	require.Eventually(t, func() bool {
		return strings.Contains(log.String(), `still waits" application=nobody for="connecting to the brokers [127.0.0.1:1]"`)
	}, 10*time.Second, 10*time.Millisecond, "the log: %s", &log)
	code, _ := o.get("/livez")
	require.Equal(t, 200, code)
	require.Equal(t, map[string]float64{"": 0}, o.metrics("ready"))
	cancel()
	require.NoError(t, <-done)
	require.NoFileExists(t, filepath.Join(cfg.DataDir, admin.AddressFile))
}

// From the wish to stop on nobody is to count on the instance, however long its last checkpoint takes.
func TestC47_NotReadyWhileItStops(t *testing.T) {
	b := newBed(t)
	cfg, o := b.instance("a")
	hold, roots := make(chan struct{}), new(atomic.Int64)
	cfg.Interval = 5 * time.Minute
	cfg.Decorate = func(p *engine.Ports) { p.Checkpoints = heldRoots{p.Checkpoints, hold, roots} }
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, countPlan(t, "stopping"), cfg) }()
	o.says("/readyz", 200, "processing")
	b.produce(0, 100)
	require.Eventually(t, func() bool { return roots.Load() > 0 }, 20*time.Second, 5*time.Millisecond, "a checkpoint is held")
	stop()
	o.says("/readyz", 503, "stopping")
	code, _ := o.get("/livez")
	require.Equal(t, 200, code)
	close(hold)
	require.NoError(t, <-done)
}

// heldRoots holds the writing of root files.
type heldRoots struct {
	engine.Checkpoints
	hold  chan struct{}
	tries *atomic.Int64
}

func (h heldRoots) WriteRoot(ctx context.Context, root *snapshot.Root) (snapshot.RootRef, error) {
	h.tries.Add(1)
	select {
	case <-h.hold:
	case <-ctx.Done():
		return snapshot.RootRef{}, ctx.Err()
	}
	return h.Checkpoints.WriteRoot(ctx, root)
}

func TestC12_ReadyWhenRestoredAndNotWhileItFails(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "probes"
	plan := countPlan(t, app)
	cfg, o := b.instance("a")
	b.produce(0, 1000)
	stop := b.start(plan, cfg)
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())

	hold, broken := make(chan struct{}), new(atomic.Bool)
	cfg.NoLocalRecovery = true
	cfg.Decorate = func(p *engine.Ports) { p.Checkpoints = guarded{p.Checkpoints, hold, broken} }
	cfg.Restart.Exponential.InitialBackoff = 500 * time.Millisecond
	stop = b.start(plan, cfg)
	o.says("/readyz", 503, "restoring the state")
	code, _ := o.get("/livez")
	require.Equal(t, 200, code, "it lives")
	close(hold)
	o.says("/readyz", 200, "processing, attempt 1")

	broken.Store(true)
	b.produce(1000, 10)
	o.says("/readyz", 503, "the disk says no")
	code, _ = o.get("/livez")
	require.Equal(t, 200, code, "it tries on")
	require.Equal(t, map[string]float64{"": 0}, o.metrics("ready"))
	require.Len(t, o.metrics("records_lag"), 4, "the lag is known also when nothing is processed")
	broken.Store(false)
	o.says("/readyz", 200, "processing")
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	require.Positive(t, sum(o.metrics("num_restarts")))
	require.Positive(t, sum(o.metrics("number_of_failed_checkpoints")))
	require.NoError(t, stop())
	r := b.verify()
	require.True(t, r.Exact(), "%s", r.String())
}

func TestC48_LagIsThatOfWhatIsOwnedUpToTheLastStableOffset(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "lags"
	plan := countPlan(t, app)
	cfgA, a := b.instance("a")
	cfgA.Interval = 5 * time.Minute // what is processed is not committed
	cfgB, o := b.instance("b")
	cfgB.Interval = 5 * time.Minute
	stopA := b.start(plan, cfgA)
	a.says("/readyz", 200, "processing")
	b.produce(0, 400)
	require.Eventually(t, func() bool { return sum(a.metrics("num_records_in")) == 400 }, 20*time.Second, 20*time.Millisecond)
	_, err := a.client().TriggerCheckpoint(t.Context()) // the attempt's first one comes early, and may have had a part of them
	require.NoError(t, err)
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	b.produce(400, 300)
	require.Eventually(t, func() bool { return sum(a.metrics("records_lag")) == 300 }, 5*time.Second, 50*time.Millisecond)
	require.Len(t, a.metrics("records_lag"), 4)

	foreign, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.TransactionalID("foreign"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer foreign.Close()
	require.NoError(t, foreign.BeginTransaction())
	for range 100 {
		require.NoError(t, foreign.ProduceSync(t.Context(), &kgo.Record{Topic: inTopic(), Partition: 2, Value: make([]byte, 8)}).FirstErr())
	}
	open := fmt.Sprintf(`{partition="2",topic=%q}`, inTopic())
	require.Eventually(t, func() bool { return a.metrics("open_transaction_offsets")[open] == 100 }, 5*time.Second, 50*time.Millisecond)
	require.EqualValues(t, 300, sum(a.metrics("records_lag")), "an open transaction adds nothing")

	stopB := b.start(plan, cfgB)
	o.says("/readyz", 200, "processing")
	lagA, lagB := a.metrics("records_lag"), o.metrics("records_lag")
	require.Len(t, lagA, 2, "what was lost is not shown any more")
	require.Len(t, lagB, 2)
	for labels := range lagA {
		require.NotContains(t, lagB, labels)
	}
	require.Len(t, a.metrics("num_records_in"), 2)
	b.groups[app] = true
	require.Eventually(t, func() bool {
		return sum(a.metrics("records_lag"))+sum(o.metrics("records_lag")) == float64(b.stableLag(app))
	}, 10*time.Second, 100*time.Millisecond)

	require.NoError(t, stopB())
	require.Eventually(t, func() bool {
		lag := a.metrics("records_lag")
		return len(lag) == 4 && sum(lag) == float64(b.stableLag(app)) // of all partitions, up to the last stable offsets
	}, 20*time.Second, 50*time.Millisecond)
	require.NoError(t, foreign.EndTransaction(t.Context(), kgo.TryAbort))
	require.NoError(t, stopA())
}

// stableLag is what the group has not committed of what can be read.
func (b *bed) stableLag(group string) (lag int64) {
	adm := kadm.NewClient(b.cl)
	ends, err := adm.ListCommittedOffsets(b.t.Context(), inTopic())
	require.NoError(b.t, err)
	committed, err := adm.FetchOffsets(b.t.Context(), group)
	require.NoError(b.t, err)
	ends.Each(func(o kadm.ListedOffset) {
		at, _ := committed.Lookup(o.Topic, o.Partition)
		lag += o.Offset - at.At
	})
	return lag
}

func TestCountersGoOnOverAttempts(t *testing.T) {
	var c total64
	for _, v := range []struct{ read, want int64 }{{0, 0}, {5, 5}, {9, 9}, {2, 11}, {3, 12}, {0, 12}, {1, 13}} {
		c.read(v.read)
		require.EqualValues(t, v.want, c.value())
	}
}

func TestCancelOverTheListenerEndsWithASavepointAtTheLastCheckpoint(t *testing.T) {
	b := newBed(t)
	const app = "cancels"
	plan := countPlan(t, app)
	cfg, o := b.instance("a")
	var stopping atomic.Int64
	cfg.Stopping = func() { stopping.Add(1) }
	done := make(chan error, 1)
	go func() { done <- Run(context.Background(), plan, cfg) }()
	o.says("/readyz", 200, "processing")
	b.produce(0, 5000)
	c := o.client()
	_, err := c.Cancel(t.Context(), admin.Cancel{Savepoint: true})
	require.Equal(t, fault.BadFile, fault.CodeOf(err))
	require.ErrorContains(t, err, "state.savepoints.dir")
	o.says("/readyz", 200, "processing") // a refused one has no effect
	file := filepath.Join(b.dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = c.Cancel(t.Context(), admin.Cancel{Savepoint: true, Dir: file})
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
	o.says("/readyz", 200, "processing")

	part, err := c.Cancel(t.Context(), admin.Cancel{Savepoint: true, Dir: filepath.Join(b.dir, "savepoints")})
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.EqualValues(t, 1, stopping.Load())
	require.NoFileExists(t, filepath.Join(cfg.DataDir, admin.AddressFile))
	require.Len(t, part.Partitions, 4)
	sp, err := snapshot.OpenSavepoint(t.Context(), part.Path)
	require.NoError(t, err)
	defer sp.Close()
	_, err = sp.Verify(t.Context())
	require.NoError(t, err)
	b.groups[app] = true
	committed, err := kadm.NewClient(b.cl).FetchOffsets(t.Context(), app)
	require.NoError(t, err)
	for i := range sp.Root.Tasks {
		for _, p := range sp.Root.Tasks[i].Positions {
			at, ok := committed.Lookup(p.Topic, p.Partition)
			require.True(t, ok)
			require.Equal(t, at.At, p.Offset, "nothing is committed behind the savepoint")
		}
	}
}

func TestACancelWithoutALastCheckpointSaysSo(t *testing.T) {
	b := newBed(t)
	cfg, o := b.instance("a")
	cfg.Interval, cfg.Retention = 5*time.Minute, DeleteOnCancellation
	broken := new(atomic.Bool)
	cfg.Decorate = func(p *engine.Ports) { p.Checkpoints = guarded{p.Checkpoints, nil, broken} }
	done := make(chan error, 1)
	go func() { done <- Run(context.Background(), countPlan(t, "unfinished"), cfg) }()
	o.says("/readyz", 200, "processing")
	b.produce(0, 100)
	require.Eventually(t, func() bool { return sum(o.metrics("number_of_completed_checkpoints")) > 0 }, 20*time.Second, 20*time.Millisecond)
	broken.Store(true)
	b.produce(100, 100)
	require.Eventually(t, func() bool { return sum(o.metrics("num_records_in")) == 200 }, 20*time.Second, 20*time.Millisecond)
	_, err := o.client().Cancel(t.Context(), admin.Cancel{})
	require.Equal(t, fault.Unfinished, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "the disk says no")
	require.NoError(t, <-done)
	kept, err := filepath.Glob(filepath.Join(cfg.CheckpointsDir, "*", "*", "chk-*"))
	require.NoError(t, err)
	require.NotEmpty(t, kept, "nothing is deleted then")
}

func TestTriggersOverTheListener(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	plan := countPlan(t, "triggers")
	cfg, o := b.instance("a")
	cfg.Interval, cfg.SavepointsDir = 5*time.Minute, filepath.Join(b.dir, "savepoints")
	stop := b.start(plan, cfg)
	o.says("/readyz", 200, "processing")
	c := o.client()
	b.produce(0, 100) // the first checkpoint does not wait for the interval
	require.Eventually(t, func() bool {
		return sum(o.metrics("num_records_in")) == 100 && sum(o.metrics("number_of_completed_checkpoints")) == 1
	}, 20*time.Second, 20*time.Millisecond)
	b.produce(100, 100)
	require.Eventually(t, func() bool { return sum(o.metrics("num_records_in")) == 200 }, 20*time.Second, 20*time.Millisecond)
	require.Positive(t, sum(o.metrics("uncommitted_bytes")))
	got, err := c.TriggerCheckpoint(t.Context())
	require.NoError(t, err)
	require.True(t, got.Needed)
	require.Contains(t, got.Stats.Phases, "commit")
	require.Positive(t, got.Stats.Sizes["delta"])
	require.EqualValues(t, 2, sum(o.metrics("number_of_completed_checkpoints")))
	require.EqualValues(t, got.Stats.ID, sum(o.metrics("last_completed_checkpoint_id")))
	got, err = c.TriggerCheckpoint(t.Context())
	require.NoError(t, err)
	require.False(t, got.Needed)
	require.Eventually(t, func() bool { return sum(o.metrics("uncommitted_bytes")) == 0 }, 5*time.Second, 20*time.Millisecond)
	_, body := o.get("/api/v1/savepoints")
	require.Equal(t, "{\n  \"savepoints\": []\n}\n", body, "nobody has made the directory yet")
	part, err := c.TriggerSavepoint(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, cfg.SavepointsDir, filepath.Dir(part.Path))
	_, body = o.get("/api/v1/savepoints")
	require.Contains(t, body, part.Path)
	rep, err := c.Checkpoints(t.Context())
	require.NoError(t, err)
	require.Equal(t, "running", rep.State)
	require.EqualValues(t, 3, rep.Totals.Completed)
	require.Len(t, rep.Recent, 3)
	require.Equal(t, part.Checkpoint, rep.Committed)
	require.NoError(t, stop())
}
