package processor

import (
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
)

func TestRecordsOnFeedbackEdgesAreCounted(t *testing.T) {
	m := newMetrics(&service{})
	var heard int64
	lis := m.listener(engine.Listener{Looping: func(_ element.CheckpointID, n int64, _ bool) { heard += n }})
	lis.Looping(3, 5, false)
	lis.Looping(4, 2, true)
	require.EqualValues(t, 7, m.looping)
	require.EqualValues(t, 7, heard, "the listener hears of all")
}

func TestCommitsOfOffsetsAreNoCheckpoints(t *testing.T) {
	for _, disabled := range []bool{true, false} {
		m := newMetrics(&service{cfg: Config{DisabledCheckpoints: disabled}})
		heard := 0
		lis := m.listener(engine.Listener{CheckpointCompleted: func(checkpoint.CheckpointStats) { heard++ }})
		call(lis.CheckpointTriggered, 1)
		lis.CheckpointCompleted(checkpoint.CheckpointStats{ID: 1})
		require.Equal(t, 1, heard)
		require.Equal(t, disabled, m.totals().Completed == 0)
		require.Equal(t, disabled, m.totals().Triggered == 0)
		require.Equal(t, disabled, m.last == nil)
	}
}

// ofTasks gathers the metrics of tasks alone.
type ofTasks struct {
	*metrics
	st engine.Status
}

func (o ofTasks) Collect(out chan<- prometheus.Metric) { o.collectTasks(out, o.st) }

// recordsIn scrapes while the engine says so much, and gives the records that tasks have taken, by partition.
func recordsIn(t *testing.T, m *metrics, st engine.Status) map[string]float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(ofTasks{m, st})
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, v := range f.GetMetric() {
			if f.GetName() == metricsPrefix+"num_records_in" {
				got[v.GetLabel()[0].GetValue()] = v.GetCounter().GetValue()
			}
		}
	}
	return got
}

// told is the status of an attempt with one task for each number of records.
func told(records ...int64) engine.Status {
	st := engine.Status{State: engine.Running, Told: time.Now()}
	for p, n := range records {
		st.Tasks = append(st.Tasks, engine.TaskStatus{ID: element.TaskID{Source: "orders", Partition: int32(p)}, Records: n})
	}
	return st
}

// TestTwoScrapesAtOnceCountOnce: what the engine told first may be looked at last. It is no new attempt.
func TestTwoScrapesAtOnceCountOnce(t *testing.T) {
	m := newMetrics(&service{})
	first := told(100, 5)
	time.Sleep(time.Millisecond)
	require.Equal(t, map[string]float64{"0": 200}, recordsIn(t, m, told(200)))
	require.Equal(t, map[string]float64{"0": 200}, recordsIn(t, m, first))
	require.Equal(t, map[string]float64{"0": 250}, recordsIn(t, m, told(250)))
}

// TestCountersGoOnWhenTheEngineDoesNotAnswer: one that is busy, or puts an attempt away, tells of no tasks. That takes nothing
// away from their counters, and a task that it no longer tells of is gone.
func TestCountersGoOnWhenTheEngineDoesNotAnswer(t *testing.T) {
	m := newMetrics(&service{})
	require.Equal(t, map[string]float64{"0": 1000, "1": 7}, recordsIn(t, m, told(1000, 7)))
	require.Empty(t, recordsIn(t, m, engine.Status{State: engine.Running}))
	require.Empty(t, recordsIn(t, m, engine.Status{State: engine.Ending}))
	require.Equal(t, map[string]float64{"0": 1010}, recordsIn(t, m, told(10)))
	require.Equal(t, map[string]float64{"0": 1011, "1": 2}, recordsIn(t, m, told(11, 2)), "another task of that name")
}

// ofOutflow gathers the metrics of the outflow alone.
type ofOutflow struct{ *metrics }

func (o ofOutflow) Collect(out chan<- prometheus.Metric) { o.collectOutflow(out) }

// TestOutputThatTheBrokersHoldUpIsSeen: the bound, the rate, and whether tasks wait are metrics of every service.
func TestOutputThatTheBrokersHoldUpIsSeen(t *testing.T) {
	cfg := Config{CheckpointTimeout: 80 * time.Second}.withDefaults()
	out, err := newOutflow(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	reg := prometheus.NewRegistry()
	reg.MustRegister(ofOutflow{newMetrics(&service{outflow: out})})
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
	}
	require.Equal(t, map[string]float64{"millweir_output_unflushed_limit_bytes": 10 << 20, "millweir_output_acknowledged_bytes_per_second": 1 << 20,
		"millweir_output_held_up": 0, "millweir_output_wait_seconds": 0}, got, "an eighth of the timeout at a mebibyte a second")

	cfg.CheckpointTimeout, cfg.HoldBackLimit = 24*time.Hour, 1<<30
	out, err = newOutflow(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.EqualValues(t, 1<<30, out.Stats().Limit, "as much as may be held back")

	cfg.DisabledCheckpoints = true
	out, err = newOutflow(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.EqualValues(t, 30<<20/8, out.Stats().Limit, "offsets have a timeout of their own")
}

// ofCheckpoints gathers the metrics of checkpoints alone.
type ofCheckpoints struct{ *metrics }

func (o ofCheckpoints) Collect(out chan<- prometheus.Metric) { o.collectCheckpoints(out) }

// TestEachFigureOfACheckpointHasItsMetric: no two of the figures are the same, so that each must come from its own.
func TestEachFigureOfACheckpointHasItsMetric(t *testing.T) {
	m := newMetrics(&service{plan: countPlan(t, "figures")})
	lis := m.listener(engine.Listener{})
	call(lis.CheckpointTriggered, 7)
	lis.CheckpointCompleted(checkpoint.CheckpointStats{ID: 7, StartDelay: 2 * time.Second, Alignment: 3 * time.Second, Sync: 4 * time.Second, Barriers: 5 * time.Second, Waited: 6 * time.Second,
		Flush: 7 * time.Second, Persist: 8 * time.Second, Root: 9 * time.Second, Commit: 10 * time.Second, EndToEnd: 40 * time.Second,
		Buffered: 11, BufferedBytes: 1200, DeltaBytes: 1300, Entries: 14, Files: 15, StateBytes: 1600, FullBytes: 1700})
	reg := prometheus.NewRegistry()
	reg.MustRegister(ofCheckpoints{m})
	server := httptest.NewServer(promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	defer server.Close()
	resp, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	got := map[string]string{}
	for line := range strings.Lines(string(body)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			got[strings.TrimPrefix(name, "millweir_")] = value
		}
	}
	require.InDelta(t, time.Now().UnixMilli(), m.completed.UnixMilli(), 10_000)
	require.NotEmpty(t, got["last_completed_checkpoint_timestamp_seconds"])
	delete(got, "last_completed_checkpoint_timestamp_seconds")
	require.Equal(t, map[string]string{
		"total_number_of_checkpoints": "1", "number_of_completed_checkpoints": "1", "number_of_failed_checkpoints": "0", "number_of_abandoned_checkpoints": "0",
		"number_of_in_progress_checkpoints": "0", "last_completed_checkpoint_id": "7", "last_checkpoint_duration_seconds": "40",
		"last_checkpoint_size_bytes": "1300", "last_checkpoint_full_size_bytes": "1700", "last_checkpoint_buffered_bytes": "1200",
		"checkpoint_alignment_time_seconds": "3", "checkpoint_start_delay_time_seconds": "2",
		`last_checkpoint_phase_seconds{phase="start-delay"}`: "2", `last_checkpoint_phase_seconds{phase="alignment"}`: "3", `last_checkpoint_phase_seconds{phase="sync"}`: "4",
		`last_checkpoint_phase_seconds{phase="barriers"}`: "5", `last_checkpoint_phase_seconds{phase="waited"}`: "6", `last_checkpoint_phase_seconds{phase="flush"}`: "7",
		`last_checkpoint_phase_seconds{phase="async"}`: "8", `last_checkpoint_phase_seconds{phase="root"}`: "9", `last_checkpoint_phase_seconds{phase="commit"}`: "10",
		`last_checkpoint_phase_seconds{phase="end-to-end"}`: "40",
	}, got)
}
