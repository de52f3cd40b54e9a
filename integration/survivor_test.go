//go:build unix

package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/verify"
)

// An instance dies in the middle of a transaction of a minute, again and again, while another one works beside it. Two seconds
// after the end of the dead one's session at the latest every partition of the output is free for readers, and there is
// new output in it: also in those that only the dead one's transaction was in the way of.
func survivorTakesOver(s *site) {
	const keys, rounds, bound = 2_000, 3, 2 * time.Second
	file := s.file(totals, "{{.TransactionTimeout}}", "60s")
	a, b := s.app+"-a", s.app+"-b"
	first := s.named(file, a, "a")
	s.shared(first, map[string]int{a: 4})
	second := s.named(file, b, "b")
	s.shared(second, map[string]int{a: 2, b: 2})
	ctx, stop := context.WithCancel(s.ctx)
	trickle := make(chan int, 1)
	go func() { trickle <- s.trickle(ctx, 0, keys) }()
	for range rounds {
		second.await("msg=\"checkpoint committed\"")
		for deadline := time.Now().Add(10 * time.Second); s.ongoing(b) == ""; {
			require.True(s.t, time.Now().Before(deadline), "no transaction is open at any time")
		}
		second.kill()
		died := time.Now()
		ends, _ := s.ends(s.out)
		first.until(s.session+20*time.Second, func() bool {
			_, stable := s.ends(s.out)
			for p, end := range ends {
				if stable[p] <= end {
					return false
				}
			}
			return true
		}, "readers wait")
		took := time.Since(died)
		s.t.Logf("all partitions are free and have new output after %v, the session is %v", took.Round(time.Millisecond), s.session)
		require.Less(s.t, took, s.session+bound)
		second = s.named(file, b, "b")
		s.shared(second, map[string]int{a: 2, b: 2})
	}
	stop()
	n := <-trickle
	require.Positive(s.t, n)
	s.caughtUp(first)
	r := s.exact(verify.Config{})
	require.EqualValues(s.t, n, r.RecordsIn+r.Filtered)
}

func TestTakeoverByTheOneThatIsLeft(t *testing.T) {
	t.Parallel()
	processorBinary(t)
	survivorTakesOver(fakeSite(t, 4).impatient())
}
func TestRealTakeoverByTheOneThatIsLeft(t *testing.T) {
	survivorTakesOver(realSite(t, 4).impatient())
}
