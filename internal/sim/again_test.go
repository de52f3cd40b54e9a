package sim

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRegressions runs the seeds that failed once. It stands in the first file, so it runs first.
func TestRegressions(t *testing.T) {
	f, err := os.Open("testdata/regressions.txt")
	require.NoError(t, err)
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		// Most are from the time when all were plain, some from before there were exchanges.
		for _, cfg := range []Config{{Seed: seed, Plain: true}, {Seed: seed, Straight: true}, {Seed: seed}} {
			require.NoError(t, Run(cfg).Err, "replay: %s", replay(cfg))
		}
	}
	require.NoError(t, lines.Err())
}
