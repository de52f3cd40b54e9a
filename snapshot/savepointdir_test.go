package snapshot

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
)

func TestTheDirectoryOfSavepointsIsCalledByItsName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	below := filepath.Join(file, "below")
	err := CheckSavepointDir(below)
	require.ErrorContains(t, err, "savepoint directory "+below+" cannot be made")
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
	_, err = ListSavepoints(t.Context(), below)
	require.ErrorContains(t, err, "savepoint directory "+below+" cannot be opened")
	_, err = OpenLocal(below)
	require.ErrorContains(t, err, "checkpoint directory "+below+" cannot be made")
	require.NoError(t, CheckSavepointDir(filepath.Join(t.TempDir(), "a", "b")))
}
