package demo

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/embedded"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/verify"
	"github.com/millweir/millweir/internal/vfs"
)

const (
	partitions    = 4
	stopBound     = 40 * time.Second // the job's own shutdown.timeout is 30 s
	abandonBound  = 5 * time.Second  // after Ctrl-C
	quiet         = 3 * time.Second  // without a new total the job counts as done, if there are enough
	pollEvery     = 50 * time.Millisecond
	checkpointAge = time.Second // how often the committed checkpoint is read
)

// run is one run of the demo.
type run struct {
	cfg    Config
	names  names
	job    Job
	result Result

	kafka   kafka.Config
	cl      *kgo.Client
	broker  *embedded.Broker
	prod    *producer
	tail    *tail
	child   *child
	logFile *os.File
	view    *view

	checkpoint atomic.Uint64
	start      time.Time // of the stream of orders
	onlyPaid   bool
}

// Run runs the demo. An error means that there is no verdict: the job died or never produced, the broker failed, or
// ctx ended. Otherwise the Result has it, be it good or bad.
func Run(ctx context.Context, cfg Config) (Result, error) {
	if err := cfg.defaults(); err != nil {
		return Result{}, err
	}
	if cfg.Seed == 0 {
		cfg.Seed = drawSeed()
	}
	r := &run{cfg: cfg}
	r.result = Result{Seed: cfg.Seed, Sabotage: cfg.Sabotage, Kills: []Kill{}, Notes: []string{}}
	err := r.run(ctx)
	return r.result, err
}

func drawSeed() uint64 {
	var b [4]byte // short enough to be typed again
	_, _ = rand.Read(b[:])
	return uint64(binary.BigEndian.Uint32(b[:])) + 1
}

func (r *run) run(ctx context.Context) (err error) {
	temporary, err := r.makeDir()
	if err != nil {
		return err
	}
	defer func() {
		if temporary && (err == nil && r.result.Exact() || errors.Is(err, context.Canceled)) {
			_ = os.RemoveAll(r.result.Dir)
			r.result.Dir = ""
		}
	}()
	defer func() { err = errors.Join(err, r.close(err == nil && r.result.Exact())) }()
	if err := r.open(ctx); err != nil {
		return err
	}
	if err := r.work(ctx); err != nil {
		return err
	}
	return r.judge(ctx)
}

// makeDir makes the directory of the run.
func (r *run) makeDir() (temporary bool, err error) {
	if r.cfg.Dir == "" {
		r.result.Dir, err = os.MkdirTemp("", "processor-demo-")
		return true, diskFault(err)
	}
	dir, err := filepath.Abs(r.cfg.Dir)
	if err == nil {
		err = vfs.MkdirAll(dir, 0o755)
	}
	var entries []os.DirEntry
	if err == nil {
		entries, err = os.ReadDir(dir)
	}
	switch {
	case err != nil:
		return false, diskFault(err)
	case len(entries) > 0:
		return false, fault.Stopf(fault.Usage, "%s is not empty: name a new directory", dir)
	}
	r.result.Dir = dir // before, nothing of the run is there
	return false, nil
}

// diskFault says of an error that it is one of the files of the run.
func diskFault(err error) error {
	if err == nil {
		return nil
	}
	return fault.Stopf(fault.CheckpointDir, "the directory of the demo: %w", err)
}

// open starts or reaches the broker and makes topics, topology file, clients and view.
func (r *run) open(ctx context.Context) error {
	r.names = newNames("")
	brokers := r.cfg.Brokers
	if len(brokers) == 0 {
		b, err := embedded.Start(ctx, embedded.Config{DataDir: filepath.Join(r.result.Dir, "broker")})
		if err != nil {
			return err
		}
		r.broker, brokers = b, []string{b.Addr()}
	} else {
		r.names = newNames(fmt.Sprintf("-demo-%x", time.Now().UnixMilli()))
	}
	logger := slog.New(slog.DiscardHandler) // errors come back as errors; warnings would tear the view
	r.kafka = kafka.Config{Brokers: brokers, ClientID: "millweir-demo", Logger: logger}
	if _, err := kafka.Probe(ctx, r.kafka, kafka.Need{}); err != nil {
		return err
	}
	var err error
	if r.cl, err = kafka.NewClient(r.kafka); err != nil {
		return err
	}
	for _, topic := range []string{r.names.input, r.names.output} {
		if _, err := kafka.EnsureTopic(ctx, r.cl, topic, partitions, nil); err != nil {
			return err
		}
	}
	if err := r.openJob(brokers); err != nil {
		return err
	}
	if r.tail, err = newTail(r.kafka, r.names.output); err != nil {
		return err
	}
	r.prod = &producer{cfg: r.kafka, topic: r.names.input, rate: r.cfg.Rate, seed: r.cfg.Seed,
		counts: func(o order) bool { return !r.onlyPaid || o.status == "paid" }}
	r.view = newView(r.cfg, r.status)
	r.view.head(r)
	return nil
}

func (r *run) openJob(brokers []string) error {
	file := r.cfg.Topology
	if file == nil {
		var err error
		if file, err = exampleTopology(); err != nil {
			return err
		}
	}
	path := filepath.Join(r.result.Dir, exampleFile)
	if err := writeTopology(path, file, r.names); err != nil {
		return err
	}
	r.onlyPaid = onlyPaid(file)
	var err error
	if r.logFile, err = os.OpenFile(r.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return diskFault(err)
	}
	r.job = Job{File: path, DataDir: filepath.Join(r.result.Dir, "job"), Brokers: brokers,
		Input: r.names.input, Output: r.names.output, Sabotage: r.cfg.Sabotage}
	return nil
}

func (r *run) logPath() string { return filepath.Join(r.result.Dir, "job.log") }

// work runs the stream, the job and the kills, until all is processed and the job has stopped.
func (r *run) work(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var owned sync.WaitGroup
	defer owned.Wait()
	defer cancel()
	streaming, stopStream := context.WithCancel(ctx)
	defer stopStream()
	produced := make(chan error, 1)
	r.start = time.Now()
	owned.Go(func() { produced <- r.prod.run(streaming) })
	owned.Go(func() { r.tail.run(ctx) })
	owned.Go(func() { r.watchCheckpoint(ctx) })
	owned.Go(func() { r.view.run(ctx) })

	r.view.say("orders flow into %s at %d/s, the job writes %s", r.names.input, r.cfg.Rate, r.names.output)
	if err := r.killing(ctx); err != nil {
		return err
	}
	if err := r.pause(ctx, r.cfg.Duration); err != nil {
		return err
	}
	stopStream()
	if err := <-produced; err != nil {
		return err
	}
	r.view.say("no more orders: %d are in the topic; waiting for the last totals", r.prod.acked.Load())
	if err := r.drain(ctx); err != nil {
		return err
	}
	r.view.say("stopping the job with SIGTERM")
	if err := r.child.stop(stopBound); err != nil {
		r.note("%v", err)
	}
	return nil
}

// killing starts the job and kills it at each moment of the schedule.
func (r *run) killing(ctx context.Context) error {
	recovery, err := r.launch(ctx)
	if err != nil {
		return err
	}
	r.result.FirstOutput = recovery
	r.view.say("first total after %s", short(recovery))
	for i, at := range schedule(r.cfg.Seed, r.cfg.Kills, r.cfg.Duration) {
		if err := r.pause(ctx, at); err != nil {
			return err
		}
		pid := r.child.cmd.Process.Pid
		r.child.kill()
		r.view.addKill(Kill{At: time.Since(r.start)})
		r.view.say("kill -9 of process %d (%d of %d), starting it again", pid, i+1, r.cfg.Kills)
		recovery, err := r.launch(ctx)
		if err != nil {
			return err
		}
		r.view.recovered(recovery)
		r.view.say("first new total %s after the start", short(recovery))
	}
	return nil
}

// launch starts the job and gives the time until its first committed output.
func (r *run) launch(ctx context.Context) (time.Duration, error) {
	fresh, err := r.tail.expect(ctx, r.cl, r.names.output)
	if err != nil {
		return 0, err
	}
	cmd, err := r.cfg.Command(r.job)
	if err != nil {
		return 0, err
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = r.result.Dir, r.logFile, r.logFile, childAttr()
	if r.child, err = startChild(cmd); err != nil {
		return 0, err
	}
	timer := time.NewTimer(r.cfg.Stall + 10*time.Second)
	defer timer.Stop()
	select {
	case at := <-fresh:
		return at.Sub(r.child.started), nil
	case <-r.child.done:
		return 0, r.died()
	case <-timer.C:
		return 0, fmt.Errorf("the job runs, but gave no total within %v%s; the last lines of %s:\n%s",
			r.cfg.Stall+10*time.Second, r.tailTrouble(), r.logPath(), logTail(r.logPath(), 12))
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (r *run) tailTrouble() string {
	if err := r.tail.failure(); err != nil {
		return fmt.Sprintf(" (reading them: %v)", err)
	}
	return ""
}

// died is the error for a child that ended by itself.
func (r *run) died() error {
	return fmt.Errorf("the job ended by itself: %s; the last lines of %s:\n%s", r.child.ending(), r.logPath(), logTail(r.logPath(), 12))
}

// pause waits until some time after the start of the stream; the job must live through it.
func (r *run) pause(ctx context.Context, until time.Duration) error {
	timer := time.NewTimer(time.Until(r.start.Add(until)))
	defer timer.Stop()
	select {
	case <-timer.C:
		if err := r.prod.failed.Load(); err != nil {
			return fmt.Errorf("orders: %w", *err)
		}
		return nil
	case <-r.child.done:
		return r.died()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drain waits for as many totals as orders. Too few without progress is noted, and left to the verifier to name.
func (r *run) drain(ctx context.Context) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	stopped := time.Now()
	for {
		want := r.prod.counted.Load()
		have, last := r.tail.read()
		if last.Before(stopped) {
			last = stopped
		}
		switch idle := time.Since(last); {
		case have == want, have > want && idle > quiet:
			return nil
		case have < want && idle > r.cfg.Stall:
			r.note("no progress for %v: %d of %d totals%s", r.cfg.Stall, have, want, r.tailTrouble())
			return nil
		}
		select {
		case <-ticker.C:
		case <-r.child.done:
			return r.died()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *run) note(format string, args ...any) {
	r.result.Notes = append(r.result.Notes, fmt.Sprintf(format, args...))
}

// watchCheckpoint keeps the newest committed checkpoint: the one that the offsets of the group name.
func (r *run) watchCheckpoint(ctx context.Context) {
	if r.cfg.Checkpoint == nil {
		return
	}
	adm := kadm.NewClient(r.cl)
	ticker := time.NewTicker(checkpointAge)
	defer ticker.Stop()
	for {
		offsets, err := adm.FetchOffsets(ctx, r.names.application)
		if err == nil {
			offsets.Each(func(o kadm.OffsetResponse) {
				if id, ok := r.cfg.Checkpoint(o.Metadata); ok && id > r.checkpoint.Load() {
					r.checkpoint.Store(id)
				}
			})
		} // else: only shown, and there again in a second
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// judge runs the independent check over everything.
func (r *run) judge(ctx context.Context) error {
	cfg := verify.Config{Kafka: r.kafka, Input: r.names.input, Output: r.names.output}
	if r.onlyPaid {
		cfg.WhereField, cfg.WhereValue = "status", "paid"
	}
	report, err := verify.Verify(ctx, cfg)
	if err != nil {
		return fmt.Errorf("the check: %w", err)
	}
	r.result.Elapsed = time.Since(r.start)
	r.result.Kills = r.view.kills()
	r.result.Checkpoint = r.checkpoint.Load()
	r.result.Report = &report
	if want := r.prod.counted.Load(); report.RecordsIn != want {
		return fmt.Errorf("the check saw %d orders that count, %d were acknowledged", report.RecordsIn, want)
	}
	return nil
}

// close ends what still runs. Topics on a real cluster go when all was well.
func (r *run) close(well bool) error {
	if r.child != nil {
		select {
		case <-r.child.done:
		default:
			_ = r.child.stop(abandonBound) // the error that led here is the one to tell
		}
	}
	if r.logFile != nil {
		_ = r.logFile.Close()
	}
	if r.cl != nil {
		if well && r.broker == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			// The internal topic may not exist; what stays behind has a name of its own.
			_, _ = kadm.NewClient(r.cl).DeleteTopics(ctx, r.names.input, r.names.output, r.names.application+checkpointsSuffix)
		}
		r.cl.Close()
	}
	if r.broker != nil {
		return r.broker.Close()
	}
	return nil
}
