package gate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAlignedSmoke(t *testing.T) {
	g := New(2, Aligned)
	require.Equal(t, []Action{Block{Input: 1, ID: 1}}, g.Barrier(1, Barrier{ID: 1}))
	require.True(t, g.Blocked(1))
	require.Equal(t, []Action{Snapshot{ID: 1, Forward: Barrier{ID: 1}}, Unblock{}}, g.Barrier(0, Barrier{ID: 1}))
	require.False(t, g.Blocked(1))
	u := New(2, Unaligned)
	require.Equal(t, []Action{Snapshot{ID: 1, Unaligned: true, Overtake: []int{1}, Record: []int{0}, Forward: Barrier{ID: 1, Unaligned: true}}}, u.Announced(1, Barrier{ID: 1, Unaligned: true}))
	require.Equal(t, []Action{CloseRecording{Input: 0, ID: 1}, Captured{ID: 1}}, u.Barrier(0, Barrier{ID: 1, Unaligned: true}))
	c := New(2, Counting)
	require.Empty(t, c.Barrier(0, Barrier{ID: 1}))
	require.Equal(t, []Action{Snapshot{ID: 1, Forward: Barrier{ID: 1}}}, c.Barrier(1, Barrier{ID: 1}))
}
