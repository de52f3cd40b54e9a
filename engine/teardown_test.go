package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
)

// slowAbort tells when an abort begins, and holds it until it may go on.
type slowAbort struct {
	Committer
	begun chan<- struct{}
	goOn  <-chan struct{}
}

func (s slowAbort) Abort(ctx context.Context) error {
	s.begun <- struct{}{}
	<-s.goOn
	return s.Committer.Abort(ctx)
}

// An attempt that has failed is not running any more while what it began is put away, which takes as long as a broker that does
// not answer is waited for.
func TestAnAttemptThatIsPutAwayIsNotRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	begun, goOn := make(chan struct{}, 10), make(chan struct{})
	w.onCommit = func(c checkpoint.Commit) (bool, error) {
		if c.Name.ID == 3 {
			return false, errors.New("the broker is sick")
		}
		return true, nil
	}
	ports := w.ports()
	ports.Committer = slowAbort{ports.Committer, begun, goOn}
	r, err := New(countPlan(t), w.config(), ports, nil)
	require.NoError(t, err)
	stop := w.run(r)
	w.produceUntil(func() bool { return len(begun) == 1 })
	s, err := r.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, Ending, s.State)
	require.Equal(t, 1, s.Attempt)
	require.Zero(t, s.Told)
	close(goOn)
	w.caughtUp()
	s, err = r.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, Running, s.State)
	require.NotZero(t, s.Told)
	require.Len(t, s.Tasks, 1)
	require.NoError(t, stop())
	w.exact()
}
