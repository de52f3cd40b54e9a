package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Losses in a row wait longer and longer, not as long as failures do, and a commit ends the row.
func TestDelayAfterLosses(t *testing.T) {
	r := &Runner{cfg: Config{}.withDefaults()}
	var got []time.Duration
	for range 6 {
		got = append(got, r.lossDelay())
		r.losses++
	}
	require.Equal(t, []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second}, got)
	r.losses = 1000
	require.Equal(t, 5*time.Second, r.lossDelay())
}
