package processor

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
)

// What a start cannot do without is named with the directory and the way out.
func TestADataDirectoryThatCannotBeWrittenIsNamed(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "lock"), 0o700))
	_, err := openDataDir(dir)
	require.ErrorContains(t, err, "data directory "+dir+": "+filepath.Join(dir, "lock")+" is a directory, not a file, and keeps no other process out: remove it")
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
	require.NoError(t, os.Remove(filepath.Join(dir, "lock")))
	d, err := openDataDir(dir)
	require.NoError(t, err)
	defer d.close()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "instance-id.tmp", "x"), 0o700))
	_, err = d.instanceID()
	require.ErrorContains(t, err, "data directory "+dir+": keep the instance id for the next start (instance.id sets one): ")
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "instance-id.tmp")))
	id, err := d.instanceID()
	require.NoError(t, err)
	again, err := d.instanceID()
	require.NoError(t, err)
	require.Equal(t, id, again)
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		err = dataDirFault("/data", "do it", &os.PathError{Op: "write", Path: "x", Err: full})
		require.ErrorContains(t, err, "data directory /data is full, make room: do it: ")
		require.ErrorIs(t, err, full)
		require.Equal(t, fault.Stop, fault.RecoveryOf(err))
	}
}
