//go:build unix

package integration

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/verify"
)

// Data directories, with local copies of the state in them, are put back from backups that are some lives old, are copied to
// an instance of another name, or go: the partitions have been elsewhere since, and back. A copy is taken where it lies on
// the way of what is committed, and else not; the output is exact.
func dataDirectoriesArePutBack(s *site, rounds int) {
	t := s.t
	s.every = 50 * time.Millisecond
	rnd := rand.New(rand.NewPCG(killSeed(t), 23))
	file := s.file(totals)
	names := []string{"a", "b"}
	data := func(i int) string { return filepath.Join(s.dir, names[i]) }
	start := func(i int) *process {
		return s.run(file, "--log-format", "text", "--set", "instance.id="+s.app+"-"+names[i],
			"--set", "data-dir="+data(i), "--set", "state.checkpoints.dir="+s.checkpoints())
	}
	jobs := []*process{start(0), start(1)}
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	trickle := make(chan int, 1)
	go func() { trickle <- s.trickle(ctx, 0, 300) }()
	jobs[0].await("msg=processing")
	var backups []string
	counts := map[string]int{}
	for range rounds {
		time.Sleep(time.Duration(rnd.Int64N(int64(time.Second))))
		i := rnd.IntN(2)
		require.False(t, jobs[i].ended(), "%s", jobs[i].stderr.tail(5))
		if rnd.IntN(2) == 0 {
			jobs[i].kill()
		} else {
			require.NoError(t, jobs[i].cmd.Process.Signal(syscall.SIGTERM))
			require.Contains(t, []int{0, 42}, jobs[i].exit(20*time.Second), "42: it was still restoring its state")
		}
		said := jobs[i].stderr.String()
		counts["taken"] += strings.Count(said, "local_copy=true")
		counts["set aside"] += strings.Count(said, "is not on the way to the checkpoint")
		if rnd.IntN(2) == 0 { // else the other one gets all before it is back
			time.Sleep(s.session * 5 / 4)
		}
		backup := filepath.Join(t.TempDir(), "backup")
		require.NoError(t, os.CopyFS(backup, os.DirFS(data(i))))
		backups = append(backups, backup)
		switch rnd.IntN(4) {
		case 0:
			require.NoError(t, os.RemoveAll(data(i)))
			counts["gone"]++
		case 1, 2: // of either instance
			require.NoError(t, os.RemoveAll(data(i)))
			require.NoError(t, os.CopyFS(data(i), os.DirFS(backups[rnd.IntN(len(backups))])))
			counts["put back"]++
		}
		jobs[i] = start(i)
		before := s.progress()
		for end := time.Now().Add(30 * time.Second); s.progress() < before+50; time.Sleep(10 * time.Millisecond) {
			require.True(t, time.Now().Before(end), "no progress: %s", jobs[i].stderr.tail(5))
		}
	}
	stop()
	n := <-trickle
	s.caughtUp(jobs[0])
	r := s.exact(verify.Config{})
	require.EqualValues(t, n, r.RecordsIn+r.Filtered)
	stopAll(jobs...)
	s.handlesAreWhole()
	t.Logf("%v; %d records, %d outputs", counts, n, r.RecordsOut)
}

func TestDataDirectoriesArePutBack(t *testing.T) {
	t.Parallel()
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	dataDirectoriesArePutBack(fakeSite(t, 6).impatient(), rounds)
}
