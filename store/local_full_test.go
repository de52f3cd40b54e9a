//go:build linux

package store

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// A disk fills up while the copy is in use: the process lives on, also when the copy is closed then. Closing Badger would
// write its table in memory to a mapped file, which a full disk answers with SIGBUS.
func TestAFullDiskDoesNotEndTheProcess(t *testing.T) {
	for name, flush := range map[string]bool{"closed": false, "flushed": true} {
		t.Run(name, func(t *testing.T) {
			disk := t.TempDir()
			if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=160m"); err != nil {
				t.Skip("no mount:", err)
			}
			defer func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) }()
			var log bytes.Buffer
			l, err := OpenLocal(LocalConfig{Dir: disk, MinInterval: time.Hour, MinFreeBytes: 32 << 20, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			require.NoError(t, err)
			task, tables := element.TaskID{Source: "s"}, []TableInfo{{Name: "t"}}
			state := func(yield func(Entry, error) bool) {
				for i := range 10_000 {
					if !yield(Entry{Key: fmt.Append(nil, i), Value: make([]byte, 500)}, nil) {
						return
					}
				}
			}
			at := LocalVersion{Name: element.CheckpointName{ID: 1}}
			require.NoError(t, l.Reset(t.Context(), task, at, tables, state))
			require.NoError(t, l.Flush(t.Context()))
			require.False(t, l.Stats().Disabled)
			filler, err := os.Create(filepath.Join(disk, "filler"))
			require.NoError(t, err)
			_, err = io.Copy(filler, zeros{})
			require.ErrorIs(t, err, syscall.ENOSPC)
			require.NoError(t, filler.Close())
			if flush {
				at.Name.ID++
				l.Apply(task, at, tables, func(yield func(Entry) bool) { yield(Entry{Key: []byte("k"), Value: []byte("v")}) })
				require.ErrorIs(t, l.Flush(t.Context()), errNoSpace)
				require.True(t, l.Stats().Disabled)
			}
			require.NoError(t, l.Close())
			require.Contains(t, log.String(), "is not closed")
			require.FileExists(t, filepath.Join(disk, LocalDirName, openingMarker))

			require.NoError(t, os.Remove(filler.Name()))
			moved := t.TempDir() // the database of this process keeps its lock
			require.NoError(t, os.CopyFS(moved, os.DirFS(disk)))
			next, err := OpenLocal(LocalConfig{Dir: moved, MinInterval: time.Hour, MinFreeBytes: -1, Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			require.False(t, next.Stats().Disabled)
			_, ok := next.Version(task)
			require.False(t, ok, "it is built anew")
			require.NoError(t, next.Close())
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
