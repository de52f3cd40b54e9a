package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// files gives the files of the database whose names match.
func (f *localFixture) files(pattern string) []string {
	names, err := filepath.Glob(filepath.Join(f.local.dir, "db", pattern))
	require.NoError(f.t, err)
	return names
}

// cut makes files shorter and gives them their length again, filled with zeros, so that the rest of the test process can
// live with the database that is abandoned.
func (f *localFixture) cut(names []string, to func(size int64) int64) (mend func()) {
	require.NotEmpty(f.t, names)
	sizes := make(map[string]int64)
	for _, name := range names {
		info, err := os.Stat(name)
		require.NoError(f.t, err)
		sizes[name] = info.Size()
		require.NoError(f.t, os.Truncate(name, to(info.Size())))
	}
	return func() {
		for name, size := range sizes {
			require.NoError(f.t, os.Truncate(name, size))
		}
	}
}

// nextStart opens a copy of the directory, as it would be found after the end of the process.
func (f *localFixture) nextStart() {
	cfg := f.cfg
	cfg.Dir = filepath.Join(f.t.TempDir(), "next")
	require.NoError(f.t, os.CopyFS(cfg.Dir, os.DirFS(f.cfg.Dir)))
	next := &localFixture{t: f.t, cfg: cfg, log: f.log, store: f.store, count: f.count, last: f.last}
	next.open()
	require.False(f.t, next.local.Stats().Disabled)
	require.False(f.t, next.begin(), "it is built anew")
	next.flush()
	next.requireEqual()
	require.NoError(f.t, next.local.Close())
}

// Somebody cuts the tables off under a process that works. A reader's fault is an error and ends the copy, not the process.
func TestATableThatIsCutOffUnderAReaderCostsTheCopyOnly(t *testing.T) {
	f := smallTables(t)
	f.kilobytes(6000)
	f.flush()
	f.rest()
	mend := f.cut(f.files("*.sst"), func(int64) int64 { return 4096 })
	err := f.local.Load(t.Context(), ordersTask, nil, func(Entry) error { return nil })
	mend()
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "cut off")
	require.True(t, f.local.Stats().Disabled)
	require.Equal(t, 1, strings.Count(f.log.String(), "IS DISABLED"))
	f.closesSoon()
	require.FileExists(t, filepath.Join(f.local.dir, openingMarker))
	f.nextStart()
}

// rest waits until Badger has written its tables, and has nothing to do.
func (f *localFixture) rest() {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		for _, level := range f.local.db.Levels() {
			if level.Score >= 1 {
				return false
			}
		}
		return len(f.files("*.sst")) > 0 && len(f.files("*.mem")) == 1
	}, 5*time.Second, 5*time.Millisecond)
}

// A file that the writer, or Badger for it, is about to write to or to read as memory is noticed before that.
func TestAFileThatIsCutOffIsNoticedBeforeItIsWritten(t *testing.T) {
	for _, pattern := range []string{"*.mem", "*.sst", discardFile} {
		for _, to := range []int64{0, 100} {
			if pattern == "*.sst" && to == 0 {
				continue // Badger does this to a table that it removes: it is waited for, and then not
			}
			t.Run(fmt.Sprint(pattern, " ", to), func(t *testing.T) {
				f := smallTables(t)
				f.kilobytes(5000)
				f.flush()
				f.rest()
				f.kilobytes(1)
				f.flush() // what there is was seen
				mend := f.cut(f.files(pattern), func(int64) int64 { return to })
				f.kilobytes(1)
				err := f.local.Flush(t.Context())
				mend()
				require.ErrorIs(t, err, errCut)
				require.True(t, f.local.Stats().Disabled)
				f.closesSoon()
				f.nextStart()
			})
		}
	}
}

// Each kind of file is cut off, while the copy is in use or after it was closed: the next start has the state that was
// written, or no copy, and goes on with one.
func TestTheStartAfterAnyFileWasCutOffIsExact(t *testing.T) {
	f := newImaged(t)
	f.big(seeded(t), 3)
	require.Eventually(t, func() bool { return len(f.files("*.sst")) > 0 }, 5*time.Second, 5*time.Millisecond)
	live := f.mustImage()
	require.NoError(t, f.local.Close())
	closed := f.mustImage()
	seen := map[string]bool{}
	for _, from := range []string{live, closed} {
		names, err := filepath.Glob(filepath.Join(from, LocalDirName, "db", "*"))
		require.NoError(t, err)
		for _, name := range names {
			kind := strings.TrimLeft(filepath.Base(name), "0123456789")
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			used := len(strings.TrimRight(string(b), "\x00"))
			if what := kind + filepath.Base(from); seen[what] {
				continue
			} else if seen[what] = true; kind == "LOCK" {
				continue
			}
			seen[kind] = true
			for _, to := range []int{0, used / 2, max(0, used-1)} {
				dir := filepath.Join(f.images, "cut")
				require.NoError(t, copyDir(from, dir))
				cut := filepath.Join(dir, LocalDirName, "db", filepath.Base(name))
				require.NoError(t, os.Truncate(cut, int64(min(to, len(b)))))
				f.tryCopy(dir, fmt.Sprintf("%s cut at %d of %d", cut, to, used))
				cfg := f.cfg
				cfg.Dir = dir
				again, err := OpenLocal(cfg)
				require.NoError(t, err)
				require.False(t, again.Stats().Disabled, "%s cut at %d of %d", cut, to, used)
				require.NoError(t, again.Close())
			}
		}
	}
	for _, kind := range []string{".sst", ".mem", ".vlog", "MANIFEST", "DISCARD", "KEYREGISTRY"} {
		require.True(t, seen[kind], kind)
	}
}

// What Badger would end the process for, or read as memory, is met before it opens.
func TestWhatCannotBeReadIsMetBeforeBadgerOpens(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		once bool
		ruin func(t *testing.T, db string)
		anew bool
	}{
		"a directory that cannot be read":   {err: syscall.EIO},
		"a directory that is read at last":  {err: syscall.EIO, once: true, anew: true},
		"too many open files":               {err: syscall.EMFILE},
		"no room for the statistics":        {ruin: makeDir(discardFile), anew: true},
		"a table that is none":              {ruin: makeDir("000001.sst"), anew: true},
		"a log that is none":                {ruin: makeDir("00001.mem"), anew: true},
		"a link that leads nowhere":         {ruin: func(t *testing.T, db string) { relink(t, filepath.Join(db, discardFile)) }, anew: true},
		"statistics of a length of its own": {ruin: func(t *testing.T, db string) { resize(t, filepath.Join(db, discardFile), 17) }, anew: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newLocalFixture(t)
			f.begin()
			f.count.Put([]byte("k"), []byte("1"))
			f.checkpoint()
			require.NoError(t, f.local.Close())
			db := filepath.Join(f.local.dir, "db")
			if c.ruin != nil {
				c.ruin(t, db)
			}
			before, err := os.ReadDir(db)
			require.NoError(t, err)
			f.log.reset()
			looks := 0
			l, err := openListing(f.cfg, func(dir string) ([]os.DirEntry, error) {
				if looks++; c.err != nil && (looks == 1 || !c.once) {
					return nil, &fs.PathError{Op: "readdirent", Path: dir, Err: c.err}
				}
				return os.ReadDir(dir)
			})
			require.NoError(t, err)
			defer l.Close()
			require.Equal(t, !c.anew, l.Stats().Disabled)
			if c.anew {
				require.Equal(t, 1, strings.Count(f.log.String(), "level="), f.log.String())
				require.Contains(t, f.log.String(), "level=WARN")
				return
			}
			require.Equal(t, 1, strings.Count(f.log.String(), "IS DISABLED"), f.log.String())
			require.Contains(t, f.log.String(), c.err.Error())
			if after, err := os.ReadDir(db); errors.Is(c.err, syscall.EMFILE) {
				require.NoError(t, err)
				require.Len(t, after, len(before), "it is left for the next start")
			}
		})
	}
}

func makeDir(name string) func(*testing.T, string) {
	return func(t *testing.T, db string) {
		require.NoError(t, os.RemoveAll(filepath.Join(db, name)))
		require.NoError(t, os.Mkdir(filepath.Join(db, name), 0o700))
	}
}

func relink(t *testing.T, name string) {
	require.NoError(t, os.Remove(name))
	require.NoError(t, os.Symlink("/nonexistent/file", name))
}

func resize(t *testing.T, name string, size int64) { require.NoError(t, os.Truncate(name, size)) }

// Badger waits for ever for room when it cannot write its tables, without an error to anybody.
func TestAWriteThatDoesNotComeBackDoesNotHoldUpTheStop(t *testing.T) {
	f := newLocalFixture(t)
	require.NoError(t, f.local.Close())
	f.cfg.memTable, f.cfg.grace = 1<<20, 400*time.Millisecond
	f.open()
	f.begin()
	for id := range 100 {
		require.NoError(t, os.Mkdir(filepath.Join(f.local.dir, "db", fmt.Sprintf("%06d.sst", id+2)), 0o700))
	}
	t.Cleanup(func() { // Badger goes on as soon as it can make a file
		require.Eventually(t, func() bool { return os.RemoveAll(f.local.dir) == nil }, 5*time.Second, 10*time.Millisecond)
	})
	f.kilobytes(9000)
	start := time.Now()
	closed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
		defer cancel()
		closed <- f.local.CloseWithin(ctx)
	}()
	select {
	case err := <-closed:
		require.ErrorIs(t, err, ErrAbandoned)
	case <-time.After(5 * time.Second):
		require.Fail(t, "closing the copy does not end")
	}
	require.Less(t, time.Since(start), 2*time.Second)
	require.Equal(t, 1, strings.Count(f.log.String(), "is abandoned"))
	require.Contains(t, f.log.String(), "marked=true")
	require.True(t, f.local.Stats().Disabled)
	require.LessOrEqual(t, strings.Count(f.log.String(), "error flushing memtable"), 1)
	other, err := OpenLocal(f.cfg)
	require.NoError(t, err)
	require.True(t, other.Stats().Disabled, "the directory is locked as long as the process lives")
	require.NoError(t, other.Close())
	f.nextStart()
}

// Closing is bounded also when it is the database that does not come back, and when the marker cannot be written either; the
// numbers are to be had meanwhile.
func TestClosingTheDatabaseThatDoesNotComeBackDoesNotHoldUpTheStop(t *testing.T) {
	f := newLocalFixture(t)
	require.NoError(t, f.local.Close())
	f.cfg.grace = 200 * time.Millisecond
	f.open()
	f.begin()
	f.kilobytes(1)
	f.flush()
	f.local.dbMu.RLock() // a read that waits for the disk
	closed := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	go func() { closed <- f.local.CloseWithin(ctx) }()
	select {
	case err := <-closed:
		require.ErrorIs(t, err, ErrAbandoned)
	case <-time.After(5 * time.Second):
		require.Fail(t, "closing the copy does not end")
	}
	_ = f.local.Stats()
	f.local.dbMu.RUnlock()
	<-f.local.done
	require.Equal(t, 1, strings.Count(f.log.String(), "level=WARN"), f.log.String())
	f.nextStart()
}

// What Badger says goes to the service's log, at a level that fits, and not every second.
func TestBadgerSpeaksThroughTheLog(t *testing.T) {
	buffer := &lockedBuffer{}
	l := &Local{}
	b := newBadgerLog(slog.New(slog.NewTextHandler(buffer, &slog.HandlerOptions{Level: slog.LevelDebug})), &l.abandoned)
	for n := range 3 {
		b.Errorf("cannot write %d", n)
		b.Warningf("slow %d", n)
		b.Infof("opened %d\n", n)
		b.Debugf("detail %d", n)
	}
	for what, want := range map[string]int{"level=ERROR": 1, "level=WARN": 1, "level=DEBUG": 3, "badger: ": 5, "detail": 0} {
		require.Equal(t, want, strings.Count(buffer.String(), what), "%s in %s", what, buffer)
	}
	l.abandoned.Store(true)
	b.Errorf("in vain")
	require.NotContains(t, buffer.String(), "in vain")
}
