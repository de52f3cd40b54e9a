//go:build unix

package integration

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/integration/kafkatest"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/verify"
)

// The cluster dies and comes back under two instances that share the partitions, after less and after more than their
// session, and once while one of them is being started again. Nobody ends by itself, both work in the end, and the output
// is exact.
func TestRealTheClusterGoesAndComesBack(t *testing.T) {
	needReal(t)
	b := kafkatest.Start(t, kafkatest.Options{})
	if b.External {
		t.Skip("the cluster was not started here")
	}
	s := newSite(t, []string{b.Addr}, 6)
	s.session = 6 * time.Second
	rnd := rand.New(rand.NewPCG(killSeed(t), 17))
	file := s.file(totals)
	start := func(name string) *process {
		return s.run(file, "--log-format", "text", "--set", "instance.id="+s.app+"-"+name,
			"--set", "data-dir="+filepath.Join(s.dir, name), "--set", "state.checkpoints.dir="+s.checkpoints())
	}
	jobs := []*process{start("a"), start("b")}
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	trickle := make(chan int, 1)
	const keys = 500
	go func() { trickle <- s.trickle(ctx, 0, keys) }()
	for _, job := range jobs {
		job.until(time.Minute, func() bool { return s.progress() > 100 }, "it does not work")
	}
	for round, down := range []time.Duration{0, time.Second, s.session + 3*time.Second, 2 * time.Second} {
		time.Sleep(time.Duration(rnd.Int64N(int64(2 * time.Second))))
		if round%2 == 0 {
			require.NoError(t, b.Kill())
		} else {
			require.NoError(t, b.Stop())
		}
		if round == 3 {
			jobs[1].kill()
			jobs[1] = start("b")
		}
		time.Sleep(down)
		require.NoError(t, b.Restart(s.ctx))
		if round == 3 && jobs[1].ended() { // no broker has answered it within its time: whatever started it starts it again
			require.Equal(t, int(fault.Unreachable), jobs[1].exit(0), "%s", jobs[1].stderr.tail(5))
			jobs[1] = start("b")
		}
		before := s.progress()
		up := time.Now()
		for s.progress() < before+100 {
			for _, job := range jobs {
				require.False(t, job.ended(), "%s", job.stderr.tail(5))
			}
			require.Less(t, time.Since(up), time.Minute, "no progress:\na: %s\nb: %s", jobs[0].stderr.tail(8), jobs[1].stderr.tail(8))
			time.Sleep(20 * time.Millisecond)
		}
		t.Logf("down for %v: goes on after %v", down, time.Since(up).Round(time.Millisecond))
	}
	stop()
	n := <-trickle
	s.caughtUp(jobs[0])
	r := s.exact(verify.Config{})
	require.EqualValues(t, n, r.RecordsIn+r.Filtered)
	stopAll(jobs...)
	s.nothingOpen(nil, time.Now().Add(2*transactionTimeout))
	s.handlesAreWhole()
}
