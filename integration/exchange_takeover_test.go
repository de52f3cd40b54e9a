//go:build unix

package integration

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Of two instances of an application with an exchange one has everything and the other one stands by. The one that works is
// killed in the middle of a transaction; the other one takes over, at another parallelism, and two seconds after the end of
// the dead one's session at the latest every partition of the output has new records for readers.
func exchangeTakeover(e *exchangeSite, mode exchangeMode, rounds int) {
	const bound = 2 * time.Second
	t := e.t
	start := func(i int) *process {
		x := exchangeSettings{Parallelism: parallelisms[i%len(parallelisms)], Spread: 1 + i%3, Instance: e.app + "-" + string(rune('a'+i%2)),
			Checkpoints: e.checkpoints(), Session: e.session, Slow: 50 * time.Microsecond}
		mode.set(&x)
		return e.start(x)
	}
	works := start(0)
	works.await("msg=processing")
	waits := start(1)
	waits.await("standing by")
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	stop, flowed := make(chan struct{}), make(chan flow, 1)
	go func() { flowed <- e.flowTickets(ctx, stop, failPerTick) }()
	for round := range rounds {
		works.await("msg=\"checkpoint committed\"")
		for end := time.Now().Add(10 * time.Second); e.ongoing("") == ""; {
			require.True(t, time.Now().Before(end), "no transaction is open at any time")
		}
		require.NotContains(t, waits.stderr.String(), "msg=processing", "the other one works, too")
		works.kill()
		died := time.Now()
		ends, _ := e.ends(e.out)
		waits.until(e.session+20*time.Second, func() bool {
			_, stable := e.ends(e.out)
			for p, end := range ends {
				if stable[p] <= end {
					return false
				}
			}
			return true
		}, "readers wait")
		took := time.Since(died)
		t.Logf("taken over after %v, the session is %v", took.Round(time.Millisecond), e.session)
		require.Less(t, took, e.session+bound)
		works, waits = waits, start(round+2)
		waits.await("standing by")
	}
	close(stop)
	f := <-flowed
	require.NoError(t, f.err)
	e.allDone(works, f.n)
	e.counted(f.n)
	waits.stop()
	works.stop()
	require.NotContains(t, waits.stderr.String(), "msg=processing")
	e.nothingOpen(nil, time.Now())
	e.counted(f.n)
}

func TestTakeoverBehindAnExchange(t *testing.T) {
	for _, m := range []string{"aligned", "unaligned"} {
		t.Run(m, func(t *testing.T) {
			t.Parallel()
			exchangeTakeover(fakeSite(t, 4).impatient().exchanges("by-group"), exchangeModes[m], 2)
		})
	}
}

func TestRealTakeoverBehindAnExchange(t *testing.T) {
	for _, m := range []string{"aligned", "unaligned"} {
		t.Run(m, func(t *testing.T) {
			exchangeTakeover(realSite(t, 4).impatient().exchanges("over-hops"), exchangeModes[m], 3)
		})
	}
}

// The input grows while nobody works: who takes over needs all partitions, and the clients, the leader's too, hear of new ones
// after a while.
func exchangeTakeoverOfMore(e *exchangeSite) {
	t := e.t
	start := func(name string) *process {
		return e.start(exchangeSettings{Parallelism: 2, Spread: 1, Instance: e.app + "-" + name, Checkpoints: e.checkpoints(), Session: e.session})
	}
	works := start("a")
	works.await("msg=processing")
	waits := start("b")
	waits.await("standing by")
	e.tickets(0, 200)
	e.allDone(works, 200)
	works.kill()
	died := time.Now()
	_, err := e.adm.CreatePartitions(e.ctx, 1, e.in)
	require.NoError(t, err)
	waits.await("msg=processing")
	took := time.Since(died)
	t.Logf("taken over after %v, the session is %v", took.Round(time.Millisecond), e.session)
	require.Less(t, took, e.session+5*time.Second)
	waits.stop()
	e.counted(200)
}

func TestTakeoverBehindAnExchangeOfATopicThatGrows(t *testing.T) {
	exchangeTakeoverOfMore(fakeSite(t, 4).impatient().exchanges("by-group"))
}

func TestRealTakeoverBehindAnExchangeOfATopicThatGrows(t *testing.T) {
	exchangeTakeoverOfMore(realSite(t, 4).impatient().exchanges("by-group"))
}

var restoredSubtask = regexp.MustCompile(`msg="state restored" .*task=by-group-\d+ .*local_copy=(\w+) `)

// The local copy of a subtask is read at the parallelism that wrote it only: the same name has other keys at another one. The
// copies lie there all the time, of each parallelism in turn, written in full when a process stops in order and left as they
// were when it is killed.
func localCopiesOfSubtasks(e *exchangeSite, mode exchangeMode) {
	t := e.t
	n := 0
	const some = 3 * ticketGroups
	for i, life := range []struct {
		parallelism int
		stops       bool
		local       string // what all subtasks say that they were restored from, "" for either
	}{
		{2, true, "none"}, {2, true, "true"}, {3, false, "false"}, {2, true, "false"}, {2, false, "true"}, {3, true, "false"}, {3, true, "true"},
		{1, false, "false"}, {3, true, "false"}, {4, true, "false"}, {4, false, "true"}, {2, true, "false"}, {4, true, "false"}, {4, true, "true"},
	} {
		x := exchangeSettings{Parallelism: life.parallelism}
		mode.set(&x)
		job := e.start(x)
		e.tickets(n, some)
		n += some
		e.allDone(job, n)
		restored := restoredSubtask.FindAllStringSubmatch(job.stderr.String(), -1)
		if life.local == "none" {
			require.Empty(t, restored)
		} else {
			require.GreaterOrEqual(t, len(restored), life.parallelism, "life %d", i)
		}
		for _, m := range restored {
			require.Equal(t, life.local, m[1], "life %d at parallelism %d: %s", i, life.parallelism, m[0])
		}
		if life.stops {
			job.stop()
		} else {
			job.kill()
		}
	}
	e.nothingOpen(nil, time.Now().Add(2*transactionTimeout))
	e.counted(n)
}

func TestLocalCopiesOfSubtasks(t *testing.T) {
	for _, m := range []string{"aligned", "unaligned"} {
		t.Run(m, func(t *testing.T) {
			t.Parallel()
			localCopiesOfSubtasks(embeddedSite(t, 4).exchanges("by-group"), exchangeModes[m])
		})
	}
}
