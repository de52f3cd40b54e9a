package snapshot

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An instance is known from its announcement on, until it is gone, has nothing else left, and the grace is over. Its own
// cleaner leaves the announcement alone.
func TestAnAnnouncementMakesAnInstanceKnown(t *testing.T) {
	dir := t.TempDir()
	open := func(instance string) *Repository {
		r, err := OpenRepository(t.Context(), Config{Dir: dir, Application: "app", Instance: instance, NumRetained: 1})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		return r
	}
	known := func(r *Repository) []string {
		names, err := r.Instances(t.Context())
		require.NoError(t, err)
		return names
	}
	a, b := open("a"), open("b")
	require.Empty(t, known(a))
	require.NoError(t, a.Announce(t.Context()))
	require.NoError(t, a.Announce(t.Context()), "a second process of the name")
	require.Equal(t, []string{"a"}, known(b))
	_, err := a.Clean(t.Context(), nil, says())
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, known(b))
	clean := func(live []string, now time.Time) CleanReport {
		rep, err := b.CleanGone(t.Context(), GoneInput{
			Live:      func(context.Context) ([]string, error) { return live, nil },
			Committed: func(context.Context) ([]RootRef, error) { return nil, nil },
			Grace:     time.Hour, Now: now,
		})
		require.NoError(t, err)
		return rep
	}
	clean([]string{"a"}, time.Now().Add(2*time.Hour))
	require.Equal(t, []string{"a"}, known(b), "it lives")
	clean(nil, time.Now())
	require.Equal(t, []string{"a"}, known(b), "it may come back")
	require.Equal(t, []string{"a"}, clean(nil, time.Now().Add(2*time.Hour)).Gone)
	require.Empty(t, known(b))
	require.NoDirExists(t, filepath.Join(dir, "app", "a"))
}
