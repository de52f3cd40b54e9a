package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The empty key is a key like any other: where a pass keeps nothing but it, what is above comes in the next pass.
func TestAPassMayEndAtTheEmptyKey(t *testing.T) {
	r := passReader{most: 200}
	r.take([]byte{}, nil)
	r.take([]byte("b"), make([]byte, 300))
	require.True(t, r.more)
	r.take([]byte("c"), []byte("above"))
	require.Len(t, r.s.at, 1)
}
