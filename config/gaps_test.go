package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/processor"
)

// obeyAll reads as if the process obeyed every setting, until the test ends.
func obeyAll(t testing.TB) {
	kept := notObeyed
	notObeyed = nil
	t.Cleanup(func() { notObeyed = kept })
}

// What the process does not obey is refused on each way in, and the value that it obeys is accepted.
func TestWhatIsNotObeyedYetIsRefused(t *testing.T) {
	for _, set := range Settings() {
		g := set.gap()
		if g == nil {
			continue
		}
		t.Run(set.Path, func(t *testing.T) {
			r, ok := rows[set.Path]
			require.True(t, ok)
			for _, way := range waysIn(set.Path, r.value) {
				_, ps := load(way.text, way.set, way.environ)
				require.Equal(t, 1, ps.Len(), ps.Error())
				require.Contains(t, ps.Error(), set.Path+": ")
				require.Contains(t, ps.Error(), "not available yet")
			}
			if g.mayBeGiven() {
				for _, way := range waysIn(set.Path, set.Default) {
					_, ps := load(way.text, way.set, way.environ)
					// Options of a strategy that is not chosen stay refused, but as what they are.
					if set.applies == nil || strings.Contains(set.Path, ".exponential-delay.") {
						require.NoError(t, ps.Err())
					}
				}
			}
		})
	}
}

func TestTheListNamesSettings(t *testing.T) {
	for _, g := range processor.Gaps() {
		found := 0
		for _, set := range Settings() {
			if below, all := strings.CutSuffix(g.Setting, "*"); set.Path == g.Setting || all && strings.HasPrefix(set.Path, below) {
				found++
				require.False(t, g.Accepts == "default" && set.Default == "", set.Path)
			}
		}
		require.Positive(t, found, g.Setting)
	}
}
