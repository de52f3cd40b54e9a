package checkpointtest

import (
	"testing"

	"github.com/millweir/millweir/element"
	"github.com/stretchr/testify/require"
)

func TestThePermitIsForTheCheckpointAskedFor(t *testing.T) {
	for _, id := range []element.CheckpointID{1, 2, 4711} {
		p := Permit(id)
		require.True(t, p.Valid())
		require.Equal(t, id, p.ID())
		require.True(t, p.Allows(id))
		require.False(t, p.Allows(id+1))
	}
}
