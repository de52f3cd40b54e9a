package processor

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
)

// Limits of the metrics.
const (
	scrapeTimeout  = 8 * time.Second
	scrapesAtOnce  = 4
	metricsPrefix  = "millweir_"
	labelTopic     = "topic"
	labelPartition = "partition"
)

// metrics counts what happens and gathers, at each scrape, what is.
type metrics struct {
	s   *service
	reg *prometheus.Registry
	lag lagReader

	mu        sync.Mutex
	counts    admin.Totals
	inFlight  uint64
	looping   uint64                      // records on feedback edges at checkpoints that completed
	last      *checkpoint.CheckpointStats // the newest that completed
	completed time.Time                   // when
	seen      map[element.TaskID]*taskCounts
	told      time.Time // when the engine told what is in seen
	durations prometheus.Histogram
}

// taskCounts carries counters on over attempts, which begin at zero.
type taskCounts struct {
	records, emitted, skipped total64
}

// total64 is a counter that goes on when what it reads begins anew.
type total64 struct{ before, now int64 }

func (t *total64) read(v int64) {
	if v < t.now {
		t.before += t.now
	}
	t.now = v
}

func (t *total64) value() float64 { return float64(t.before + t.now) }

func newMetrics(s *service) *metrics {
	m := &metrics{s: s, reg: prometheus.NewRegistry(), lag: lagReader{s: s}, seen: map[element.TaskID]*taskCounts{}}
	m.durations = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: metricsPrefix + "checkpoint_duration_seconds", Help: "Time from the trigger to the commit of completed checkpoints.",
		Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	})
	m.reg.MustRegister(m, m.durations, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{Registry: m.reg, MaxRequestsInFlight: scrapesAtOnce, Timeout: scrapeTimeout, ErrorHandling: promhttp.ContinueOnError})
}

// totals gives the counts since the process began.
func (m *metrics) totals() admin.Totals {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts
}

// listener counts, and passes everything on.
func (m *metrics) listener(user engine.Listener) engine.Listener {
	lis := user
	lis.Looping = func(id element.CheckpointID, records int64, last bool) {
		m.mu.Lock()
		m.looping += uint64(max(records, 0))
		m.mu.Unlock()
		if user.Looping != nil {
			user.Looping(id, records, last)
		}
	}
	lis.AttemptEnded = func(n int, err error, rec fault.Recovery, delay time.Duration) {
		m.mu.Lock()
		m.counts.Failed += m.inFlight // they end with the attempt
		m.inFlight = 0
		m.mu.Unlock()
		if user.AttemptEnded != nil {
			user.AttemptEnded(n, err, rec, delay)
		}
	}
	if m.s.cfg.DisabledCheckpoints {
		return lis // what the engine calls checkpoints only commits offsets
	}
	lis.CheckpointTriggered = func(id element.CheckpointID) {
		m.mu.Lock()
		m.counts.Triggered++
		m.inFlight++
		m.mu.Unlock()
		call(user.CheckpointTriggered, id)
	}
	lis.CheckpointCompleted = func(s checkpoint.CheckpointStats) {
		m.mu.Lock()
		m.counts.Completed++
		m.inFlight -= min(m.inFlight, 1)
		m.last, m.completed = &s, time.Now()
		m.mu.Unlock()
		m.durations.Observe(s.EndToEnd.Seconds())
		call(user.CheckpointCompleted, s)
	}
	lis.CheckpointAbandoned = func(ids []element.CheckpointID, reason checkpoint.FailureReason, err error) {
		m.mu.Lock()
		m.counts.Abandoned += uint64(len(ids))
		m.inFlight -= min(m.inFlight, uint64(len(ids)))
		m.mu.Unlock()
		if user.CheckpointAbandoned != nil {
			user.CheckpointAbandoned(ids, reason, err)
		}
	}
	return lis
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(metricsPrefix+name, help, labels, nil)
}

// The names are Flink's in snake case, with the unit behind them.
var (
	descInfo       = desc("instance_info", "What the instance is; always 1.", "application", "instance")
	descState      = desc("instance_state", "1 for what the instance does at the moment.", "state")
	descReady      = desc("ready", "1 when /readyz says so.")
	descRestarts   = desc("num_restarts", "Restarts after failures since the process began.")
	descAttempt    = desc("attempt", "Number of the attempt that runs or ran last, from 1.")
	descTotal      = desc("total_number_of_checkpoints", "Checkpoints triggered.")
	descCompleted  = desc("number_of_completed_checkpoints", "Checkpoints committed.")
	descFailed     = desc("number_of_failed_checkpoints", "Checkpoints that ended with their attempt.")
	descAbandoned  = desc("number_of_abandoned_checkpoints", "Failed checkpoints that were tolerated; the next one covers them.")
	descInProgress = desc("number_of_in_progress_checkpoints", "Checkpoints in flight.")
	descLastID     = desc("last_completed_checkpoint_id", "Number of the last committed checkpoint.")
	descLastTime   = desc("last_completed_checkpoint_timestamp_seconds", "When the last checkpoint was committed, Unix time.")
	descDuration   = desc("last_checkpoint_duration_seconds", "Time from the trigger to the commit of the last committed checkpoint.")
	descPhase      = desc("last_checkpoint_phase_seconds", "Times of the phases of the last committed checkpoint.", "phase")
	descSize       = desc("last_checkpoint_size_bytes", "What the last committed checkpoint wrote: the difference to the one before, unless it was a full one.")
	descFull       = desc("last_checkpoint_full_size_bytes", "What a restore from the last committed checkpoint reads.")
	descBuffered   = desc("last_checkpoint_buffered_bytes", "Records that waited behind the barriers of the last committed checkpoint, or became part of it.")
	descAlignment  = desc("checkpoint_alignment_time_seconds", "Longest alignment of a task in the last committed checkpoint.")
	descDelay      = desc("checkpoint_start_delay_time_seconds", "Longest time until a task had the barrier of the last committed checkpoint.")
	descIn         = desc("num_records_in", "Records that a task has taken, those included that a failed attempt took in vain.", "stage", labelPartition)
	descOut        = desc("num_records_out", "Records that a task has emitted to sinks, likewise.", "stage", labelPartition)
	descSkipped    = desc("num_records_skipped", "Records that the policy of their source let go, likewise.", "stage", labelPartition)
	descStored     = desc("state_size_bytes", "What the committed state of a task is stored in.", "stage", labelPartition)
	descUncommit   = desc("uncommitted_bytes", "State of a task that has changed since the last commit.", "stage", labelPartition)
	descUnflushed  = desc("output_unflushed_limit_bytes", "Output that may be unacknowledged, and as much again held back, so that a checkpoint can flush it in time.")
	descOutRate    = desc("output_acknowledged_bytes_per_second", "What the brokers acknowledge in a second when they are kept busy, as far as it was seen; 1 MiB before that.")
	descHeldUp     = desc("output_held_up", "1 while tasks wait for the brokers to acknowledge output, and half a minute beyond.")
	descOutWait    = desc("output_wait_seconds", "Time that tasks have waited for the brokers to acknowledge output, added up.")
	descLooping    = desc("feedback_records", "Records on feedback edges that committed checkpoints lack, added up: what a failure right behind each would have lost.")
	descCommitted  = desc("committed_offset", "Committed position of a partition that the instance owns: the next offset to process.", labelTopic, labelPartition)
	descLag        = desc("records_lag", "Last stable offset minus committed position of a partition that the instance owns.", labelTopic, labelPartition)
	descOpen       = desc("open_transaction_offsets", "Offsets behind the last stable one: what open transactions keep from being read.", labelTopic, labelPartition)
	descLagErrors  = desc("lag_errors", "Scrapes whose lag is not known, since no broker told.")

	descs = []*prometheus.Desc{descInfo, descState, descReady, descRestarts, descAttempt, descTotal, descCompleted, descFailed, descAbandoned, descInProgress,
		descLastID, descLastTime, descDuration, descPhase, descSize, descFull, descBuffered, descAlignment, descDelay,
		descIn, descOut, descSkipped, descStored, descUncommit, descUnflushed, descOutRate, descHeldUp, descOutWait, descLooping, descCommitted, descLag, descOpen, descLagErrors}
)

// Describe gives all that Collect may give.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range slices.Concat(descs, spillDescs) {
		out <- d
	}
}

func gauge(out chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func counter(out chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

// Collect gathers. What a partition or a task has goes with it: there is no series of one that this instance has lost.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout*3/4)
	defer cancel()
	gauge(out, descInfo, 1, m.s.application, m.s.instance)
	_, ready := m.s.ops.Ready(ctx)
	gauge(out, descReady, oneIf(ready))
	m.collectCheckpoints(out)
	m.collectOutflow(out)
	r := m.s.runner.Load()
	if r == nil {
		return
	}
	st := m.s.ops.status(ctx, r)
	for _, state := range []engine.RunState{engine.StandingBy, engine.Restoring, engine.Running, engine.Ending, engine.Waiting, engine.Ended} {
		gauge(out, descState, oneIf(st.State == state), string(state))
	}
	counter(out, descRestarts, float64(st.Restarts))
	gauge(out, descAttempt, float64(st.Attempt))
	m.collectTasks(out, st)
	m.collectSpill(out)
	m.lag.collect(ctx, out)
}

func (m *metrics) collectOutflow(out chan<- prometheus.Metric) {
	if m.s.outflow == nil {
		return
	}
	st := m.s.outflow.Stats()
	gauge(out, descUnflushed, float64(st.Limit))
	gauge(out, descOutRate, st.Rate)
	gauge(out, descHeldUp, oneIf(st.Throttled))
	counter(out, descOutWait, st.Waited.Seconds())
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func (m *metrics) collectCheckpoints(out chan<- prometheus.Metric) {
	m.mu.Lock()
	counts, inFlight, looping, last, completed := m.counts, m.inFlight, m.looping, m.last, m.completed
	m.mu.Unlock()
	if m.s.feedback {
		counter(out, descLooping, float64(looping))
	}
	counter(out, descTotal, float64(counts.Triggered))
	counter(out, descCompleted, float64(counts.Completed))
	counter(out, descFailed, float64(counts.Failed))
	counter(out, descAbandoned, float64(counts.Abandoned))
	gauge(out, descInProgress, float64(inFlight))
	if last == nil {
		return
	}
	gauge(out, descLastID, float64(last.ID))
	gauge(out, descLastTime, float64(completed.UnixMilli())/1000)
	gauge(out, descDuration, last.EndToEnd.Seconds())
	for _, f := range last.Phases() {
		gauge(out, descPhase, f.Time.Seconds(), f.Label)
	}
	gauge(out, descSize, float64(last.DeltaBytes))
	gauge(out, descFull, float64(last.FullBytes))
	gauge(out, descBuffered, float64(last.BufferedBytes))
	gauge(out, descAlignment, last.Alignment.Seconds())
	gauge(out, descDelay, last.StartDelay.Seconds())
}

func (m *metrics) collectTasks(out chan<- prometheus.Metric, st engine.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !st.Told.Before(m.told) {
		m.take(st)
	}
	for _, t := range st.Tasks {
		c := m.seen[t.ID]
		if c == nil {
			continue
		}
		labels := []string{t.ID.Source, strconv.Itoa(int(t.ID.Partition))}
		counter(out, descIn, c.records.value(), labels...)
		counter(out, descOut, c.emitted.value(), labels...)
		counter(out, descSkipped, c.skipped.value(), labels...)
		gauge(out, descStored, float64(t.StateBytes), labels...)
		gauge(out, descUncommit, float64(t.Uncommitted), labels...)
	}
}

// take counts what the engine has told, and forgets the tasks that it has not told of. It is for what was told last: of two
// scrapes at once the other one may have that, and one that got no answer has nothing.
func (m *metrics) take(st engine.Status) {
	seen := make(map[element.TaskID]*taskCounts, len(st.Tasks))
	for _, t := range st.Tasks {
		c := m.seen[t.ID]
		if c == nil {
			c = &taskCounts{}
		}
		c.records.read(t.Records)
		c.emitted.read(t.Emitted)
		c.skipped.read(t.Skipped)
		seen[t.ID] = c
	}
	m.seen, m.told = seen, st.Told
}
