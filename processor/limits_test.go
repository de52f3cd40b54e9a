package processor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
)

// What no checkpoint can hold is refused where it is written: with the record at hand, and before anything follows from it.
func TestWhatTheStateTakesACheckpointTakes(t *testing.T) {
	require.LessOrEqual(t, store.MaxKeySize, snapshot.MaxKeySize)
	require.LessOrEqual(t, store.MaxValueSize, snapshot.MaxValueSize)
	s := store.New(store.Config{})
	defer s.Close()
	table, err := s.Table("t", "bytes")
	require.NoError(t, err)
	table.Put(make([]byte, snapshot.MaxKeySize), nil)
	require.NoError(t, s.EndBatch())
	table.Put(make([]byte, snapshot.MaxKeySize+1), nil)
	err = s.EndBatch()
	require.ErrorIs(t, err, store.ErrTooLarge)
	require.Equal(t, fault.Stop, fault.RecoveryOf(err))
	require.Equal(t, fault.BadRecord, fault.CodeOf(err))
}
