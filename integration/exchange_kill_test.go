//go:build unix

package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// exchangeMode is a way to take checkpoints, and what must be seen of it.
type exchangeMode struct {
	set   func(*exchangeSettings)
	seen  func(t *testing.T, st *exchangeStats)
	every time.Duration // between checkpoints; default 150 ms
}

// unlimited stands for tolerable-failures: unlimited.
const unlimited = -1

var exchangeModes = map[string]exchangeMode{
	"aligned": {
		set:  func(*exchangeSettings) {},
		seen: func(t *testing.T, st *exchangeStats) { require.Zero(t, st.unaligned) },
	},
	"unaligned": {
		set: func(x *exchangeSettings) { x.Unaligned = true },
		seen: func(t *testing.T, st *exchangeStats) {
			require.Positive(t, st.inFlight, "no checkpoint had records in flight")
		},
	},
	"aligned-timeout": {
		set: func(x *exchangeSettings) { x.Unaligned, x.Timeout = true, 20*time.Millisecond },
		seen: func(t *testing.T, st *exchangeStats) {
			require.Positive(t, st.inFlight, "no checkpoint had records in flight")
			require.Less(t, st.unaligned, st.committed, "none was aligned in time")
		},
	},
	"concurrent": {
		set: func(x *exchangeSettings) { x.Concurrent, x.DelayPersist = 3, 300*time.Millisecond },
		seen: func(t *testing.T, st *exchangeStats) {
			require.Greater(t, st.mostInFlight, int64(1), "never two in flight")
			require.LessOrEqual(t, st.mostInFlight, int64(3))
		},
		every: 40 * time.Millisecond,
	},
	"tolerant": {
		set:  func(x *exchangeSettings) { x.Tolerable, x.FailPersist = unlimited, 3 },
		seen: func(t *testing.T, st *exchangeStats) { require.Positive(t, st.abandoned, "no failure was tolerated") },
	},
	"tolerant-unaligned": {
		set: func(x *exchangeSettings) { x.Tolerable, x.FailPersist, x.Unaligned = unlimited, 3, true },
		seen: func(t *testing.T, st *exchangeStats) {
			require.Positive(t, st.abandoned, "no failure was tolerated")
			require.Positive(t, st.inFlight, "no checkpoint had records in flight")
		},
	},
}

// parallelisms are those of one process after the other.
var parallelisms = []int{1, 2, 4, 3}

// exchangeKillsWithin is how long the suite of one mode, at-least-once too, may take, from the first record to the last look.
const exchangeKillsWithin = 90 * time.Second

// exchangeKills has a job with exchanges killed again and again under load, each time at another parallelism, and then has
// everything checked from outside. A step is so slow that its channels fill up after each restart, and where checkpoints are
// unaligned also under the load itself, unless there are more than two subtasks.
func exchangeKills(e *exchangeSite, mode exchangeMode, records, kills int) {
	t := e.t
	t.Helper()
	began := time.Now()
	if e.every = mode.every; e.every == 0 {
		e.every = 150 * time.Millisecond
	}
	plan := moments(killSeed(t), kills)
	pace := paceOf(plan)
	over := pace.over()
	settings := func(i int, p phase) exchangeSettings {
		x := exchangeSettings{Parallelism: parallelisms[i%len(parallelisms)], Spread: 1 + i%3}
		if p == persisted {
			x.Threshold = -1 // so that there is a file to wait for
		}
		mode.set(&x)
		each := over / time.Duration(records)
		if x.Slow = each / 2; x.Unaligned { // aligned barriers have to get through
			x.Slow = 2 * each
		}
		return x
	}
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	produced := make(chan error, 1)
	go func() {
		produced <- e.stream(ctx, killPlan{records: records - exchangeRest, record: func(i, _ int) *kgo.Record { return e.ticket(i) }}, pace.due)
	}()
	var st exchangeStats
	caught := 0
	for i, m := range plan {
		job := e.start(settings(i, m.phase))
		e.awaitMoment(job, m)
		require.False(t, job.ended(), "before its kill %d: %s", i+1, job.stderr.tail(3))
		job.kill()
		pace.next()
		st.read(t, job)
		open := e.open()
		if len(open) > 0 {
			caught++
		}
		_, behind := e.offsets()
		t.Logf("kill %d at parallelism %d, %s after %v: lag %d, %d partitions and transactions left open", i+1, parallelisms[i%len(parallelisms)], m.phase, m.after.Round(time.Millisecond), behind, len(open))
	}
	require.Positive(t, caught, "no kill left a transaction open")
	require.NoError(t, <-produced)
	last := settings(kills, working)
	last.Slow = 0
	lastKill := time.Now()
	job := e.start(last)
	e.lastTickets(records)
	e.allDone(job, records)
	t.Logf("%d records, %d kills, %d of them in a transaction; caught up %v after the last kill", records, kills, caught, time.Since(lastKill).Round(time.Millisecond))
	e.nothingOpen(job, soonAfter(lastKill))
	e.counted(records)
	require.Zero(t, job.restarts(), "the job that recovers meets no failure")
	job.stop()
	st.read(t, job)
	e.nothingOpen(nil, time.Now())
	outputs := e.counted(records)
	require.GreaterOrEqual(t, e.storesAreWhole(last), int64(min(ticketGroups, records/50)), "the state has an entry for each key")
	mode.seen(t, &st)
	require.LessOrEqual(t, time.Since(began), exchangeKillsWithin, "it took too long")
	t.Logf("%d outputs, each input counted once; %s", outputs, &st)
}

// exchangeRest is how many tickets are left for the time after the last kill: without them a job that committed all there was
// before it died leaves its successor nothing to do, and the store as it was at the other parallelism.
const exchangeRest = 100

func (e *exchangeSite) lastTickets(records int) {
	var recs []*kgo.Record
	for i := records - exchangeRest; i < records; i++ {
		r := e.ticket(i)
		if r.Topic == "" {
			r.Topic = e.in
		}
		recs = append(recs, r)
	}
	require.NoError(e.t, e.cl.ProduceSync(e.ctx, recs...).FirstErr())
}

func exchangeKillsEach(t *testing.T, name string, records, kills int, modes ...string) {
	for _, m := range modes {
		t.Run(m, func(t *testing.T) {
			t.Parallel()
			exchangeKills(embeddedSite(t, 4).exchanges(name), exchangeModes[m], records, kills)
		})
	}
}

func TestKillBehindAnExchange(t *testing.T) {
	exchangeKillsEach(t, "by-group", 20_000, 5, "aligned", "unaligned", "aligned-timeout", "concurrent", "tolerant", "tolerant-unaligned")
}

func TestKillOverTwoExchanges(t *testing.T) {
	exchangeKillsEach(t, "over-hops", 20_000, 5, "aligned", "unaligned", "aligned-timeout", "concurrent", "tolerant-unaligned")
}

func TestRealKillBehindAnExchange(t *testing.T) {
	for m, mode := range exchangeModes {
		t.Run(m, func(t *testing.T) { exchangeKills(realSite(t, 4).exchanges("by-group"), mode, 100_000, 10) })
	}
}

func TestRealKillOverTwoExchanges(t *testing.T) {
	for m, mode := range exchangeModes {
		t.Run(m, func(t *testing.T) { exchangeKills(realSite(t, 4).exchanges("over-hops"), mode, 100_000, 10) })
	}
}

// A suite that could not fail would prove nothing: what is lost or doubled at a restore with another parallelism is found.
func TestKillBehindAnExchangeFindsPlantedFaults(t *testing.T) {
	for _, fault := range []string{"none", "lose-inflight", "double-inflight", "lose-subtask"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			e := embeddedSite(t, 4).exchanges("by-group")
			e.every = 100 * time.Millisecond
			const n = 20_000
			e.tickets(0, n)
			job := e.start(exchangeSettings{Parallelism: 2, Unaligned: true, Slow: 200 * time.Microsecond})
			job.until(failWithin, func() bool { _, behind := e.offsets(); return len(e.read(e.out)) > n/10 && behind < n/2 }, "no progress")
			var st exchangeStats
			st.read(t, job)
			require.Positive(t, st.inFlight)
			job.kill()
			job = e.start(exchangeSettings{Parallelism: 3, Fault: fault}) // aligned: with offset n all outputs up to n are committed
			job.until(failWithin, func() bool { _, behind := e.offsets(); return behind == 0 }, "the group's lag is not 0")
			job.stop()
			outputs, wrong := e.judge()
			require.Equal(t, fault == "none", wrong == "" && outputs == n)
			t.Logf("%d outputs of %d inputs; %s", outputs, n, wrong)
		})
	}
}
