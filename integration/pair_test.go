//go:build unix

package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/verify"
)

// pair is two instances of one application that share its partitions. While one of them is dealt a blow, the other one
// takes over; both are there again before the next.
type pair struct {
	*site
	file string
	jobs [2]*process
}

// pairPlan says what the two go through, all of it a function of the seed.
type pairPlan struct {
	points        int // so many of the points, each once; all when there are fewer
	kills, pauses int
	records       int // at least
}

func (p *pair) start(i int, armed string) {
	name := string(rune('a' + i))
	p.jobs[i] = startProcess(p.t, armedBinary(p.t), []string{"run", p.file, "--log-format", "text", "--set", "instance.id=" + p.app + "-" + name,
		"--set", "data-dir=" + filepath.Join(p.dir, name), "--set", "state.checkpoints.dir=" + p.checkpoints(),
		"--set", "state.backend.fs.memory-threshold=0"}, "FAILPOINT="+armed) // or there is no file of a merged run
}

// works waits until an instance processes, beside the other one or alone.
func (p *pair) works(i int) {
	p.t.Helper()
	p.jobs[i].until(time.Minute, func() bool { return strings.Contains(p.jobs[i].stderr.String(), "msg=processing") }, "it does not work")
}

// progresses waits until some input more is committed, whoever does it.
func (p *pair) progresses() {
	p.t.Helper()
	until := p.progress() + 200
	for end := time.Now().Add(time.Minute); p.progress() < until; time.Sleep(10 * time.Millisecond) {
		require.True(p.t, time.Now().Before(end), "no progress:\na: %s\nb: %s", p.jobs[0].stderr.tail(5), p.jobs[1].stderr.tail(5))
	}
}

// fails has an instance die at a point, and starts it again.
func (p *pair) fails(i int, point failpoint.Point, n int) {
	p.t.Helper()
	switch point { // once for each task, of which an instance may have one only
	case failpoint.RestoreBefore, failpoint.RestoreAfter, failpoint.LocalDataBefore, failpoint.LocalDataAfter:
		n = 0
	}
	c := failAt(point, n)
	p.jobs[i].kill()
	if !handover(point) {
		p.start(i, c.armed[0])
		p.diesAt(p.jobs[i], c.armed[0], c.stop)
		p.start(i, "")
		return
	}
	// The other one dies, and its partitions come here; it comes back, and they go there again.
	armed, other := string(point)+"#1", 1-i
	p.start(i, armed)
	p.works(i)
	p.jobs[other].kill()
	if strings.HasPrefix(string(point), "leave-") {
		p.jobs[i].await("partitions taken in beside the others")
		p.start(other, "")
	}
	p.diesAt(p.jobs[i], armed, false)
	if !strings.HasPrefix(string(point), "leave-") {
		p.start(other, "")
	}
	p.start(i, "")
	p.works(other)
}

// pauses stops an instance for longer than its session, and lets it go on when the other one has taken over.
func (p *pair) pauses(i int, d time.Duration) {
	p.t.Helper()
	require.NoError(p.t, p.jobs[i].cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(p.session + d)
	p.progresses()
	require.NoError(p.t, p.jobs[i].cmd.Process.Signal(syscall.SIGCONT))
}

// blows deals them all, in an order of the seed's.
func (p *pair) blows(rnd *rand.Rand, plan pairPlan) {
	var all []func(i int) string
	points := pairPoints()
	if only := os.Getenv("FAILPOINT_ONLY"); only != "" {
		points = []failpoint.Point{failpoint.Point(only)}
	}
	rnd.Shuffle(len(points), func(a, b int) { points[a], points[b] = points[b], points[a] })
	// Those of joining and leaving come first: no other suite has them.
	slices.SortStableFunc(points, func(a, b failpoint.Point) int {
		switch {
		case handover(a) == handover(b):
			return 0
		case handover(a):
			return -1
		}
		return 1
	})
	for _, point := range points[:min(plan.points, len(points))] {
		n := 1 + rnd.IntN(3)
		all = append(all, func(i int) string { p.fails(i, point, n); return "dies at " + string(point) })
	}
	for range plan.kills {
		after := time.Duration(rnd.Int64N(int64(killMost)))
		all = append(all, func(i int) string {
			time.Sleep(after)
			p.jobs[i].kill()
			p.start(i, "")
			return fmt.Sprintf("is killed after %v", after.Round(time.Millisecond))
		})
	}
	for k := range plan.pauses {
		d := time.Duration(1+k%3) * 500 * time.Millisecond
		all = append(all, func(i int) string { p.pauses(i, d); return fmt.Sprintf("is stopped for %v beyond its session", d) })
	}
	rnd.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
	for k, blow := range all {
		i := rnd.IntN(2)
		began := time.Now()
		what := blow(i)
		p.works(i)
		p.progresses()
		p.t.Logf("blow %d of %d: %c %s; %v", k+1, len(all), 'a'+i, what, time.Since(began).Round(time.Millisecond))
	}
}

// runPair deals the blows under load and has everything checked from outside.
func runPair(s *site, plan pairPlan) {
	t := s.t
	armedBinary(t)
	s.every = 100 * time.Millisecond
	p := &pair{site: s, file: s.file(totals)}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	rnd := rand.New(rand.NewPCG(killSeed(t), 7))
	stop, flowed := make(chan struct{}), make(chan flow, 1)
	go func() { flowed <- s.flow(ctx, stop) }()
	for i := range p.jobs {
		p.start(i, "")
		p.works(i)
	}
	p.progresses()
	began := time.Now()
	p.blows(rnd, plan)
	for s.progress() < int64(plan.records) {
		p.progresses()
	}
	close(stop)
	f := <-flowed
	require.NoError(t, f.err)
	p.caughtUp(p.jobs[0])
	t.Logf("%d records in %v", f.n, time.Since(began).Round(time.Second))
	idle := time.Now()
	s.nothingOpen(p.jobs[0], idle.Add(2*transactionTimeout))
	closed := time.Now()
	n := f.n + s.tidiedPair(p, f.n)
	t.Logf("no transaction open after %v, no file too many %v later", closed.Sub(idle).Round(time.Millisecond), time.Since(closed).Round(time.Millisecond))
	r := s.exact(verify.Config{})
	require.EqualValues(t, n, r.RecordsIn+r.Filtered)
	stopAll(p.jobs[:]...)
	s.nothingOpen(nil, time.Now())
	require.Equal(t, r.RecordsOut, s.exact(verify.Config{}).RecordsOut)
	s.storeIsWhole()
	t.Logf("%d outputs of %d keys: duplicates 0, missing 0, wrong 0, nothing open, no file left over", r.RecordsOut, r.Keys)
}

// tidiedPair writes a little until nothing is left that no checkpoint needs. An instance cleans up after its own commits,
// and what the other's old checkpoints named it may delete when those are gone. It gives the number of records.
func (s *site) tidiedPair(p *pair, from int) (n int) {
	s.t.Helper()
	repo := s.repository()
	var left []string
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		s.orders(from+n, failKeys, failKeys)
		n += failKeys
		s.caughtUp(p.jobs[0])
		for k := 0; k < 20; k++ {
			if left = s.leftOver(repo); len(left) == 0 {
				return n
			}
			time.Sleep(20 * time.Millisecond)
		}
		require.True(s.t, time.Now().Before(end), "nothing needs %v; newest %v", left, s.newest())
	}
}

// pairPoints are the points that an instance meets beside another one: no partition starts anew, and none of the two
// stops alone.
func pairPoints() (out []failpoint.Point) {
	for _, info := range failpoint.Points {
		if !strings.HasPrefix(string(info.Point), "start-commit") && !imported(info.Point) {
			out = append(out, info.Point)
		}
	}
	return out
}

// pairQuick is the measure of every run.
var pairQuick = pairPlan{points: 5, kills: 2, pauses: 1}

func TestPair(t *testing.T) {
	t.Parallel()
	runPair(fakeSite(t, 6).impatient(), pairQuick)
}

// With PAIR_RECORDS the full measure: every point, 20 kills and 5 pauses while that many records flow.
func TestRealPair(t *testing.T) {
	s := realSite(t, 6).impatient()
	if text := os.Getenv("PAIR_RECORDS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		var cancel context.CancelFunc
		s.ctx, cancel = context.WithTimeout(context.Background(), 40*time.Minute)
		t.Cleanup(cancel)
		runPair(s, pairPlan{points: len(failpoint.Points), kills: 20, pauses: 5, records: n})
		return
	}
	runPair(s, pairPlan{points: 8, kills: 4, pauses: 1})
}
