package vfs

import (
	"bytes"
	"errors"
	"io/fs"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCrashKeepsOnlyWhatWasSynced(t *testing.T) {
	m := NewMem()
	at := time.Unix(1700000000, 0)
	m.SetClock(func() time.Time { return at })
	require.NoError(t, m.MkdirAll("d"))
	require.NoError(t, m.SyncDir("."))
	write(t, m, "d/named", "synced")
	require.NoError(t, m.SyncDir("d"))
	write(t, m, "d/nameless", "synced content, but the name is not")
	h, err := m.Create("d/open")
	require.NoError(t, err)
	_, err = h.Write([]byte("never synced"))
	require.NoError(t, err)
	require.NoError(t, m.SyncDir("d"))
	require.NoError(t, m.Remove("d/nameless"))
	write(t, m, "d/late", "x")

	m.Crash(0, 1)
	list, err := m.ReadDir("d")
	require.NoError(t, err)
	require.Equal(t, []Entry{{Name: "nameless", Size: 35, Regular: true, Mod: at}, {Name: "named", Size: 6, Regular: true, Mod: at},
		{Name: "open", Regular: true, Mod: at}}, sortEntries(list))
	require.Equal(t, "synced", read(t, m, "d/named"))
	_, err = h.Write([]byte("zombie"))
	require.ErrorIs(t, err, ErrCrashed)
	require.NoError(t, h.Close())
}

func sortEntries(list []Entry) []Entry { // named < nameless in bytes; the listing is sorted by name
	for i := range list {
		if list[i].Name == "nameless" && i > 0 && list[i-1].Name == "named" {
			list[i], list[i-1] = list[i-1], list[i]
		}
	}
	return list
}

func TestCrashMayKeepEverything(t *testing.T) {
	m := NewMem()
	require.NoError(t, m.MkdirAll("x/y"))
	h, err := m.Create("x/y/f")
	require.NoError(t, err)
	_, err = h.Write(bytes.Repeat([]byte("a"), 3000))
	require.NoError(t, err)
	m.Crash(1, 1)
	require.Equal(t, string(bytes.Repeat([]byte("a"), 3000)), read(t, m, "x/y/f"))
}

func TestCrashTearsUnsyncedBlocks(t *testing.T) {
	torn := map[string]bool{}
	for seed := range uint64(200) {
		m := NewMem()
		h, err := m.Create("f")
		require.NoError(t, err)
		_, err = h.Write(bytes.Repeat([]byte("s"), memBlock))
		require.NoError(t, err)
		require.NoError(t, h.Sync())
		_, err = h.Write(bytes.Repeat([]byte("u"), 3*memBlock))
		require.NoError(t, err)
		require.NoError(t, m.SyncDir("."))
		m.Crash(0.5, seed)
		got := read(t, m, "f")
		require.GreaterOrEqual(t, len(got), memBlock)
		require.Equal(t, string(bytes.Repeat([]byte("s"), memBlock)), got[:memBlock], "synced bytes survive")
		switch tail := got[memBlock:]; {
		case len(tail) == 3*memBlock && bytes.Count([]byte(tail), []byte("u")) == len(tail):
			torn["whole"] = true
		case len(tail) < 3*memBlock:
			torn["short"] = true
		case bytes.Contains([]byte(tail), []byte{0}):
			torn["hole"] = true
		}
	}
	require.Len(t, torn, 3, "all three outcomes occur: %v", torn)
}

func TestAFailedSyncLosesTheDataForGood(t *testing.T) {
	m := NewMem()
	h, err := m.Create("f")
	require.NoError(t, err)
	_, err = h.Write([]byte("data"))
	require.NoError(t, err)
	m.SetFault(func(op Op) error {
		if op.Kind == OpSync {
			return syscall.EIO
		}
		return nil
	})
	require.ErrorIs(t, h.Sync(), syscall.EIO)
	m.SetFault(nil)
	require.NoError(t, h.Sync(), "the kernel thinks that all is clean")
	require.NoError(t, m.SyncDir("."))
	require.Equal(t, "data", read(t, m, "f"), "still readable from the cache")
	m.Crash(0, 1)
	require.Equal(t, "\x00\x00\x00\x00", read(t, m, "f"), "but it never reached the disk")
}

func TestFullDiskAndShortWrites(t *testing.T) {
	m := NewMem()
	m.SetLimit(10)
	h, err := m.Create("f")
	require.NoError(t, err)
	n, err := h.Write([]byte("123456789abcdef"))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Equal(t, 10, n)
	m.SetLimit(0)
	m.SetFault(func(op Op) error {
		if op.Kind == OpWrite {
			return &ShortWrite{N: 2, Err: syscall.EIO}
		}
		return nil
	})
	n, err = h.Write([]byte("xyz"))
	require.ErrorIs(t, err, syscall.EIO)
	require.Equal(t, 2, n)
	require.Equal(t, "123456789axy", read(t, m, "f"))
}

func TestCrashAtStopsEverythingUntilCrash(t *testing.T) {
	m := NewMem()
	write(t, m, "a", "1")
	require.Equal(t, 1, m.OpenFiles()+1)
	m.CrashAt(m.Ops() + 1)
	h, err := m.Create("b")
	require.NoError(t, err)
	_, err = h.Write([]byte("abcd"))
	require.ErrorIs(t, err, ErrCrashed)
	_, err = m.Stat("a")
	require.ErrorIs(t, err, ErrCrashed)
	m.Crash(0, 7)
	_, err = m.Stat("a")
	require.True(t, errors.Is(err, fs.ErrNotExist), "its name was never synced")
}
