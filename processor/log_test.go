package processor

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/topology"
)

func TestTombstonesAreNoWarnings(t *testing.T) {
	var out bytes.Buffer
	var heard []error
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	l := logging(log, engine.Listener{Skipped: func(_ element.TaskID, _ string, reason error) { heard = append(heard, reason) }})
	task, broken := element.TaskID{Source: "in"}, errors.New("broken")
	for range skipLogged + 5 {
		l.Skipped(task, "totals", topology.ErrTombstone)
	}
	l.Skipped(task, "totals", broken)
	require.Equal(t, 1, strings.Count(out.String(), "level=WARN"))
	require.Contains(t, out.String(), "reason=broken skipped=1", "tombstones do not use up what is logged one by one")
	require.Equal(t, skipLogged+5, strings.Count(out.String(), "level=DEBUG"))
	require.Len(t, heard, skipLogged+6, "the listener hears of all")
	require.Equal(t, broken, heard[len(heard)-1])
}

func TestAbandonedCheckpointsAreHeardOf(t *testing.T) {
	var out bytes.Buffer
	var heard []element.CheckpointID
	l := logging(slog.New(slog.NewTextHandler(&out, nil)), engine.Listener{
		CheckpointAbandoned: func(ids []element.CheckpointID, _ checkpoint.FailureReason, _ error) { heard = ids },
	})
	l.CheckpointAbandoned([]element.CheckpointID{7, 8}, checkpoint.FailureTimeout, errors.New("too slow"))
	require.Contains(t, out.String(), "level=WARN")
	require.Contains(t, out.String(), `checkpoint=7 given_up=2 reason=`)
	require.Contains(t, out.String(), "too slow")
	require.Equal(t, []element.CheckpointID{7, 8}, heard)
}
