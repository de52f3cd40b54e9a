package engine

import (
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
