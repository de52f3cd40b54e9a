//go:build unix

package integration

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/verify"
)

const (
	failKeys     = 500
	failPerTick  = 20 // records in 5 ms
	failWithin   = 20 * time.Second
	failPatience = 2 * time.Second // before a process is told to stop, at points that a stop brings up sooner
)

// failCase is one job that dies where it is told to, once or several times in a row.
type failCase struct {
	name  string
	warm  bool          // a process without failpoints works, commits and is killed before
	armed []string      // FAILPOINT of one process after the other
	stop  bool          // ask for an end: it is on the way of stopping that the point comes up soon
	lives bool          // the last process is not killed but meets an error or a pause, and has to cope
	pause time.Duration // beyond the session: the last process is stopped for that long
}

// failAt makes the case of one point. n is the hit; where a point comes up once in a process it is the first.
func failAt(p failpoint.Point, n int) failCase {
	c := failCase{name: string(p)}
	switch p {
	case failpoint.StartCommitBefore, failpoint.StartCommitAfter, failpoint.InitBefore, failpoint.InitAfter:
		n = 1
	case failpoint.RestoreBefore, failpoint.RestoreAfter: // one for each of four tasks
		c.warm, n = true, 1+n%4
	case failpoint.MergeBefore, failpoint.MergeAfter:
		n = 1 + n%2
	case failpoint.LocalIntentBefore, failpoint.LocalIntentAfter, failpoint.LocalAppliedBefore, failpoint.LocalAppliedAfter:
		c.stop, n = true, 1
	case failpoint.LocalDataBefore, failpoint.LocalDataAfter:
		c.stop, n = true, 1+n%4
	}
	c.armed = []string{fmt.Sprintf("%s#%d", p, n)}
	if p == failpoint.AbortBefore || p == failpoint.AbortAfter { // something has to go wrong first
		c.armed[0] = fmt.Sprintf("%s#%d=error,%s", failpoint.RootFsyncBefore, 1+n, p)
	}
	return c
}

// handover tells the points that only an instance meets beside which another one comes or goes: pair_test.go has them.
func handover(p failpoint.Point) bool {
	return strings.HasPrefix(string(p), "join-") || strings.HasPrefix(string(p), "leave-")
}

// imported tells the points that only a start from a savepoint or a cancel meets: import_test.go and cancel_test.go have them.
func imported(p failpoint.Point) bool {
	name := string(p)
	return strings.HasPrefix(name, "import-") || strings.HasPrefix(name, "claim-") || strings.HasPrefix(name, "dispose-") || strings.HasPrefix(name, "forget-")
}

// failPairs draws pairs: a process dies at one point, and the one that recovers from it at another, of its start or
// of its first checkpoints.
func failPairs(seed uint64, n int) (out []failCase) {
	rnd := rand.New(rand.NewPCG(seed, 2))
	draw := func() failCase {
		for {
			c := failAt(failpoint.Points[rnd.IntN(len(failpoint.Points))].Point, 1+rnd.IntN(3))
			if !strings.HasPrefix(c.name, "start-commit") && !c.stop && !handover(failpoint.Point(c.name)) && !imported(failpoint.Point(c.name)) { // those need a job of their own
				return c
			}
		}
	}
	for range n {
		a, b := draw(), draw()
		out = append(out, failCase{name: a.name + "," + b.name, warm: true, armed: append(a.armed, b.armed...)})
	}
	return out
}

// failErrors are the cases of the steps that can fail: the process has to cope with it. The local copy is written every
// ten seconds only; slow takes its steps, too: it may be given up, but the service goes on.
func failErrors(seed uint64, slow bool) (out []failCase) {
	for _, info := range failpoint.Points {
		if !info.Error {
			continue
		}
		c := failAt(info.Point, 3+int(seed%4)) // the first files are the store's id and the instance's: without them a start is refused
		if c.stop && !slow {
			continue
		}
		c.lives, c.armed[0] = true, c.armed[0]+"=error"
		out = append(out, c)
	}
	return out
}

// failPauses stop the process for longer than its session lasts, by d: it wakes as somebody the group has forgotten.
func failPauses(seed uint64, d time.Duration) (out []failCase) {
	for _, p := range []failpoint.Point{failpoint.BarrierAfter, failpoint.FlushAfter, failpoint.PermitAfter, failpoint.OffsetsBefore,
		failpoint.OffsetsAfter, failpoint.EndTxnBefore, failpoint.EndTxnAfter, failpoint.CompleteAfter, failpoint.MarkerBefore} {
		c := failAt(p, 2+int(seed%4))
		c.lives, c.pause = true, d
		out = append(out, c)
	}
	return out
}

// failEvery is the case of each point, with hits drawn from the seed.
func failEvery(seed uint64) (out []failCase) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	for _, info := range failpoint.Points {
		if !handover(info.Point) && !imported(info.Point) {
			out = append(out, failAt(info.Point, 1+rnd.IntN(6)))
		}
	}
	return out
}

// failCases draws the cases of a test. FAILPOINT_ONLY, with the seed that was printed, leaves one of them.
func failCases(t *testing.T, draw func(seed uint64) []failCase) []failCase {
	t.Helper()
	cases := draw(killSeed(t))
	if only := os.Getenv("FAILPOINT_ONLY"); only != "" {
		var some []failCase
		for _, c := range cases {
			if c.name == only {
				some = append(some, c)
			}
		}
		require.NotEmpty(t, some, "FAILPOINT_ONLY names no case: %s", only)
		return some
	}
	return cases
}

// failAll runs cases side by side: most of their time is waiting.
func failAll(t *testing.T, brokers []string, side int, cases []failCase) {
	t.Helper()
	armedBinary(t)
	next := make(chan failCase)
	var wg sync.WaitGroup
	for range side {
		wg.Go(func() {
			for c := range next {
				t.Run(c.name, func(t *testing.T) { newSite(t, brokers, 4).failAt(c) })
			}
		})
	}
	for _, c := range cases {
		next <- c
	}
	close(next)
	wg.Wait()
}

// failAt has a job die at its points under load, then lets it catch up and checks everything from outside.
func (s *site) failAt(c failCase) {
	t := s.t
	s.every = 100 * time.Millisecond
	if c.pause > 0 {
		s.impatient()
		c.armed[0] += fmt.Sprintf("=pause:%v", s.session+c.pause)
	}
	file := s.file(totals)
	start := func(armed string) *process {
		args := []string{"run", file, "--log-format", "text"}
		if strings.Contains(c.name, "merge") { // small runs lie in the root: there is no file of a merged one
			args = append(args, "--set", "state.backend.fs.memory-threshold=0")
		}
		return startProcess(t, armedBinary(t), args, "FAILPOINT="+armed)
	}
	stop := make(chan struct{})
	flowed := make(chan flow, 1)
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	go func() { flowed <- s.flow(ctx, stop) }()

	if c.warm {
		job := start("")
		job.until(failWithin, func() bool { return s.progress() > failKeys }, "nothing is committed")
		job.kill()
	}
	for _, armed := range c.armed[:len(c.armed)-1] {
		s.diesAt(start(armed), armed, false)
	}
	armed := c.armed[len(c.armed)-1]
	job := start(armed)
	if c.lives {
		job.await("failpoint: ")
	} else {
		s.diesAt(job, armed, c.stop)
		job = start("")
	}
	job.await("msg=processing")
	until := s.progress() + 3*failKeys // it works under load for a while
	job.until(failWithin+s.session+c.pause, func() bool { return s.progress() > until }, "no progress after %s", armed)
	close(stop)
	f := <-flowed
	require.NoError(t, f.err)
	s.caughtUp(job)
	s.nothingOpen(job, time.Now().Add(2*transactionTimeout))
	r := s.exact(verify.Config{})
	require.EqualValues(t, f.n, r.RecordsIn+r.Filtered)
	s.tidied(job)
	job.stop()
	if !c.lives {
		require.Zero(t, job.restarts(), "the job that recovers meets no failure")
	}
	s.nothingOpen(nil, time.Now())
	require.Equal(t, r.RecordsOut, s.exact(verify.Config{}).RecordsOut)
	s.storeIsWhole()
}

// progress is how much of the input is committed, 0 while a partition has no committed offset.
func (s *site) progress() (sum int64) {
	committed := s.committed()
	if len(committed) < int(s.parts) {
		return 0
	}
	for _, o := range committed {
		sum += o.At
	}
	return sum
}

// diesAt waits for the process to die at a point by its own hand.
func (s *site) diesAt(job *process, armed string, stop bool) {
	t := s.t
	t.Helper()
	within := time.After(failWithin)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	var nudge <-chan time.Time
	for {
		select {
		case <-look.C:
			if stop && nudge == nil && strings.Contains(job.stderr.String(), "msg=processing") { // a stop before that comes by no point
				nudge = time.After(failPatience)
			}
			continue
		case <-nudge:
			require.NoError(t, job.cmd.Process.Signal(syscall.SIGTERM))
			stop, nudge = false, nil
			continue
		case <-job.done:
		case <-within:
			require.Fail(t, "the failpoint is never hit", "%s within %v", armed, failWithin)
		}
		break
	}
	last := armed[strings.LastIndex(armed, ",")+1:]
	name, _, _ := strings.Cut(last, "#")
	require.Contains(t, job.stderr.tail(3), "failpoint: kill at "+name+",", "it died of something else: %v", job.err)
	status, ok := job.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok && status.Signaled() && status.Signal() == syscall.SIGKILL, "%v", job.err)
}

// flow is what came of a stream without a planned end.
type flow struct {
	n   int // records that are acknowledged
	err error
}

// flow writes orders at a steady rate until stop is closed.
func (s *site) flow(ctx context.Context, stop <-chan struct{}) (f flow) {
	failed := make(chan error, 1)
	note := func(_ *kgo.Record, err error) {
		if err != nil {
			select {
			case failed <- err:
			default:
			}
		}
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for range failPerTick {
				r := order(f.n, failKeys)
				r.Topic = s.in
				s.cl.Produce(ctx, r, note)
				f.n++
			}
			continue
		case f.err = <-failed:
			return f
		case <-stop:
		}
		if f.err = s.cl.Flush(ctx); f.err == nil {
			select {
			case f.err = <-failed:
			default:
			}
		}
		return f
	}
}

// restarts counts the attempts that ended with a failure.
func (p *process) restarts() int { return strings.Count(p.stderr.String(), "msg=\"attempt failed") }

// failBroker starts one broker for all cases of a test: the embedded one, but for sessions that may be short.
func failBroker(t *testing.T) []string {
	t.Helper()
	return fakeSite(t, 1).brokers
}

// Each point is taken by some suite in every run, whatever the seed: TestFailpoints, TestPair, TestKillDuringAnImport or
// TestKilledWhileACancelDeletes.
func TestEveryPointIsTaken(t *testing.T) {
	var all, pair []failpoint.Point
	for _, info := range failpoint.Points {
		all = append(all, info.Point)
		if handover(info.Point) {
			pair = append(pair, info.Point)
		}
	}
	require.LessOrEqual(t, len(pair), pairQuick.points, "they come first")
	require.Subset(t, pairPoints(), pair)
	for seed := range uint64(100) {
		taken := slices.Concat(pair, slices.Collect(maps.Keys(forgetPoints)))
		for _, c := range failEvery(seed) {
			taken = append(taken, failpoint.Point(c.name))
		}
		for _, c := range importSome(seed) {
			if p := importPoints[c.step].point; imported(p) && !slices.Contains(taken, p) {
				taken = append(taken, p)
			}
		}
		require.ElementsMatch(t, all, taken)
	}
}

func TestFailpoints(t *testing.T) {
	failAll(t, failBroker(t), 6, failCases(t, failEvery))
}

func TestFailpointPairs(t *testing.T) {
	failAll(t, failBroker(t), 6, failCases(t, func(seed uint64) []failCase { return failPairs(seed, 8) }))
}

func TestFailpointErrors(t *testing.T) {
	failAll(t, failBroker(t), 6, failCases(t, func(seed uint64) []failCase { return failErrors(seed, false) }))
}

func TestFailpointPauses(t *testing.T) {
	failAll(t, failBroker(t), 6, failCases(t, func(seed uint64) []failCase { return failPauses(seed, 700*time.Millisecond) }))
}

func TestRealFailpoints(t *testing.T) {
	failAll(t, realBrokers(t), 4, failCases(t, failEvery))
}

func TestRealFailpointPairs(t *testing.T) {
	failAll(t, realBrokers(t), 4, failCases(t, func(seed uint64) []failCase { return failPairs(seed, 20) }))
}

func TestRealFailpointErrors(t *testing.T) {
	failAll(t, realBrokers(t), 4, failCases(t, func(seed uint64) []failCase { return failErrors(seed, true) }))
}

// Some of these pauses outlast the transaction, too: the broker has aborted it when the process wakes.
func TestRealFailpointPauses(t *testing.T) {
	failAll(t, realBrokers(t), 4, failCases(t, func(seed uint64) []failCase {
		cases := failPauses(seed, 700*time.Millisecond)
		for _, c := range failPauses(seed, transactionTimeout) {
			c.name += ",long"
			cases = append(cases, c)
		}
		return cases
	}))
}
