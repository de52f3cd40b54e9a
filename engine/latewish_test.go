package engine

import (
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
