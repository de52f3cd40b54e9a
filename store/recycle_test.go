package store

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// disguised gives a value of the size of a small entry which looks, to anyone who takes its slot for an entry's, like
// a key without a value from the given epoch.
func disguised(epoch uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 1)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint32(b, absent)
	b = binary.LittleEndian.AppendUint32(b, epoch)
	return append(b, "padding-----"...)[:entrySize+4]
}

// A key that came in an older epoch, went, and came again leaves two changes behind which say that it had no value
// before. After a rollback only one of them may look at its entry: the slot serves a value by the time of the other.
func TestRollbackNeverLooksAtAnEntryTwice(t *testing.T) {
	s, tb := newTable(t, Config{})
	k := []byte("key1")
	tb.Put(k, []byte("1"))
	s.Freeze(1)
	tb.Delete(k)
	for i := range byte(6) { // keeps the two changes some writes apart
		tb.Put(append(make([]byte, 200), i), make([]byte, 100))
	}
	s.Freeze(2)
	tb.Put(k, []byte("2"))
	s.Rollback()
	rolledBack := s.epoch - 1

	values := map[string][]byte{}
	for i := range byte(8) { // each write works off a little
		name := append([]byte("another-class"), i)
		values[string(name)] = disguised(rolledBack)
		tb.Put(name, values[string(name)])
	}
	require.True(t, s.garbage.empty())
	for name, want := range values {
		got, ok := tb.Get([]byte(name))
		require.True(t, ok)
		require.Equal(t, want, got, "value of %q", name)
	}
	s.Freeze(3)
	s.Commit(3)
	audit(t, s)
}

// The deletion of a committed key may still wait when loading takes the key's entry away and puts something else there.
func TestLoadNeverLeavesGarbageBehindIt(t *testing.T) {
	s, tb := newTable(t, Config{})
	k := []byte("key1")
	tb.Put(k, []byte("1"))
	s.Freeze(1)
	s.Commit(1)
	tb.Delete(k)
	deleted := s.epoch
	s.Freeze(2)
	s.Commit(2)
	require.NoError(t, s.Load("count", k, []byte("1")))
	require.NoError(t, s.LoadDelete("count", k))
	want := disguised(deleted)
	require.NoError(t, s.Load("count", make([]byte, 100), want))
	for i := range byte(8) {
		tb.Put([]byte{'n', i}, make([]byte, 500))
	}
	got, ok := tb.Get(make([]byte, 100))
	require.True(t, ok)
	require.Equal(t, want, got)
	audit(t, s)
}
