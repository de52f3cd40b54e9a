package snapshot

import (
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

// startOn opens the directory of an instance as a process does that was given its path.
func startOn(m *vfs.Mem, instance string) (*Repository, error) {
	st := NewLocal(m, "/mem")
	return openRepository(ctx, Config{Application: "shop", Instance: instance, NumRetained: 1, Logger: silent}, st, st.probe)
}

// fill leaves no room.
func fill(t *testing.T, m *vfs.Mem) {
	t.Helper()
	sum := int64(0)
	for _, dir := range []string{".", "shop/i-0"} {
		entries, err := m.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			sum += e.Size
		}
	}
	m.SetLimit(sum)
}

// spill writes a file as a process does that is killed before it gives it its name.
func spill(t *testing.T, m *vfs.Mem, name string) {
	t.Helper()
	f, err := m.Create(name)
	require.NoError(t, err)
	_, err = f.Write(make([]byte, 4096))
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func TestAStartMakesRoomOfInterruptedWrites(t *testing.T) {
	m := vfs.NewMem()
	r, err := startOn(m, "i-0")
	require.NoError(t, err)
	require.NoError(t, r.AnnounceFor(ctx, "cluster-1"))
	const left = "shop/i-0/0123456789abcdef.tmp"
	spill(t, m, left)
	fill(t, m)

	r, err = startOn(m, "i-0")
	require.NoError(t, err)
	_, err = m.Stat(left)
	require.Error(t, err)
	require.NoError(t, r.AnnounceFor(ctx, "cluster-1"))
	mustCheckpoint(t, r, 1, 2, nil, nil, both("1"))
}

// What a killed process has left without a root goes at the first attempt, so the start has to come to it.
func TestAStartOnADiskFullOfDataWithoutARootComesToTheFirstAttempt(t *testing.T) {
	m := vfs.NewMem()
	r, err := startOn(m, "i-0")
	require.NoError(t, err)
	require.NoError(t, r.AnnounceFor(ctx, "cluster-1"))
	first, root := mustCheckpoint(t, r, 1, 1, nil, nil, both("1"))
	require.NoError(t, r.MarkCommitted(ctx, first))
	second, _ := mustCheckpoint(t, r, 2, 1, &first, root, both("2"))
	require.NoError(t, m.Remove(second.Path))
	fill(t, m)

	r, err = startOn(m, "i-0")
	require.NoError(t, err)
	require.NoError(t, r.AnnounceFor(ctx, "cluster-1"))
	require.NoError(t, r.Announce(ctx))
	rep, err := r.CleanFailed(ctx, []TaskFacts{named(t, r, taskA, first), named(t, r, taskB, first)}, says(first))
	require.NoError(t, err)
	require.Equal(t, 1, rep.Deleted)
	whole(t, r, first)
	_, err = startOn(m, "i-0")
	require.NoError(t, err)
}

// Where records may repeat, too, data without a root goes at the first attempt. A root whose commit may be on its way stays.
func TestWhereRecordsMayRepeatAStartOnAFullDiskRemovesDataWithoutARootOnly(t *testing.T) {
	m := vfs.NewMem()
	start := func() (*Repository, error) {
		st := NewLocal(m, "/mem")
		return openRepository(ctx, Config{Application: "shop", Instance: "i-0", NumRetained: 1, Repeats: true, Logger: silent}, st, st.probe)
	}
	r, err := start()
	require.NoError(t, err)
	require.NoError(t, r.AnnounceFor(ctx, "cluster-1"))
	first, root := mustCheckpoint(t, r, 1, 1, nil, nil, both("1"))
	require.NoError(t, r.MarkCommitted(ctx, first))
	second, root := mustCheckpoint(t, r, 2, 1, &first, root, both("2"))
	third, _ := mustCheckpoint(t, r, 3, 1, &second, root, both("3"))
	require.NoError(t, m.Remove(third.Path))
	fill(t, m)

	r, err = start()
	require.NoError(t, err)
	require.NoError(t, r.AnnounceFor(ctx, "cluster-1"))
	require.NoError(t, r.Announce(ctx))
	rep, err := r.CleanUnrooted(ctx, []TaskFacts{named(t, r, taskA, first), named(t, r, taskB, first)}, says(first))
	require.NoError(t, err)
	require.Equal(t, 1, rep.Deleted)
	whole(t, r, first)
	whole(t, r, second)
	_, err = start()
	require.NoError(t, err)
}

// Where records may repeat several checkpoints are kept. A start that finds these, and nothing that has no root, neither reads all of
// them nor asks the group.
func TestWhereRecordsMayRepeatAStartBesideWholeCheckpointsAsksNobody(t *testing.T) {
	m := vfs.NewMem()
	start := func() *Repository {
		cfg := config(m, "i-0")
		cfg.Repeats = true
		r, err := OpenRepository(ctx, cfg)
		require.NoError(t, err)
		return r
	}
	r := start()
	first, root := mustCheckpoint(t, r, 1, 1, nil, nil, both("1"))
	require.NoError(t, r.MarkCommitted(ctx, first))
	second, root := mustCheckpoint(t, r, 2, 1, &first, root, both("2"))
	require.NoError(t, r.MarkCommitted(ctx, second))
	third, _ := mustCheckpoint(t, r, 3, 1, &second, root, both("3"))

	r = start()
	asked := 0
	group := func(context.Context) ([]RootRef, error) { asked++; return []RootRef{second}, nil }
	facts := []TaskFacts{named(t, r, taskA, second), named(t, r, taskB, second)}
	rep, err := r.CleanUnrooted(ctx, facts, group)
	require.NoError(t, err)
	require.Zero(t, rep.Deleted)
	require.Zero(t, asked)

	require.NoError(t, m.Remove(third.Path))
	rep, err = r.CleanUnrooted(ctx, facts, group)
	require.NoError(t, err)
	require.Equal(t, 1, rep.Deleted)
	require.NotZero(t, asked)
}

// Where this instance has nothing to remove, and where the directory cannot be written for another reason, a start is refused.
func TestAStartIsRefusedWhereNoAttemptMakesRoom(t *testing.T) {
	m := vfs.NewMem()
	r, err := startOn(m, "i-0")
	require.NoError(t, err)
	require.NoError(t, r.AnnounceFor(ctx, "cluster-1"))
	fill(t, m)
	for _, instance := range []string{"i-0", "i-1"} {
		_, err = startOn(m, instance)
		require.ErrorIs(t, err, syscall.ENOSPC, instance)
		require.ErrorContains(t, err, "/mem is full: it cannot be written")
		require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
	}

	m.SetLimit(0)
	mustCheckpoint(t, r, 1, 1, nil, nil, both("1"))
	fill(t, m)
	require.Zero(t, m.OpenFiles())
	for _, cause := range []error{syscall.EDQUOT, syscall.EROFS, syscall.EIO} {
		m.SetFault(func(op vfs.Op) error {
			if op.Kind == vfs.OpCreate {
				return cause
			}
			return nil
		})
		_, err = startOn(m, "i-0")
		if cause == syscall.EDQUOT {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, cause)
		require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
	}
}
