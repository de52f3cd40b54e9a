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

// An instance dies for good in the middle of its work, and one with another name and an empty data directory takes over
// from the shared checkpoints. It waits for the dead one's session and not for its transaction, whose timeout is a minute
// here: new output, and with it the last stable offset, is there within two seconds of the session's end.
func takeover(s *site) {
	const keys, bound = 5_000, 2 * time.Second
	file := s.file(totals, "{{.TransactionTimeout}}", "60s")
	as := func(name string) *process {
		return s.run(file, "--set", "instance.id="+s.app+"-"+name, "--set", "data-dir="+filepath.Join(s.dir, name), "--set", "state.checkpoints.dir="+s.checkpoints())
	}
	s.orders(0, keys, keys)
	job := as("a")
	s.caughtUp(job)
	ctx, stop := context.WithCancel(s.ctx)
	trickle := make(chan int, 1)
	go func() { trickle <- s.trickle(ctx, keys, keys) }()
	for _, name := range []string{"b", "c"} {
		s.awaitOutputFrom(job, nil)
		for deadline := time.Now().Add(10 * time.Second); len(s.open()) == 0; {
			require.True(s.t, time.Now().Before(deadline), "no transaction is open at any time")
		}
		job.kill()
		died := time.Now()
		ends, _ := s.ends(s.out)
		job = as(name)
		took := s.awaitOutputFrom(job, ends).Sub(died)
		s.t.Logf("taken over by %s after %v, the session is %v", name, took.Round(time.Millisecond), s.session)
		require.Less(s.t, took, s.session+bound)
	}
	stop()
	produced := <-trickle
	s.caughtUp(job)
	r := s.exact(verify.Config{})
	require.EqualValues(s.t, keys+produced, r.RecordsIn+r.Filtered)
	job.stop()
}

func TestTakeoverByAnotherInstance(t *testing.T) {
	t.Parallel()
	takeover(fakeSite(t, 4).impatient())
}
func TestRealTakeoverByAnotherInstance(t *testing.T) { takeover(realSite(t, 4).impatient()) }
