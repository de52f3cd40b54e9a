package engine

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
)

// Who waits for a checkpoint when the group moves partitions is told that it did not go at the moment; a failure stays one.
func TestWhoWaitsForACheckpointIsToldWhetherItFailed(t *testing.T) {
	for _, c := range []struct {
		cause error
		code  fault.Code
	}{
		{fault.New(fault.Rejoin, fault.Failed, "the group took orders/0 away"), fault.NotRunning},
		{errors.New("the disk is gone"), fault.Failed},
	} {
		q := &request{reply: make(chan answer, 1)}
		a := &attempt{requests: []*request{q}}
		a.unserved(c.cause)
		err := (<-q.reply).err
		require.ErrorIs(t, err, c.cause)
		require.Equal(t, c.code, fault.CodeOf(err))
		require.Empty(t, a.requests)
	}
}
