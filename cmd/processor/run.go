package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/config"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/embedded"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/sabotage"
	"github.com/millweir/millweir/processor"
	"github.com/millweir/millweir/topology"
)

func init() { register(newRun); register(newDemoJob) }

// gcPercent is the garbage collector's setting unless GOGC says otherwise: the live heap of a processor is its state,
// in a few large pieces, and most of what is allocated beside it lives for one batch.
const gcPercent = 400

const defaultEmbeddedPort = 9092

// runFlags are the flags of run and of what runs like it.
type runFlags struct {
	set          []string
	logLevel     string
	logFormat    string
	embedded     bool
	embeddedPort int
	sabotage     string
	recover      bool
	start        startFlags
}

func (f *runFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringArrayVar(&f.set, "set", nil, "`PATH=VALUE` of a setting, over file and environment; may be repeated")
	fs.StringVar(&f.logLevel, "log-level", "info", "least `LEVEL` that is logged: debug, info, warn or error")
	fs.StringVar(&f.logFormat, "log-format", "text", "form of the log, `text|json`")
	fs.BoolVar(&f.embedded, "embedded", false, "run a small broker inside this process instead of using kafka.brokers; its data lies in <data-dir>/broker")
	fs.IntVar(&f.embeddedPort, "embedded-port", defaultEmbeddedPort, "`PORT` of the embedded broker on 127.0.0.1; 0 takes a free one")
}

func newRun() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run FILE.yaml",
		Short: "Run a topology until SIGTERM",
		Long: `Run a topology. It processes until SIGINT or SIGTERM, then takes a last checkpoint and ends with exit code 0.
Where that checkpoint is not possible within shutdown.timeout, because no broker answers, say, the exit code is 42, and the
next start does again what was not committed.

Started several times, each with a data-dir of its own and all with one state.checkpoints.dir, the instances share the
partitions: they come and go at any time, and those that get none stand by.

With --from it starts from a savepoint: under a new application name it goes on as a fork of the service that took it, with
another backend, parallelism or host if you like. The flag may stay: it is ignored once a checkpoint of the service comes from
the savepoint. All instances get the same flags.

Settings come from the file, then from MILLWEIR_… variables, then from --set; docs/settings.md lists them.`,
		Example: "  processor run orders.yaml\n  processor run orders.yaml --embedded\n  processor run fork.yaml --from savepoints/savepoint-orders-17-8a3c0f21be55d604\n  processor run orders.yaml --set checkpointing.interval=100ms",
		Args:    exactArgs("FILE.yaml"),
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.recover, "recover-from-store", false, "when the group's offsets are gone, damaged or stale, or their checkpoint is: start from the newest committed checkpoint of the store; outputs may repeat (docs/checkpoints.md)")
	f.start.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.start.check(f.recover); err != nil {
			return err
		}
		outliveReader()
		return f.start.wayOn(wayBack(runFile(cmd, args[0], f), args[0], &f), args[0], f.set)
	}
	return cmd
}

// outliveReader lets a service go on when nobody reads its log any more: a write to the pipe fails then, and ends nothing.
// It is caught and not ignored, since what is ignored goes on to child processes.
func outliveReader() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// newDemoJob is run with a planted fault. Only the demo uses it.
func newDemoJob() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{Use: "demo-job FILE.yaml", Short: "run with a planted fault", Hidden: true, Args: exactArgs("FILE.yaml")}
	f.add(cmd)
	cmd.Flags().StringVar(&f.sabotage, "sabotage", "", "the fault: "+sabotage.Names())
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return runFile(cmd, args[0], f) }
	return cmd
}

func runFile(cmd *cobra.Command, file string, f runFlags) error {
	decorate, err := sabotage.Decorate(f.sabotage)
	if err != nil {
		return fault.Stopf(fault.Usage, "%w", err)
	}
	return runDecorated(cmd, file, f, decorate)
}

// runDecorated is runFile with something in the way of what the engine uses.
func runDecorated(cmd *cobra.Command, file string, f runFlags, decorate func(*engine.Ports)) error {
	log, err := newLogger(cmd.ErrOrStderr(), f.logLevel, f.logFormat)
	if err != nil {
		return err
	}
	svc, err := load(cmd, file, f.set)
	if err != nil {
		return err
	}
	cfg := svc.Processor()
	cfg.Logger, cfg.Decorate, cfg.RecoverFromStore = log, decorate, f.recover
	f.start.apply(&cfg)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, cancelled := context.WithCancel(cmd.Context())
	defer cancelled()
	cfg.Stopping = cancelled
	end := &ending{stop: ctx, more: make(chan time.Duration, 1)}
	end.watch(&cfg.Listener)
	cfg.Outlived, cfg.Settling = end.pardon, end.settling
	defer end.insist(cfg.ShutdownTimeout, cmd.ErrOrStderr())()
	if !f.embedded {
		return end.after(processor.Run(ctx, svc.Plan, cfg))
	}
	return end.after(runEmbedded(ctx, svc, cfg, f.embeddedPort, log))
}

// runEmbedded runs the service on a broker of its own. The broker outlives the service: its last checkpoint needs it.
func runEmbedded(ctx context.Context, svc *config.Service, cfg processor.Config, port int, log *slog.Logger) error {
	b, err := embedded.Start(ctx, embedded.Config{Port: port, DataDir: filepath.Join(cfg.DataDir, "broker"), Topics: topicsOf(svc.Plan), Logger: log})
	if err != nil {
		return portHint(err, port, "--embedded-port")
	}
	log.Info("embedded broker", "address", b.Addr(), "data", filepath.Join(cfg.DataDir, "broker"))
	cfg.Brokers = []string{b.Addr()}
	return errors.Join(processor.Run(ctx, svc.Plan, cfg), b.Close())
}

func topicsOf(p *topology.Plan) []embedded.Topic {
	var topics []embedded.Topic
	for _, s := range p.Sources {
		if s.Topic == "" {
			continue // a pattern; it matches what is there
		}
		topics = append(topics, embedded.Topic{Name: s.Topic, Partitions: embedded.DefaultPartitions})
	}
	seen := map[string]bool{}
	for _, s := range p.Sinks {
		if !seen[s.Topic] {
			topics = append(topics, embedded.Topic{Name: s.Topic, Partitions: embedded.DefaultPartitions})
		}
		seen[s.Topic] = true
	}
	return topics
}

// read reads a service file. A pipe that nobody writes to holds it up for ever, whatever the signals; it is left behind then.
func read(ctx context.Context, file string, set []string) (*config.Service, *config.Problems, error) {
	type loaded struct {
		svc      *config.Service
		problems *config.Problems
	}
	done := make(chan loaded, 1)
	go func() {
		svc, problems := config.Load(file, set, os.Environ())
		done <- loaded{svc, problems}
	}()
	select {
	case l := <-done:
		return l.svc, l.problems, nil
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("read %s: %w", file, ctx.Err())
	}
}

// load reads a service file; its mistakes go to stderr, one per line, and the error sums them up.
func load(cmd *cobra.Command, file string, set []string) (*config.Service, error) {
	svc, problems, err := read(cmd.Context(), file, set)
	if err != nil {
		return nil, err
	}
	all := problems.All()
	for _, p := range all {
		fmt.Fprintln(cmd.ErrOrStderr(), p)
	}
	if err := problems.Err(); err != nil {
		return nil, fault.Stopf(fault.BadFile, "%s: %s", file, counted(problems.Len(), "mistake"))
	}
	return svc, nil
}

// counted is a number and what it counts: 1 source, 2 sources.
func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fault.Stopf(fault.Usage, "--log-level %q: debug, info, warn or error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fault.Stopf(fault.Usage, "--log-format %q: text or json", format)
}
