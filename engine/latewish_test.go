package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
)

// Who asks for a checkpoint while the last one is in flight, as at the end of a bounded run, gets that one when it is committed. It is
// not told before that nothing has changed, nor is it for a task that asks early.
func TestWhoAsksBesideTheLastCheckpointWaitsForIt(t *testing.T) {
	in := element.TaskID{Source: "in"}
	a := &attempt{
		r: &Runner{lis: &Listener{}, start: time.Now()}, stop: t.Context(), tasks: map[element.TaskID]*owned{},
		co: checkpoint.New(checkpoint.Config{Interval: time.Hour, Timeout: time.Minute}, 0),
	}
	a.co.AddTask(0, in)
	a.co.Moved(0, in)
	before := &request{reply: make(chan answer, 1)}
	a.requests = append(a.requests, before) // of a checkpoint that was given up
	require.IsType(t, checkpoint.Trigger{}, a.final()[0])
	last := &pending{name: element.CheckpointName{ID: 1}, last: true}
	a.pending = append(a.pending, last)

	late := &request{reply: make(chan answer, 1)}
	require.NoError(t, a.take(late))
	early, err := a.handle(event{kind: evEarly, task: in})
	require.NoError(t, err)
	require.NoError(t, a.execute(early))
	require.Empty(t, before.reply)
	require.Empty(t, late.reply)
	a.pending = nil
	a.completed(last, checkpoint.CheckpointStats{ID: 1})
	for _, q := range []*request{before, late} {
		ans := <-q.reply
		require.False(t, ans.skipped)
		require.EqualValues(t, 1, ans.stats.ID)
	}
}

// lateLook is a context of somebody who gets the processor late: when he looks for the second time, loop has run.
type lateLook struct {
	context.Context
	looks int
	loop  func()
}

func (l *lateLook) Done() <-chan struct{} {
	if l.looks++; l.looks == 2 {
		l.loop()
	}
	return l.Context.Done()
}

// A wish that was taken is no wish that found nobody, although the attempt, as that of a stop with a savepoint, is over before who
// asked sees it.
func TestAWishThatWasTakenIsNotDenied(t *testing.T) {
	for range 50 {
		ctx, cancel := context.WithCancelCause(t.Context())
		a := &attempt{ctx: ctx, events: make(chan event, 1)}
		r := &Runner{}
		r.running.Store(a)
		taken := false
		late := &lateLook{Context: t.Context(), loop: func() {
			require.NoError(t, (<-a.events).ask())
			cancel(errAttemptOver)
		}}
		require.NoError(t, r.ask(late, func(*attempt) error { taken = true; return nil }))
		require.True(t, taken)
	}
}

// Nor is an answer that is there lost to who waits no longer.
func TestAnAnswerThatIsThereIsGiven(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		q := &request{reply: make(chan answer, 1)}
		q.reply <- answer{skipped: true}
		ans, err := q.await(over)
		require.NoError(t, err)
		require.True(t, ans.skipped)
	}
}
