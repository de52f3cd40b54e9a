package processor

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
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

// Who cleans this instance's directory and who cleans those of the group take turns, each with an error of its own.
func TestWhatKeepsOldCheckpointsIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		heard := 0
		l := logging(slog.New(slog.NewTextHandler(&out, nil)), engine.Listener{Cleaned: func(snapshot.CleanReport, error) { heard++ }})
		own, group := errors.New("data whose own root is gone is not deleted"), errors.New("nothing is deleted of instances that are gone")
		round := func() {
			l.Cleaned(snapshot.CleanReport{Deleted: 2}, own)
			l.Cleaned(snapshot.CleanReport{}, group)
			l.Cleaned(snapshot.CleanReport{}, nil)
		}
		for range 10 {
			round()
		}
		require.Equal(t, 2, strings.Count(out.String(), "level=WARN"), out.String())
		require.Contains(t, out.String(), `msg="old checkpoints not removed" error="data whose`)
		l.Cleaned(snapshot.CleanReport{}, errors.New("input/output error"))
		require.Equal(t, 3, strings.Count(out.String(), "level=WARN"))
		time.Sleep(tellAgain)
		round()
		require.Equal(t, 5, strings.Count(out.String(), "level=WARN"), "somebody may read it now")
		for i := range 2 * tellMost {
			l.Cleaned(snapshot.CleanReport{}, fmt.Errorf("file %d", i))
		}
		require.Equal(t, 5+2*tellMost, strings.Count(out.String(), "level=WARN"))
		require.Equal(t, 34+2*tellMost, heard, "the listener hears of all")
	})
}
