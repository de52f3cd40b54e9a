package processor

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

	cfg.DisabledCheckpoints = true
	out, err = newOutflow(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.EqualValues(t, 30<<20/8, out.Stats().Limit, "offsets have a timeout of their own")
}
