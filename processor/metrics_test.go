package processor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
)

func TestRecordsOnFeedbackEdgesAreCounted(t *testing.T) {
	m := newMetrics(&service{})
	var heard int64
	lis := m.listener(engine.Listener{Looping: func(_ element.CheckpointID, n int64) { heard += n }})
	lis.Looping(3, 5)
	lis.Looping(4, 2)
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
