package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
)

// A stop between a failed attempt and the next one tells why there is no last checkpoint.
func TestStopBetweenTwoAttemptsTellsOfTheFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	sick := errors.New("the broker is sick")
	w.onCommit = func(c checkpoint.Commit) (bool, error) {
		if c.Name.ID <= 2 {
			return true, nil
		}
		return false, sick
	}
	cfg := w.config()
	cfg.Restart = restart.Config{Exponential: restart.Exponential{InitialBackoff: time.Minute, MaxBackoff: time.Minute}}
	failed, told := make(chan struct{}, 10), make(chan error, 10)
	stop := w.start(cfg, &Listener{
		AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) {
			if err != nil {
				failed <- struct{}{}
			}
		},
		StoppedWaiting: func(cause error) { told <- cause },
	})
	w.produceUntil(func() bool { return len(failed) == 1 })
	require.NoError(t, stop())
	require.Len(t, told, 1)
	err := <-told
	require.ErrorIs(t, err, sick)
	require.ErrorContains(t, err, "the last attempt had failed")
}

// A stop before anything has failed leaves nothing to tell.
func TestStopBeforeTheFirstAttemptTellsOfNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	told := make(chan error, 10)
	stop := w.start(w.config(), &Listener{StoppedWaiting: func(cause error) { told <- cause }})
	require.NoError(t, stop())
	require.Empty(t, told)
}

// stopsAfterALoss lets an instance lose what it works on at each commit behind the second, and gives what a stop tells in the wait
// for the next attempt, when the group has left it so many partitions.
func stopsAfterALoss(t *testing.T, partitions int) []error {
	w := newWorld(t, 1)
	gone := fault.New(fault.Rejoin, fault.Failed, "not known to the group")
	w.onCommit = func(c checkpoint.Commit) (bool, error) {
		if c.Name.ID <= 2 {
			return true, nil
		}
		return false, gone
	}
	cfg := w.config()
	cfg.LossDelay = time.Minute // of the second loss in a row; bounded to a few seconds, in which the stop comes
	ended, told := make(chan time.Duration, 10), make(chan error, 10)
	stop := w.start(cfg, &Listener{
		AttemptEnded: func(_ int, err error, class fault.Recovery, delay time.Duration) {
			if err != nil && class == fault.Rejoin {
				ended <- delay
			}
		},
		StoppedWaiting: func(cause error) { told <- cause },
	})
	w.produceUntil(func() bool { return len(ended) == 2 })
	require.Zero(t, <-ended)
	require.Equal(t, mostLossDelay, <-ended)
	if partitions == 0 {
		w.assign(0)
	}
	require.NoError(t, stop())
	close(told)
	var out []error
	for err := range told {
		require.ErrorIs(t, err, gone)
		out = append(out, err)
	}
	return out
}

// A loss is no failure. What was not committed is done again by who has the partitions: others, and there is nothing to tell ...
func TestAStopAfterALossToOthersTellsOfNothing(t *testing.T) {
	t.Parallel()
	require.Empty(t, stopsAfterALoss(t, 0))
}

// ... or this instance, whose stop has no last checkpoint then.
func TestAStopAfterALossTellsOfWhatIsStillItsOwn(t *testing.T) {
	t.Parallel()
	told := stopsAfterALoss(t, 1)
	require.Len(t, told, 1)
	require.ErrorContains(t, told[0], "partitions are assigned to the instance again")
}

// The stop comes when the wait after a failed attempt is over and a new assignment is waited for: what counts is whose the work is.
func TestAStopWhileAnAssignmentIsAwaitedAfterAFailure(t *testing.T) {
	for name, left := range map[string]int{"it has partitions": 1, "others have them": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			sick := errors.New("the broker is sick")
			w.onCommit = func(c checkpoint.Commit) (bool, error) {
				if c.Name.ID <= 2 {
					return true, nil
				}
				return false, sick
			}
			cfg := w.config()
			cfg.Restart = restart.Config{Exponential: restart.Exponential{InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond}}
			failed, told, waits := make(chan struct{}, 10), make(chan error, 10), make(chan struct{}, 10)
			stop := w.startPlan(exchangePlan(t, 2), cfg, w.ports(), &Listener{
				AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) {
					if err == nil || len(failed) > 0 {
						return
					}
					// An exchange needs all partitions: with one of two an assignment is awaited, and it is the instance's.
					w.assign(left)
					failed <- struct{}{}
				},
				StandingBy: func(partitions int) {
					if partitions == left {
						waits <- struct{}{}
					}
				},
				StoppedWaiting: func(cause error) { told <- cause },
			})
			w.produceUntil(func() bool { return len(failed) == 1 && len(waits) > 0 })
			require.NoError(t, stop())
			if left == 0 {
				require.Empty(t, told)
				return
			}
			require.Len(t, told, 1)
			require.ErrorIs(t, <-told, sick)
		})
	}
}

// deafTopics gives no answer until nobody waits for one.
type deafTopics struct {
	Offsets
	asked chan struct{}
}

func (d deafTopics) Topics(ctx context.Context, _ []string) (map[string]Topic, error) {
	d.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// A stop while the brokers are asked which partitions there are is a stop like any other: no attempt has ended by it.
func TestStopWhileTheTopicsAreAskedForIsNoFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	ports := w.ports()
	asked := make(chan struct{}, 1)
	ports.Offsets = deafTopics{ports.Offsets, asked}
	ended := make(chan error, 10)
	stop := w.startPlan(exchangePlan(t, 2), w.config(), ports, &Listener{
		AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) { ended <- err },
	})
	<-asked
	require.NoError(t, stop())
	require.Empty(t, ended)
}
