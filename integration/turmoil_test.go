//go:build unix

package integration

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/verify"
)

// turmoil deals blows to three instances without waiting for the group to come to rest between two of them: they are killed
// and started again at once or after their session, stopped in order, frozen for less and for more than the session. So a
// blow may fall into the round, the last checkpoint or the restore that an earlier one has led to. No process ends by
// itself, all partitions are worked on in the end, and the output is exact.
func turmoil(s *site, blows int) {
	t := s.t
	s.every = 100 * time.Millisecond
	rnd := rand.New(rand.NewPCG(killSeed(t), 11))
	file := s.file(totals)
	concurrent := strconv.Itoa(1 + rnd.IntN(3))
	start := func(i int) *process {
		name := string(rune('a' + i))
		return s.run(file, "--log-format", "text", "--set", "instance.id="+s.app+"-"+name,
			"--set", "data-dir="+filepath.Join(s.dir, name), "--set", "state.checkpoints.dir="+s.checkpoints(), "--set", "checkpointing.max-concurrent="+concurrent)
	}
	var jobs [3]*process
	for i := range jobs {
		jobs[i] = start(i)
	}
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	trickle := make(chan int, 1)
	const keys = 500
	go func() { trickle <- s.trickle(ctx, 0, keys) }()
	jobs[0].until(time.Minute, func() bool { return s.progress() > 0 }, "nobody works")
	rest := func(most time.Duration) { time.Sleep(time.Duration(rnd.Int64N(int64(most)))) }
	counts := map[string]int{}
	for range blows {
		rest(700 * time.Millisecond)
		i := rnd.IntN(len(jobs))
		job := jobs[i]
		require.False(t, job.ended(), "%s", job.stderr.tail(5))
		switch what := rnd.IntN(10); {
		case what < 5:
			job.kill()
			if what == 0 {
				rest(s.session * 3 / 2)
			} else {
				rest(s.session / 4)
			}
			jobs[i] = start(i)
			counts["kills"]++
		case what < 7:
			// One that was frozen beyond its session may be stopped before it knows that its partitions are another's: then there is
			// no last checkpoint that it could take, and it says so, as one does that has not come to its first record. One that was
			// started a moment ago may not listen to signals yet, and dies of this one before its first word.
			require.NoError(t, job.cmd.Process.Signal(syscall.SIGTERM), job.stderr.tail(3))
			code := job.exit(30 * time.Second)
			if early := job.stderr.String() == "" && job.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM; code != 0 && !early {
				require.EqualValues(t, fault.Unfinished, code, job.stderr.tail(3))
				require.Regexp(t, "away before its last checkpoint|it was still restoring its state", job.stderr.String())
			}
			jobs[i] = start(i)
			counts["stops"]++
		default:
			require.NoError(t, job.cmd.Process.Signal(syscall.SIGSTOP))
			rest(s.session * 5 / 2)
			require.NoError(t, job.cmd.Process.Signal(syscall.SIGCONT))
			counts["freezes"]++
		}
	}
	stop()
	n := <-trickle
	require.Positive(t, n)
	s.caughtUp(jobs[0])
	// One that does not know yet that its partitions are another's, or waits after a failed commit, would be stopped without a last
	// checkpoint. So the group comes to rest, and everyone who has partitions commits once more.
	s.betweenRounds()
	const more = 600
	s.orders(n, more, keys)
	n += more
	s.caughtUp(jobs[0])
	r := s.exact(verify.Config{})
	require.EqualValues(t, n, r.RecordsIn+r.Filtered)
	restarts := 0
	for _, job := range jobs {
		restarts += strings.Count(job.stderr.String(), "msg=\"attempt failed")
	}
	stopAll(jobs[:]...)
	s.nothingOpen(nil, time.Now().Add(2*transactionTimeout))
	s.handlesAreWhole()
	t.Logf("%v, %s checkpoints in flight; %d records, %d outputs; %d attempts failed since the last starts", counts, concurrent, n, r.RecordsOut, restarts)
}

func TestTurmoil(t *testing.T) {
	t.Parallel()
	blows := 12
	if testing.Short() {
		blows = 4
	}
	turmoil(fakeSite(t, 6).impatient(), blows)
}

func TestRealTurmoil(t *testing.T) { turmoil(realSite(t, 6).impatient(), 40) }
