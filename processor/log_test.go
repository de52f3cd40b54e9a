package processor

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
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

func TestDamageOfAChainIsToldOnce(t *testing.T) {
	var out bytes.Buffer
	heard := 0
	l := logging(slog.New(slog.NewTextHandler(&out, nil)), engine.Listener{Merged: func(element.TaskID, int, int64, time.Duration, error) { heard++ }})
	damage := fault.Stopf(fault.Corrupt, "%w", &snapshot.CorruptError{Checkpoint: "7-1", File: "app/i1/chk-7-1.data", Kind: "run", Reason: "checksum mismatch"})
	in, other := element.TaskID{Source: "in"}, element.TaskID{Source: "in", Partition: 1}
	for runs := range 15 {
		l.Merged(in, 17+runs, 0, 0, damage)
	}
	require.Equal(t, 1, strings.Count(out.String(), "level=WARN"))
	require.Contains(t, out.String(), "at_most=4096 checkpoint=7-1 file=app/i1/chk-7-1.data kind=run reason=\"checksum mismatch\"")
	l.Merged(in, 34, 0, 0, damage)
	require.Equal(t, 2, strings.Count(out.String(), "level=WARN"), "the chain has doubled")
	l.Merged(other, 17, 0, 0, damage)
	require.Equal(t, 3, strings.Count(out.String(), "level=WARN"), "of another task")
	l.Renewed(in, 34, damage)
	l.Merged(in, 17, 0, 0, errors.New("input/output error"))
	require.Equal(t, 4, strings.Count(out.String(), "level=WARN"), "of a new chain")
	require.Contains(t, out.String(), "runs not merged")
	require.Equal(t, 18, heard, "the listener hears of all")
}
