package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLocalTakesCollectedChanges(t *testing.T) {
	f := newLocalFixture(t)
	f.count.Put([]byte("gone"), []byte("1"))
	f.begin() // what is uncommitted is in the state, too
	c := NewChanges()
	n, ok := c.Table(TableInfo{Name: "second", Codec: "json"})
	require.True(t, ok)
	m, ok := c.Table(TableInfo{Name: "count", Codec: "int64"})
	require.True(t, ok)
	_, ok = c.Table(TableInfo{Name: "count", Codec: "json"})
	require.False(t, ok, "another codec")
	for _, e := range []Entry{
		{Table: m, Key: []byte("gone"), Deleted: true}, {Table: m, Key: []byte("never"), Deleted: true},
		{Table: n, Key: []byte("k"), Value: []byte("old")}, {Table: n, Key: []byte("k"), Value: []byte("new")},
		{Table: m, Key: []byte("empty"), Value: []byte{}},
	} {
		require.NoError(t, c.Add(e))
	}
	require.Equal(t, 4, c.Len())
	require.Positive(t, c.Bytes())
	f.local.Apply(ordersTask, version(1), c.Tables(), c.Take())
	require.Positive(t, f.local.PendingBytes())
	f.flush()
	require.Equal(t, map[string]string{"second/k": "new", "count/empty": ""}, f.stored())
	got, ok := f.local.Version(ordersTask)
	require.True(t, ok)
	require.Equal(t, version(1), got)
	require.Contains(t, f.local.Tasks(), ordersTask)
	f.reopen()
	got, _ = f.local.Version(ordersTask)
	require.Equal(t, version(1), got, "the end of the chain is kept with the checkpoint")
}

// What is collected for the copy has the limits of the copy, which are far below those of the state.
func TestChangesHaveTheLimitsOfTheCopy(t *testing.T) {
	for _, e := range []Entry{
		{Key: []byte("k"), Value: make([]byte, localMaxValue)},
		{Key: make([]byte, localMaxKey), Value: []byte("v")},
		{Key: make([]byte, localMaxKey), Deleted: true},
	} {
		f := newLocalFixture(t)
		f.begin()
		c := NewChanges()
		n, ok := c.Table(TableInfo{Name: "count", Codec: "int64"})
		require.True(t, ok)
		e.Table = n
		require.NoError(t, c.Add(e))
		f.local.Apply(ordersTask, version(1), c.Tables(), c.Take())
		f.flush()
		got, ok := f.local.Version(ordersTask)
		require.True(t, ok, "the copy has taken it")
		require.Equal(t, version(1), got)
	}
	for _, e := range []Entry{
		{Key: []byte("k"), Value: make([]byte, localMaxValue+1)},
		{Key: []byte("k"), Value: make([]byte, MaxValueSize)},
		{Key: []byte("k"), Value: make([]byte, MaxValueSize+1)},
		{Key: make([]byte, localMaxKey+1), Value: []byte("v")},
		{Key: make([]byte, localMaxKey+1), Deleted: true},
	} {
		c := NewChanges()
		require.ErrorIs(t, c.Add(e), ErrTooLarge, "%d and %d bytes", len(e.Key), len(e.Value))
		require.Zero(t, c.Len())
	}
}

func TestLocalResetThatCannotReadLeavesNoCopy(t *testing.T) {
	f := newLocalFixture(t)
	broken := errors.New("unreadable")
	err := f.local.Reset(t.Context(), ordersTask, version(1), f.store.Tables(), func(yield func(Entry, error) bool) {
		_ = yield(Entry{Key: []byte("k"), Value: []byte("v")}, nil) && yield(Entry{}, broken)
	})
	require.ErrorIs(t, err, broken)
	_, ok := f.local.Version(ordersTask)
	require.False(t, ok)
	f.flush()
	f.reopen()
	_, ok = f.local.Version(ordersTask)
	require.False(t, ok)
}

func TestLocalCloseWithoutTimeWritesNothing(t *testing.T) {
	f := newLocalFixture(t)
	f.begin()
	f.flush()
	f.count.Put([]byte("k"), []byte("v"))
	f.checkpoint()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	_ = f.local.CloseWithin(ctx)
	require.Less(t, time.Since(began), 2*time.Second)
	f.open()
	got, ok := f.local.Version(ordersTask)
	require.True(t, ok)
	require.Equal(t, version(0), got, "stale, and known to be")
}
