package snapshot

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An instance comes back while it is decided what goes of it: it finds its announcement, and begins a transaction. It stays
// known, or nobody would end that one.
func TestAnInstanceThatComesBackMeanwhileStaysKnown(t *testing.T) {
	dir := t.TempDir()
	open := func(instance string) *Repository {
		r, err := OpenRepository(t.Context(), Config{Dir: dir, Application: "app", Instance: instance, NumRetained: 1})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		require.NoError(t, r.Announce(t.Context()))
		return r
	}
	a, b := open("a"), open("b")
	live := []string{"b"}
	clean := func(meanwhile func()) {
		_, err := b.CleanGone(t.Context(), GoneInput{
			Live:      func(context.Context) ([]string, error) { return live, nil },
			Committed: func(context.Context) ([]RootRef, error) { meanwhile(); return nil, nil },
			Grace:     time.Hour, Now: time.Now().Add(2 * time.Hour),
		})
		require.NoError(t, err)
	}
	known := func() []string {
		names, err := b.Instances(t.Context())
		require.NoError(t, err)
		return names
	}
	clean(func() {
		live = []string{"a", "b"}
		require.NoError(t, a.Announce(t.Context()))
	})
	require.Equal(t, []string{"a", "b"}, known())
	live = []string{"b"}
	clean(func() {})
	require.Equal(t, []string{"b"}, known())
}
