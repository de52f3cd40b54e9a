package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// With synced writes the name of a note is on disk before its commit begins, and gone before the offsets may change. What could
// not be synced is not done, and tried again.
func TestTheNameOfANoteIsSynced(t *testing.T) {
	dir := t.TempDir()
	j := newJournal(dir, true)
	require.NotNil(t, j.syncDir)
	var seen []bool // whether there was a note when the directory was synced
	var fails error
	j.syncDir = func(synced string) error {
		require.Equal(t, dir, synced)
		_, err := os.Stat(filepath.Join(dir, journalFile))
		seen = append(seen, err == nil)
		return fails
	}
	require.NoError(t, j.write(&commitNote{Producer: 1}))
	require.NoError(t, j.forget())
	require.Equal(t, []bool{true, false}, seen)
	require.NoError(t, j.forget(), "there is none")
	require.Len(t, seen, 2)

	fails = errors.New("the disk says no")
	require.ErrorIs(t, j.write(&commitNote{Producer: 1}), fails)
	require.ErrorIs(t, j.forget(), fails)
	fails = nil
	require.NoError(t, j.forget())
	require.Equal(t, []bool{true, false, true, false, false}, seen)
	require.Nil(t, newJournal(dir, false).syncDir)
}
