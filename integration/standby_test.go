//go:build unix

package integration

import "testing"

// Turmoil with fewer partitions than instances: some stand by all the time, and blows fall on them, too.
func TestTurmoilAmongThoseWhoStandBy(t *testing.T) {
	t.Parallel()
	blows := 12
	if testing.Short() {
		blows = 6
	}
	turmoil(fakeSite(t, 1).impatient(), blows)
}
func TestRealTurmoilAmongThoseWhoStandBy(t *testing.T) { turmoil(realSite(t, 1).impatient(), 30) }
