package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/verify"
)

// result is what one run of one contender gave.
type result struct {
	name       string
	rate       float64 // records/s between 10 % and 90 % of the outputs
	first      time.Duration
	cpu        float64 // µs per record, user and system, of the process
	allocs     float64 // heap objects per record
	allocBytes float64
	rss        int64 // KiB at most
}

// exchangeParallelism is the number of subtasks behind the exchange of that contender.
const exchangeParallelism = 2

// childStats is what a contender's process writes about itself at its end.
type childStats struct{ Mallocs, Bytes uint64 }

// runChild is the contender's process: it works until SIGTERM and then writes its statistics.
func runChild(ctx context.Context, o options) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // the same for both
	}
	var err error
	switch o.role {
	case "raw":
		err = raw(ctx, o.brokers(), o.in, o.out, o.group, o.interval)
	case "millweir":
		err = job(ctx, o.brokers(), o.in, o.out, o.group, o.dir, o.interval, 0)
	case "exchange":
		err = job(ctx, o.brokers(), o.in, o.out, o.group, o.dir, o.interval, exchangeParallelism)
	default:
		err = fmt.Errorf("unknown role %q", o.role)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b, jerr := json.Marshal(childStats{m.Mallocs, m.TotalAlloc})
	return errors.Join(err, jerr, os.WriteFile(filepath.Join(o.dir, "stats.json"), b, 0o644))
}

// measure runs one contender over the input until every record has its output, stops it, and verifies the output.
func measure(ctx context.Context, cl *kgo.Client, o options, name, out string) (result, error) {
	res := result{name: name}
	if _, err := kafka.EnsureTopic(ctx, cl, out, o.partitions32(), nil); err != nil {
		return res, err
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return res, err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return res, err
	}
	cmd := exec.Command(self, "-role", name, "-brokers", o.brokerList, "-in", o.in, "-out", out, "-group", out, "-dir", dir, "-interval", o.interval.String())
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return res, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	w, err := newWatcher(ctx, cl, out)
	if err != nil {
		return res, err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return res, err
	}
	watched := w.run(ctx, int64(o.records))
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := errors.Join(watched, cmd.Wait()); err != nil {
		text, _ := os.ReadFile(log.Name())
		return res, fmt.Errorf("%s: %w\n%s", name, err, text)
	}
	res.rate, res.first = w.rate(0.1, 0.9, start)
	return res, res.account(ctx, o, cmd.ProcessState, dir, out)
}

// account adds what the process cost, and voids the run if its output is wrong.
func (r *result) account(ctx context.Context, o options, ps *os.ProcessState, dir, out string) error {
	n := float64(o.records)
	r.cpu = float64((ps.UserTime() + ps.SystemTime()).Microseconds()) / n
	if ru, ok := ps.SysUsage().(*syscall.Rusage); ok {
		r.rss = ru.Maxrss
	}
	b, err := os.ReadFile(filepath.Join(dir, "stats.json"))
	if err != nil {
		return err
	}
	var s childStats
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	r.allocs, r.allocBytes = float64(s.Mallocs)/n, float64(s.Bytes)/n
	rep, err := verify.Verify(ctx, verify.Config{Kafka: kafka.Config{Brokers: o.brokers()}, Input: o.in, Output: out, Format: verify.Binary})
	if err != nil {
		return err
	}
	if !rep.Exact() || rep.RecordsOut != int64(o.records) {
		return fmt.Errorf("%s: the output is wrong, the run is void: %d outputs of %d inputs, %d duplicates, %d missing, %d wrong", r.name, rep.RecordsOut, o.records, rep.Duplicates, rep.Missing, rep.Wrong)
	}
	return nil
}
