//go:build unix

package integration

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/verify"
)

// Instances come and go while input flows: a second and a third one join, one leaves in order, one is killed. The
// partitions that stay with an instance go on, those that move are restored from the other's checkpoints, and the output is
// exact.
func instancesComeAndGo(s *site) {
	const keys = 2_000
	file := s.file(totals)
	as := func(name string) *process {
		return s.run(file, "--set", "data-dir="+filepath.Join(s.dir, name), "--set", "state.checkpoints.dir="+s.checkpoints())
	}
	s.orders(0, keys, keys)
	first := as("a")
	s.caughtUp(first)
	ctx, stop := context.WithCancel(s.ctx)
	trickle := make(chan int, 1)
	go func() { trickle <- s.trickle(ctx, keys, keys) }()
	second := as("b")
	second.await("msg=processing")
	first.await("partitions given up after a last checkpoint")
	third := as("c")
	third.await("msg=processing")
	s.awaitOutputFrom(third, nil)
	second.stop() // a generated id leaves the group
	third.kill()
	first.await("partitions taken in beside the others")
	second = as("b")
	second.await("msg=processing")
	stop()
	produced := <-trickle
	s.caughtUp(first)
	r := s.exact(verify.Config{})
	require.EqualValues(s.t, keys+produced, r.RecordsIn+r.Filtered)
	require.NotContains(s.t, first.stderr.String(), "attempt failed", "what stays goes on")
	stopAll(second, first)
	s.nothingOpen(nil, time.Now().Add(2*transactionTimeout))
	s.handlesAreWhole()
}

func TestInstancesComeAndGo(t *testing.T) {
	t.Parallel()
	instancesComeAndGo(fakeSite(t, 6).impatient())
}
func TestRealInstancesComeAndGo(t *testing.T) { instancesComeAndGo(realSite(t, 6).impatient()) }
