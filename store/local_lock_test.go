package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// closesSoon fails when closing waits for something that will not come.
func (f *localFixture) closesSoon() {
	f.t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- f.local.Close() }()
	select {
	case err := <-closed:
		require.NoError(f.t, err)
	case <-time.After(5 * time.Second):
		require.Fail(f.t, "closing the copy does not end")
	}
}

// kilobytes fills the store with values of 1 kB.
func (f *localFixture) kilobytes(n int) {
	for i := range n {
		f.count.Put(fmt.Append(nil, "key-", f.last, "-", i), make([]byte, 1000))
	}
	f.checkpoint()
}

// smallTables makes Badger write a table with every four megabytes.
func smallTables(t *testing.T) *localFixture {
	f := newLocalFixture(t)
	require.NoError(t, f.local.Close())
	f.cfg.memTable = 4 << 20
	f.open()
	f.begin()
	return f
}

// The owner compacts and writes tables while another process looks at them: one that the manifest names is not there, or not
// whole. The other one must take that for no damage, and leave everything as it is.
func TestASecondOpenerLeavesALiveCopyAlone(t *testing.T) {
	f := smallTables(t)
	f.kilobytes(9000)
	f.flush()
	var tables []string
	require.Eventually(t, func() (ok bool) {
		tables, _ = filepath.Glob(filepath.Join(f.local.dir, "db", "*.sst"))
		return len(tables) > 0
	}, 5*time.Second, 10*time.Millisecond)
	aside := filepath.Join(t.TempDir(), "table")
	require.NoError(t, os.Rename(tables[0], aside))
	for name, marker := range map[string]bool{"a table is gone": false, "opening": true} {
		t.Run(name, func(t *testing.T) {
			opening := filepath.Join(f.local.dir, openingMarker)
			if marker {
				require.NoError(t, os.WriteFile(opening, nil, 0o600))
			}
			log := &lockedBuffer{}
			cfg := f.cfg
			cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
			other, err := OpenLocal(cfg)
			require.NoError(t, err)
			require.True(t, other.Stats().Disabled)
			require.NoError(t, other.Close())
			require.Contains(t, log.String(), "in use")
			require.NotContains(t, log.String(), "built anew")
			require.FileExists(t, filepath.Join(f.local.dir, "db", "MANIFEST"))
			if marker {
				require.FileExists(t, opening, "it is the owner's")
				require.NoError(t, os.Remove(opening))
			}
		})
	}
	require.NoError(t, os.Rename(aside, tables[0]))

	f.kilobytes(9000) // the owner goes on, and what it leaves is whole
	f.flush()
	f.requireEqual()
	f.reopen()
	require.False(t, f.local.Stats().Disabled)
	require.True(t, f.begin())
	f.requireEqual()
}

// A directory that another instance has is left out, and the others are used.
func TestADirectoryOfAnotherInstanceIsLeftOut(t *testing.T) {
	d := newDisks(t, 3)
	first := d.open(d.dirs[1])
	second := d.open(d.dirs...)
	require.False(t, second.Stats().Disabled)
	require.Contains(t, d.log.String(), "IS LEFT OUT")
	d.fill(second, tasksOf("orders", 6)...)
	require.Zero(t, counts(d.where(second))["disk-1"])
	require.NoError(t, second.Close())
	require.NoError(t, first.Close())
	third := d.open(d.dirs...)
	require.False(t, third.all[1].disabled(), "who has closed it has let go of it")
	require.NoError(t, third.Close())
}

// Badger tries for ever to write its table in memory to a directory that is gone, also when it closes. The copy is not closed
// then, whether it has noticed before or not, and nobody else gets its directory while the process lives.
func TestACopyWhoseDirectoryIsGoneDoesNotHoldUpTheStop(t *testing.T) {
	for name, flushed := range map[string]bool{"noticed by a flush": true, "noticed at the end": false} {
		t.Run(name, func(t *testing.T) {
			f := smallTables(t)
			f.kilobytes(500)
			f.flush()
			require.NoError(t, os.RemoveAll(filepath.Join(f.local.dir, "db")))
			if flushed {
				f.kilobytes(9000)
				require.Error(t, f.local.Flush(t.Context()))
				require.True(t, f.local.Stats().Disabled)
			}
			f.closesSoon()
			require.Contains(t, f.log.String(), "is not closed")
			other, err := OpenLocal(f.cfg)
			require.NoError(t, err)
			require.True(t, other.Stats().Disabled, "Badger is still at it")
			require.NoError(t, other.Close())
			before := strings.Count(f.log.String(), "badger: ")
			time.Sleep(1200 * time.Millisecond) // it tries every second
			require.Equal(t, before, strings.Count(f.log.String(), "badger: "), "it is silent about it")
		})
	}
}

// The directory goes in the middle of a flush.
func TestACopyWhoseDirectoryGoesDuringAFlushDoesNotHoldUpTheStop(t *testing.T) {
	f := newLocalFixture(t)
	require.NoError(t, f.local.Close())
	f.cfg.memTable = 4 << 20
	steps := 0
	f.cfg.Step = func() error {
		if steps++; steps == 3 {
			return os.RemoveAll(filepath.Join(f.local.dir, "db"))
		}
		return nil
	}
	f.open()
	f.begin()
	f.kilobytes(9000)
	require.Error(t, f.local.Flush(t.Context()))
	require.True(t, f.local.Stats().Disabled)
	f.closesSoon()
	require.Contains(t, f.log.String(), "is not closed")
}

// Whatever the error of a write was: nothing more is written, and the next start builds the copy anew.
func TestACopyThatAnErrorDisabledIsNotClosed(t *testing.T) {
	f := newLocalFixture(t)
	require.NoError(t, f.local.Close())
	broken := errors.New("input/output error")
	f.cfg.Step = func() error { return broken }
	f.open()
	f.begin()
	f.kilobytes(1)
	require.ErrorIs(t, f.local.Flush(t.Context()), broken)
	f.closesSoon()
	require.Contains(t, f.log.String(), "is not closed")
	require.FileExists(t, filepath.Join(f.local.dir, openingMarker))
}
