package processor

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
)

// What was in nobody's sight but the log's: of what attempts ended, how that is classed, and what followed.
func TestTheAttemptsAreShown(t *testing.T) {
	b := newBed(t)
	cfg, o := b.instance("a")
	cfg.Interval = 100 * time.Millisecond
	cfg.Restart.Exponential.InitialBackoff, cfg.Restart.Exponential.MaxBackoff = 20*time.Millisecond, 20*time.Millisecond
	broken := new(atomic.Bool)
	cfg.Decorate = func(p *engine.Ports) { p.Checkpoints = guarded{p.Checkpoints, nil, broken} }
	began := time.Now()
	stop := b.start(countPlan(t, "attempts"), cfg)
	o.says("/readyz", 200, "processing, attempt 1")
	got, err := o.client().Attempts(t.Context())
	require.NoError(t, err)
	require.Len(t, got.Attempts, 1)
	first := got.Attempts[0]
	require.Equal(t, admin.Attempt{Number: 1, Status: admin.AttemptInProgress, Started: first.Started, Running: first.Running}, first)
	require.WithinRange(t, first.Started, began.Add(-time.Millisecond), time.Now())
	require.WithinRange(t, *first.Running, first.Started, time.Now())
	require.Zero(t, got.Restarts)

	broken.Store(true)
	b.produce(0, 100)
	// More than are kept.
	require.Eventually(t, func() bool { return sum(o.metrics("num_restarts")) > restart.HistorySize }, 20*time.Second, 20*time.Millisecond)
	broken.Store(false)
	o.says("/readyz", 200, "processing")
	require.Eventually(t, func() bool { return sum(o.metrics("number_of_completed_checkpoints")) > 0 }, 20*time.Second, 20*time.Millisecond)
	got, err = o.client().Attempts(t.Context())
	require.NoError(t, err)
	require.Equal(t, "attempts", got.Application[:len("attempts")])
	require.Equal(t, "running", got.State)
	require.Len(t, got.Attempts, restart.HistorySize)
	require.EqualValues(t, sum(o.metrics("num_restarts")), got.Restarts)
	last := got.Attempts[restart.HistorySize-1]
	require.Equal(t, got.Restarts+1, last.Number)
	require.Equal(t, admin.AttemptInProgress, last.Status)
	for i, a := range got.Attempts[:restart.HistorySize-1] {
		require.Equal(t, last.Number-restart.HistorySize+1+i, a.Number)
		require.Equal(t, admin.AttemptFailed, a.Status)
		require.Equal(t, "restart", a.Class)
		require.Contains(t, a.Cause, "the disk says no")
		require.InDelta(t, 20, a.DelayMs, 20)
		require.WithinRange(t, *a.Ended, a.Started, got.Attempts[i+1].Started)
	}
	require.NoError(t, stop())
}

func TestWhatBecomesOfAnAttempt(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	rejoin := fault.New(fault.Rejoin, fault.Failed, "lost")
	stop := fault.Stopf(fault.Corrupt, "damaged\nand gone")
	r := restart.Record{TopicPartition: element.TopicPartition{Topic: "in", Partition: 2}, Offset: 7}
	for want, a := range map[admin.Attempt]restart.Attempt{
		{Status: admin.AttemptInProgress}:                                                      {Ended: -1},
		{Status: admin.AttemptStopped}:                                                         {Ended: time.Second},
		{Status: admin.AttemptStopped, Class: "restart", Cause: "slow"}:                        {Ended: time.Second, Cause: errors.New("slow")},
		{Status: admin.AttemptStopped, Class: "rejoin", Cause: "lost"}:                         {Ended: time.Second, Cause: rejoin},
		{Status: admin.AttemptRejoined, Class: "rejoin", Cause: "lost", DelayMs: 500}:          {Ended: time.Second, Cause: rejoin, Another: true, Delay: 500 * time.Millisecond},
		{Status: admin.AttemptFailed, Class: "restart", Cause: "bad", Record: "record in-2@7"}: {Ended: time.Second, Cause: errors.New("bad"), Another: true, Counted: true, Record: &r},
		{Status: admin.AttemptGaveUp, Class: "stop", Cause: "damaged; and gone"}:               {Ended: time.Second, Cause: stop},
		{Status: admin.AttemptGaveUp, Class: "restart", Cause: "restart strategy none gives up after 0 restarts: no restart is wanted; cause: bad"}: {Ended: time.Second, Cause: errors.New("bad"), Counted: true,
			Verdict: &restart.Verdict{Strategy: restart.None, Reason: "no restart is wanted", First: errors.New("bad"), Last: errors.New("bad")}},
	} {
		a.Number, a.Started, a.Running = 3, time.Minute, -1
		want.Number, want.Started = 3, began.Add(time.Minute)
		got := attemptOf(a, began)
		if a.Ended >= 0 {
			require.Equal(t, began.Add(a.Ended), *got.Ended)
		}
		require.Nil(t, got.Running)
		got.Ended = nil
		require.Equal(t, want, got, fmt.Sprint(a))
	}
}
