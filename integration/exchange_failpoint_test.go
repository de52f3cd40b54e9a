//go:build unix

package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// exchangeFailModes are those in which every failpoint comes up as it does in a job without exchanges.
var exchangeFailModes = []string{"aligned", "unaligned", "aligned-timeout", "concurrent"}

// exchangeFailSome draws some of the cases, all when n is 0.
func exchangeFailSome(draw func(seed uint64) []failCase, n int) func(seed uint64) []failCase {
	return func(seed uint64) []failCase {
		cases := draw(seed)
		if n == 0 || n > len(cases) {
			return cases
		}
		rnd := rand.New(rand.NewPCG(seed, 21))
		rnd.Shuffle(len(cases), func(i, k int) { cases[i], cases[k] = cases[k], cases[i] })
		return cases[:n]
	}
}

// exchangeFailAll runs the cases side by side, each in a mode and a topology that its name and the seed give.
func exchangeFailAll(t *testing.T, brokers []string, side int, modes []string, draw func(seed uint64) []failCase) {
	t.Helper()
	program := armedJobs(t)
	var seed uint64
	cases := failCases(t, func(s uint64) []failCase { seed = s; return draw(s) })
	next := make(chan failCase)
	var wg sync.WaitGroup
	for range side {
		wg.Go(func() {
			for c := range next {
				sum := seed
				for _, b := range []byte(c.name) {
					sum = sum*31 + uint64(b)
				}
				rnd := rand.New(rand.NewPCG(sum, 22))
				mode, job := modes[rnd.IntN(len(modes))], []string{"by-group", "over-hops"}[rnd.IntN(2)]
				t.Run(c.name, func(t *testing.T) {
					t.Logf("%s, %s", job, mode)
					newSite(t, brokers, 4).exchanges(job).failAt(c, program, exchangeModes[mode], rnd)
				})
			}
		})
	}
	for _, c := range cases {
		next <- c
	}
	close(next)
	wg.Wait()
}

// failAt has a job with exchanges die at its points under load, each process at another parallelism, then lets it catch up
// and checks everything from outside.
func (e *exchangeSite) failAt(c failCase, program string, mode exchangeMode, rnd *rand.Rand) {
	t := e.t
	e.every = 100 * time.Millisecond
	if c.pause > 0 {
		e.impatient()
		c.armed[0] += fmt.Sprintf("=pause:%v", e.session+c.pause)
	}
	turn := rnd.IntN(len(parallelisms))
	threshold := int64(-1)
	if !strings.Contains(c.name, "merge") && rnd.IntN(2) == 0 { // small runs lie in the root: there is no file of a merged one
		threshold = 0
	}
	var x exchangeSettings
	start := func(armed string) *process {
		x = exchangeSettings{Parallelism: parallelisms[turn%len(parallelisms)], Spread: 1 + turn%3, Slow: 100 * time.Microsecond, Session: e.session, Threshold: threshold}
		mode.set(&x)
		turn++
		return e.job(program, x, "FAILPOINT="+armed)
	}
	stop, flowed := make(chan struct{}), make(chan flow, 1)
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	go func() { flowed <- e.flowTickets(ctx, stop, failPerTick) }()

	if c.warm {
		job := start("")
		job.until(failWithin, func() bool { return e.done() > failKeys }, "nothing is committed")
		job.kill()
	}
	for _, armed := range c.armed[:len(c.armed)-1] {
		e.diesAt(start(armed), armed, false)
	}
	armed := c.armed[len(c.armed)-1]
	job := start(armed)
	if c.lives {
		job.await("failpoint: ")
	} else {
		e.diesAt(job, armed, c.stop)
		job = start("")
	}
	job.await("msg=processing")
	until := e.done() + 3*failKeys // it works under load for a while
	job.until(failWithin+e.session+c.pause, func() bool { return e.done() > until }, "no progress after %s", armed)
	close(stop)
	f := <-flowed
	require.NoError(t, f.err)
	e.allDone(job, f.n)
	e.nothingOpen(job, time.Now().Add(2*transactionTimeout))
	e.counted(f.n)
	e.tidied(job)
	job.stop()
	if !c.lives {
		require.Zero(t, job.restarts(), "the job that recovers meets no failure")
	}
	e.nothingOpen(nil, time.Now())
	e.counted(f.n)
	e.storesAreWhole(x)
}

func TestFailpointsBehindAnExchange(t *testing.T) {
	exchangeFailAll(t, failBroker(t), 6, exchangeFailModes, exchangeFailSome(failEvery, 12))
}

func TestFailpointErrorsBehindAnExchange(t *testing.T) {
	exchangeFailAll(t, failBroker(t), 6, []string{"tolerant", "tolerant-unaligned", "unaligned"},
		exchangeFailSome(func(seed uint64) []failCase { return failErrors(seed, false) }, 6))
}

func TestFailpointPausesBehindAnExchange(t *testing.T) {
	exchangeFailAll(t, failBroker(t), 6, exchangeFailModes,
		exchangeFailSome(func(seed uint64) []failCase { return failPauses(seed, 700*time.Millisecond) }, 4))
}

func TestRealFailpointsBehindAnExchange(t *testing.T) {
	exchangeFailAll(t, realBrokers(t), 4, exchangeFailModes, failEvery)
}

func TestRealFailpointErrorsBehindAnExchange(t *testing.T) {
	exchangeFailAll(t, realBrokers(t), 4, []string{"tolerant", "tolerant-unaligned", "unaligned"},
		func(seed uint64) []failCase { return failErrors(seed, true) })
}

func TestRealFailpointPausesBehindAnExchange(t *testing.T) {
	exchangeFailAll(t, realBrokers(t), 4, exchangeFailModes, func(seed uint64) []failCase { return failPauses(seed, 700*time.Millisecond) })
}
