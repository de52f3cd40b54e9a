//go:build unix

package integration

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	case50Timeout = 1500 * time.Millisecond // of a checkpoint
	case50Slow    = 5 * time.Millisecond    // of a record on the slow shard
)

// case50 counts two inputs by key, and one of the shards is so slow that it would take an alignment half a minute to get
// through the channels before it. The job is killed there and goes on at another parallelism. In the end nobody is slow, and
// everything must have been counted once.
func case50(e *exchangeSite, set func(*exchangeSettings), seen func(t *testing.T, st *exchangeStats)) {
	t := e.t
	e.every = 200 * time.Millisecond
	const tickets = 60_000
	e.tickets(0, tickets)
	settings := func(parallelism int) exchangeSettings {
		x := exchangeSettings{Parallelism: parallelism, Slow: case50Slow, OneShard: true, Checkpoint: case50Timeout, Tolerable: unlimited}
		set(&x)
		return x
	}
	for _, parallelism := range []int{4, 3, 4} {
		job := e.start(settings(parallelism))
		job.await("msg=processing")
		time.Sleep(case50Timeout + 1500*time.Millisecond)
		require.False(t, job.ended(), "%s", job.stderr.tail(3))
		job.kill()
		var st exchangeStats
		st.read(t, job)
		t.Logf("parallelism %d: %s; %v", parallelism, &st, st.took)
		require.Zero(t, job.restarts())
		channels := len(e.inputs) * int(e.parts) * parallelism
		require.LessOrEqual(t, st.mostBuffered, int64(channels*(channelRecords+channelOverhang)), "more than the channels can hold")
		seen(t, &st)
	}
	last := settings(2)
	last.Slow = 0
	job := e.start(last)
	e.allDone(job, tickets)
	counted := func() { e.counted(tickets) }
	if last.Loose {
		counted = func() { require.GreaterOrEqual(t, e.atLeastOnce(tickets).counted, tickets, "a gap") }
	} else {
		counted()
	}
	job.stop()
	e.nothingOpen(nil, time.Now().Add(2*transactionTimeout))
	counted()
	e.storesAreWhole(last)
}

// completes wants checkpoints to go on, each within its time.
func completes(t *testing.T, st *exchangeStats) {
	t.Helper()
	require.Zero(t, st.abandoned)
	require.GreaterOrEqual(t, st.committed, 3)
	require.Positive(t, st.inFlight)
	for _, took := range st.took {
		require.Less(t, took, case50Timeout)
	}
}

// timesOut wants the checkpoints that cannot complete to be given up and counted, and nothing else to happen.
func timesOut(t *testing.T, st *exchangeStats) {
	t.Helper()
	require.Positive(t, st.abandoned)
	require.Zero(t, st.unaligned)
}

func TestC50_BarriersUnderBackpressure(t *testing.T) {
	for name, mode := range map[string]struct {
		set  func(*exchangeSettings)
		seen func(t *testing.T, st *exchangeStats)
	}{
		"aligned":         {func(*exchangeSettings) {}, timesOut},
		"aligned, two":    {func(x *exchangeSettings) { x.Concurrent = 2 }, timesOut},
		"unaligned":       {func(x *exchangeSettings) { x.Unaligned = true }, completes},
		"at-least-once":   {func(x *exchangeSettings) { x.Loose = true }, timesOut},
		"aligned-timeout": {func(x *exchangeSettings) { x.Unaligned, x.Timeout = true, 300*time.Millisecond }, completes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			case50(embeddedSite(t, 4).exchanges("of-two"), mode.set, mode.seen)
		})
	}
}

// With one input that brings nothing at all, or nothing more, checkpoints go on, over kills and at other parallelisms.
func case50Finished(e *exchangeSite, x exchangeSettings) {
	t := e.t
	e.every = 100 * time.Millisecond
	n := 0
	some := func() {
		e.tickets(n, 2000)
		n += 2000
	}
	if x.Ends2 {
		some()
	}
	e.first = true
	for _, parallelism := range []int{2, 4, 1, 3} {
		x.Parallelism = parallelism
		job := e.start(x)
		for range 3 {
			some()
			e.allDone(job, n)
		}
		var st exchangeStats
		st.read(t, job)
		require.GreaterOrEqual(t, st.committed, 3, "%s", job.stderr.tail(3))
		require.Zero(t, st.abandoned)
		require.Zero(t, job.restarts())
		if x.Ends2 && e.late == 0 {
			const late = 300
			recs := make([]*kgo.Record, late)
			for i := range recs {
				recs[i] = &kgo.Record{Topic: e.inputs[1], Value: binary.BigEndian.AppendUint64(nil, uint64(1e9)+uint64(i))}
			}
			require.NoError(t, e.cl.ProduceSync(e.ctx, recs...).FirstErr())
			e.late = late
		}
		some() // what is at work when the process dies
		job.kill()
	}
	x.Parallelism = 2
	job := e.start(x)
	some() // also when all was committed: the store is to be that of this parallelism
	e.allDone(job, n)
	job.stop()
	e.counted(n)
	e.storesAreWhole(x)
}

func TestC50_CheckpointsGoOnBesideAnInputWithoutRecords(t *testing.T) {
	for _, m := range []string{"aligned", "unaligned", "aligned-timeout"} {
		t.Run(m, func(t *testing.T) {
			t.Parallel()
			var x exchangeSettings
			exchangeModes[m].set(&x)
			case50Finished(embeddedSite(t, 4).exchanges("of-two"), x)
		})
	}
}

// Barriers go on meeting, and the work is exact, when one of two merged inputs has ended.
func TestC50_CheckpointsGoOnBesideAnInputThatHasEnded(t *testing.T) {
	for _, m := range []string{"aligned", "unaligned", "aligned-timeout"} {
		t.Run(m, func(t *testing.T) {
			t.Parallel()
			x := exchangeSettings{Ends2: true}
			exchangeModes[m].set(&x)
			case50Finished(embeddedSite(t, 4).exchanges("of-two"), x)
		})
	}
}
