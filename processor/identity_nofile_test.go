//go:build linux

package processor

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs/vfstest"
)

// inTime gives what a function gives, and fails when it does not come back.
func inTime(t *testing.T, fn func() error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		require.Fail(t, "it blocks")
		return nil
	}
}

// What is no file in the place of the data directory, of its lock or of the instance's id: one line says what is there, nothing is
// waited for, followed or removed. What is in the place of the file that the id is written to first goes.
func TestWhatIsNoFileInTheDataDirectoryIsNamed(t *testing.T) {
	for _, kind := range vfstest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			open := func() (id string, err error) {
				err = inTime(t, func() error {
					d, err := openDataDir(dir)
					if err != nil {
						return err
					}
					defer d.close()
					id, err = d.instanceID()
					return err
				})
				return id, err
			}
			refused := func(what string) {
				t.Helper()
				_, err := open()
				require.ErrorContains(t, err, what)
				require.NotContains(t, err.Error(), "\n")
				require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
				require.Equal(t, fault.Stop, fault.RecoveryOf(err))
			}
			if !kind.Directory() {
				if !kind.Put(t, dir) {
					return
				}
				refused("data directory " + dir + ": make it: " + dir + " is " + kind.What)
				require.NoError(t, os.Remove(dir))
			}
			tmp := filepath.Join(dir, "instance-id.tmp")
			require.NoError(t, os.Mkdir(dir, 0o755))
			require.True(t, kind.Put(t, tmp))
			if kind.Name == "directory with files" {
				refused("instance-id.tmp")
				require.NoError(t, os.RemoveAll(tmp))
			}
			id, err := open()
			require.NoError(t, err)
			require.NoFileExists(t, tmp)
			require.NoFileExists(t, tmp+"-gone")
			for name, says := range map[string]string{"instance-id": "restore it, or delete it to become a new instance", "lock": "remove it"} {
				name := filepath.Join(dir, name)
				back, ok := kind.Replace(t, name)
				require.True(t, ok)
				refused(name + " is " + kind.What + ", not a file")
				refused(says)
				require.NoFileExists(t, name+"-gone")
				back()
			}
			again, err := open()
			require.NoError(t, err)
			require.Equal(t, id, again)
		})
	}
}

// A lack of rights in the data directory is named with the file, and as what mends it.
func TestALackOfRightsInTheDataDirectoryIsNamed(t *testing.T) {
	t.Chdir(t.TempDir()) // the way to it need not be open to everybody
	d, err := openDataDir("data")
	require.NoError(t, err)
	id, err := d.instanceID()
	require.NoError(t, err)
	require.NoError(t, d.close())
	for name, says := range map[string]string{
		"data/instance-id": "instance id: open data/instance-id: permission denied: give the user who runs this (uid ",
		"data/lock":        "data directory data: make the lock that keeps other processes out: open data/lock: permission denied",
		"data":             "data directory data: make the lock that keeps other processes out: ",
	} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		open := func() (got string, err error) {
			vfstest.Unprivileged(t, ".", func() {
				var d *dataDir
				if d, err = openDataDir("data"); err == nil {
					defer d.close()
					got, err = d.instanceID()
				}
			})
			return got, err
		}
		require.NoError(t, os.Chmod(name, 0))
		_, err = open()
		require.ErrorContains(t, err, says)
		require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
		require.NoError(t, os.Chmod(name, info.Mode()))
		got, err := open()
		require.NoError(t, err)
		require.Equal(t, id, got)
	}
}
