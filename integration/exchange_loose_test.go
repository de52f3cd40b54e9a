//go:build unix

package integration

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// loosely is what at-least-once made of the tickets.
type loosely struct {
	outputs  int
	repeated int // outputs that tell of a ticket again
	counted  int // by the last counts of all groups
}

// atLeastOnce wants each of n tickets to have an output, and no count to be left out: it follows the one before it, or it is
// one that there was already, from which the counting goes on.
func (e *exchangeSite) atLeastOnce(n int) (l loosely) {
	t := e.t
	t.Helper()
	inputs := e.ticketsWritten()
	require.Len(t, inputs, n)
	used, last, most := map[int64]bool{}, map[string]tally{}, map[string]int64{}
	for _, r := range e.read(e.out) {
		got, err := tallySerde{}.Decode(r.Value)
		require.NoError(t, err)
		key := string(r.Key)
		_, known := inputs[got.last]
		if !known || !bytes.Equal(r.Key, groupOf(got.last)) || got.n > most[key]+1 || got.n < 1 {
			require.Fail(t, "no output that there may be", "%s at %d/%d: %+v after %+v, most %d", key, r.Partition, r.Offset, got, last[key], most[key])
		}
		if used[got.last] {
			l.repeated++
		}
		used[got.last], last[key], most[key] = true, got, max(most[key], got.n)
		l.outputs++
	}
	require.Len(t, used, n, "tickets without an output: %d", n-len(used))
	for _, g := range last {
		l.counted += int(g.n)
	}
	return l
}

// looseKills has a job with an exchange killed again and again in the mode at-least-once, each time at another parallelism. One
// subtask is busy to so many percent.
func looseKills(e *exchangeSite, records, kills, load int) (l loosely) {
	t := e.t
	t.Helper()
	began := time.Now()
	e.every = 150 * time.Millisecond
	plan := moments(killSeed(t), kills)
	pace := paceOf(plan)
	over := pace.over()
	settings := func(i int) exchangeSettings {
		return exchangeSettings{Parallelism: parallelisms[i%len(parallelisms)], Spread: 1 + i%3, Loose: true, Threshold: -1, Slow: over * time.Duration(load) / time.Duration(100*records)}
	}
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	produced := make(chan error, 1)
	go func() {
		produced <- e.stream(ctx, killPlan{records: records - exchangeRest, record: func(i, _ int) *kgo.Record { return e.ticket(i) }}, pace.due)
	}()
	for i, m := range plan {
		job := e.start(settings(i))
		e.awaitMoment(job, m)
		require.False(t, job.ended(), "before its kill %d: %s", i+1, job.stderr.tail(3))
		job.kill()
		pace.next()
		require.Empty(t, e.open(), "at-least-once has no transactions")
	}
	require.NoError(t, <-produced)
	last := settings(kills)
	last.Slow = 0
	job := e.start(last)
	e.lastTickets(records)
	e.allDone(job, records)
	require.Zero(t, job.restarts(), "the job that recovers meets no failure")
	job.stop()
	l = e.atLeastOnce(records)
	e.storesAreWhole(last)
	took := time.Since(began)
	require.LessOrEqual(t, took, exchangeKillsWithin, "it took too long")
	t.Logf("%d tickets, %d kills: each has an output; %d outputs are repeated, the state counts %d; %.1f s", records, kills, l.repeated, l.counted, took.Seconds())
	return l
}

// Each subtask has one input, of one partition: outputs are repeated, but the state has every record once.
func looseWithoutFanIn(s *site, records, kills int) {
	l := looseKills(s.exchanges("by-group"), records, kills, 50)
	require.Positive(s.t, l.repeated, "nothing was repeated: the kills have met nothing")
	require.Equal(s.t, records, l.counted, "the state is exact")
}

// Each subtask has several inputs, whose barriers come one after the other: what came behind the first one may be in the
// state and is read again, so it may be counted again. Nothing is left out.
func looseWithFanIn(e *exchangeSite, records, kills, load int) {
	l := looseKills(e, records, kills, load)
	require.Positive(e.t, l.repeated, "nothing was repeated: the kills have met nothing")
	require.GreaterOrEqual(e.t, l.counted, records, "nothing is left out of the state")
	if load >= 100 {
		require.Greater(e.t, l.counted, records, "no barrier was late: nothing behind one was in the state")
	}
}

func TestKillAtLeastOnceWithoutFanIn(t *testing.T) {
	t.Parallel()
	looseWithoutFanIn(embeddedSite(t, 1), 20_000, 5)
}

func TestKillAtLeastOnceWithFanIn(t *testing.T) {
	for job, load := range map[string]int{"by-group": 150, "over-hops": 30} {
		t.Run(job, func(t *testing.T) {
			t.Parallel()
			looseWithFanIn(embeddedSite(t, 4).exchanges(job), 20_000, 5, load)
		})
	}
}

func TestRealKillAtLeastOnceWithoutFanIn(t *testing.T) {
	looseWithoutFanIn(realSite(t, 1), 100_000, 10)
}

func TestRealKillAtLeastOnceWithFanIn(t *testing.T) {
	looseWithFanIn(realSite(t, 4).exchanges("over-hops"), 100_000, 10, 30)
}
