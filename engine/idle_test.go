package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// An instance that stands by commits nothing. It cleans up what it left all the same, gives up what it kept for a return, and
// begins at once when partitions come while it is at that.
func TestAnInstanceThatStandsByCleansUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var cleans, cut atomic.Int64
	slow := make(chan struct{})
	ports := w.ports()
	isMember := new(atomic.Bool)
	isMember.Store(true)
	ports.Group = known{w.member, isMember}
	ports.CleanIdle = func(ctx context.Context, busy bool) (snapshot.CleanReport, error) {
		if busy {
			return snapshot.CleanReport{}, nil
		}
		if cleans.Add(1) == 2 {
			close(slow)
			<-ctx.Done()
			cut.Add(1)
		}
		return snapshot.CleanReport{Deleted: 1}, ctx.Err()
	}
	cleaned := make(chan snapshot.CleanReport, 1000)
	reused := new(atomic.Int64)
	cfg := w.config()
	cfg.CleanGroupInterval = 20 * time.Millisecond
	stop := w.startWith(cfg, ports, &Listener{
		Cleaned: func(r snapshot.CleanReport, err error) {
			if err == nil && r.Retained == nil && r.Deleted > 0 {
				cleaned <- r
			}
		},
		Reused: func(element.TaskID, snapshot.RootRef) { reused.Add(1) },
	})
	w.produce(100, 5)
	w.caughtUp()
	require.Zero(t, cleans.Load(), "it has a partition")
	w.assign(0)
	require.Equal(t, 1, (<-cleaned).Deleted)
	<-slow
	w.assign(1)
	w.produce(100, 5)
	w.caughtUp()
	require.EqualValues(t, 1, cut.Load())
	require.EqualValues(t, 2, cleans.Load())
	require.Zero(t, reused.Load(), "the state was given up")
	require.NoError(t, stop())
	w.exact()
}

// Where no record comes nothing is committed. What lies there is cleaned up all the same, of this instance and of those that are
// gone, beside the tasks.
func TestAnInstanceWhosePartitionsAreQuietCleansUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var own, gone, behind atomic.Int64
	quiet := new(atomic.Bool)
	ports := w.ports()
	ports.CleanIdle = func(_ context.Context, busy bool) (snapshot.CleanReport, error) {
		require.True(t, busy, "it has a task")
		if quiet.Load() {
			own.Add(1)
		}
		return snapshot.CleanReport{Deleted: 1}, nil
	}
	ports.CleanGroup = func(context.Context) (snapshot.CleanReport, error) {
		if quiet.Load() {
			gone.Add(1)
		}
		return snapshot.CleanReport{}, nil
	}
	cfg := w.config()
	cfg.CleanGroupInterval = 20 * time.Millisecond
	stop := w.startWith(cfg, ports, &Listener{Cleaned: func(r snapshot.CleanReport, _ error) {
		if len(r.Retained) > 0 {
			behind.Add(1)
		}
	}})
	w.produce(100, 5)
	w.caughtUp()
	quiet.Store(true)
	require.Eventually(t, func() bool { return own.Load() >= 2 && gone.Load() >= 2 }, 10*time.Second, time.Millisecond)
	quiet.Store(false)
	before := behind.Load()
	w.produce(100, 5)
	w.caughtUp()
	require.Eventually(t, func() bool { return behind.Load() > before }, 10*time.Second, time.Millisecond, "no commit is cleaned up behind")
	require.NoError(t, stop())
	w.exact()
}
