//go:build synctests

package synctests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/millweir/millweir/internal/vfs"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The names in every world.
const (
	application = "counts"
	inTopic     = "in"
	outTopic    = "out"
	loader      = "loader"

	shutdown = 10 * time.Second // of the service
	logLines = 3000             // kept for a failure

	mostFailures = 8 // told of one run
)

// Counts tells what runs have met.
type Counts struct {
	Records     int64 // of input that count
	Checkpoints int64 // committed
	Attempts    int64 // started
	Kills       int64
	Answers     int64 // of brokers, with an error
	Requests    int64 // slow or lost
	Nudges      int64 // how often the embedded broker was helped, see nudge
	Virtual     time.Duration
}

// Add sums up.
func (c *Counts) Add(o Counts) {
	c.Records += o.Records
	c.Checkpoints += o.Checkpoints
	c.Attempts += o.Attempts
	c.Kills += o.Kills
	c.Answers += o.Answers
	c.Requests += o.Requests
	c.Nudges += o.Nudges
	c.Virtual += o.Virtual
}

// String tells them in one line.
func (c Counts) String() string {
	return fmt.Sprintf("%d records counted, %d checkpoints committed, %d attempts, %d kills, %d answers with an error, %d requests slow or lost, %d times the broker was helped, %v of the bubbles' time",
		c.Records, c.Checkpoints, c.Attempts, c.Kills, c.Answers, c.Requests, c.Nudges, c.Virtual.Round(time.Second))
}

// count changes the counts.
func (w *World) count(f func(*Counts)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.counts)
}

// World is what one schedule happens in: a cluster, a network, a disk, and the places for processes.
type World struct {
	s       Schedule
	dir     string // for what the service keeps on the real file system: its lock
	net     *Network
	cluster *kfake.Cluster
	brokers []string
	disk    *vfs.Mem
	plan    *topology.Plan
	slots   []*Slot
	counts  Counts
	began   time.Time

	processes sync.WaitGroup
	hosts     map[string]*Host // of all processes so far, by name
	faults    []*kfake.FaultHandle

	mu         sync.Mutex
	live       io.Writer // gets every line of the log at once
	lines      []string
	failures   []string
	diskFaults []diskFault
	expected   map[string]int64 // records by key in the input
	ends       map[int32]int64  // by input partition: behind the last committed record
}

func newWorld(s Schedule, dir string, live io.Writer) (*World, error) {
	w := &World{s: s, live: live, dir: dir, net: newNetwork(), disk: vfs.NewMem(), began: time.Now(), hosts: map[string]*Host{}, expected: map[string]int64{}, ends: map[int32]int64{}}
	b := topology.New(application)
	in := topology.FromTopic(b, "in", inTopic, serde.String(), serde.String())
	topology.ToTopic(topology.Count(in, "count"), "out", outTopic, serde.String(), serde.Int64())
	var err error
	if w.plan, err = b.Plan(); err != nil {
		return nil, err
	}
	w.cluster, err = kfake.NewCluster(kfake.NumBrokers(s.Brokers), kfake.ListenFn(w.net.Listen), kfake.GroupMinSessionTimeout(time.Second),
		kfake.SeedTopics(int32(s.In), inTopic), kfake.SeedTopics(int32(s.Out), outTopic))
	if err != nil {
		return nil, err
	}
	w.brokers = w.cluster.ListenAddrs()
	w.disk.SetFault(w.diskFault)
	for i := range s.Instances + 1 { // the last one is there to take over
		w.slots = append(w.slots, &Slot{w: w, index: i, instance: fmt.Sprintf("i%d", i)})
	}
	return w, nil
}

// client makes a client of the world's own, which no fault meets.
func (w *World) client(name string, opts ...kgo.Opt) (*kgo.Client, error) {
	h := w.net.Host(name, 0, w.s.Seed)
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(w.brokers...), kgo.Dialer(h.Dial), kgo.MetadataMinAge(50 * time.Millisecond), kgo.ProducerBatchCompression(kgo.NoCompression())}, opts...)...)
}

// log keeps a line for a failure.
func (w *World) log(format string, args ...any) { w.line(fmt.Sprintf(format, args...)) }

func (w *World) line(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text = fmt.Sprintf("%9.3f %s", time.Since(w.began).Seconds(), text)
	if w.live != nil {
		_, _ = fmt.Fprintln(w.live, text)
	}
	w.lines = append(w.lines, text)
	if len(w.lines) > 2*logLines {
		w.lines = append(w.lines[:0], w.lines[logLines:]...)
	}
}

// fail notes that something is wrong with the service.
func (w *World) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.line("FAILURE: " + text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures = append(w.failures, text)
}

// verdict gives what is wrong, nil when nothing is.
func (w *World) verdict() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.failures) == 0 {
		return nil
	}
	first, more := w.failures, ""
	if len(first) > mostFailures {
		first, more = first[:mostFailures], fmt.Sprintf("\n  and %d more", len(first)-mostFailures)
	}
	return errors.New(strings.Join(first, "\n  ") + more)
}

// exit judges the end of a process.
func (w *World) exit(instance string, err error) (again bool) {
	w.log("%s has ended: %v", instance, err)
	if !tolerated(err) {
		w.fail("%s ended with an error that no fault of the schedule explains: %v", instance, err)
		return false
	}
	return true
}

// hopeless says that a process has ended and stays away, so that nothing needs to be waited for.
func (w *World) hopeless() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.failures) > 0
}

// logger gives a process's log, kept for a failure.
func (w *World) logger(process string) *slog.Logger {
	return slog.New(slog.NewTextHandler(lineWriter{w, process}, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "application" {
				return slog.Attr{}
			}
			return a
		},
	}))
}

type lineWriter struct {
	w       *World
	process string
}

func (l lineWriter) Write(b []byte) (int, error) {
	l.w.line(l.process + ": " + strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

var _ io.Writer = lineWriter{}

// diskFault is an error of the medium for the next operations of a kind.
type diskFault struct {
	op    vfs.OpKind
	err   error
	count int
}

// diskFault is asked before each operation of the disk.
func (w *World) diskFault(op vfs.Op) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.diskFaults {
		if f := &w.diskFaults[i]; f.op == op.Kind && f.count > 0 {
			f.count--
			return f.err
		}
	}
	return nil
}

// await waits until cond holds, at most for a while.
func await(ctx context.Context, most time.Duration, cond func() bool) bool {
	end := time.Now().Add(most)
	for !cond() {
		if time.Now().After(end) || ctx.Err() != nil {
			return false
		}
		time.Sleep(50 * time.Millisecond)
	}
	return true
}
