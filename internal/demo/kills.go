package demo

import (
	"math/rand/v2"
	"time"
)

// schedule gives the moments of the kills after the start of the stream, ascending, a function of its arguments. The
// first tenth is left to the start, the last tenth to the last recovery; each kill is somewhere in its share of the
// rest, so that they do not fall together.
func schedule(seed uint64, kills int, duration time.Duration) []time.Duration {
	if kills == 0 {
		return nil
	}
	rnd := rand.New(rand.NewPCG(seed, 0x6b696c6c73))
	share := duration * 8 / 10 / time.Duration(kills)
	at := make([]time.Duration, kills)
	for i := range at {
		at[i] = duration/10 + time.Duration(i)*share + time.Duration((0.1+0.8*rnd.Float64())*float64(share))
	}
	return at
}

// Kill is one kill -9 of the job.
type Kill struct {
	At time.Duration `json:"at_ns"` // after the start of the stream
	// Recovery is the time from the start of the new process to the first output that it committed; 0 = not yet.
	Recovery time.Duration `json:"recovery_ns"`
}
