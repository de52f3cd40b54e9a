package engine

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/snapshot"
)

// known says with the assignment whether the group knows the instance.
type known struct {
	*member
	is *atomic.Bool
}

func (k known) Current() Assignment {
	a := k.member.Current()
	a.Member = k.is.Load()
	return a
}

// clumsy cannot abort.
type clumsy struct{ Committer }

func (clumsy) Abort(context.Context) error { return errPlanted }

// An instance that has no partition any more ends what it, or its predecessor, left open: the others must not, since it
// lives. While the group does not know it, it may be the older one of two processes and leaves the ids alone.
func TestAnInstanceThatStandsByEndsWhatItLeftOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	member := new(atomic.Bool)
	var inits atomic.Int64
	failing := failOnce(3, errPlanted)
	ports := w.ports()
	ports.Group = known{w.member, member}
	ports.Committer = clumsy{unreachable{w, func() error {
		inits.Add(1)
		return failing()
	}}}
	var standby atomic.Int64
	r, err := New(countPlan(t), w.config(), ports, &Listener{StandingBy: func(int) { standby.Add(1) }})
	require.NoError(t, err)
	w.assign(0)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	is := func(n int64) func() bool { return func() bool { return inits.Load() == n } }

	require.Eventually(t, func() bool { return standby.Load() == 1 }, 5*time.Second, time.Millisecond)
	time.Sleep(20 * time.Millisecond)
	require.Zero(t, inits.Load(), "not a member yet")
	member.Store(true)
	w.assign(0)
	require.Eventually(t, is(1), 5*time.Second, time.Millisecond, "what the predecessor left")
	w.assign(0)
	time.Sleep(20 * time.Millisecond)
	require.EqualValues(t, 1, inits.Load(), "once is enough")

	w.assign(1)
	w.produce(100, 5)
	w.caughtUp()
	require.EqualValues(t, 2, inits.Load(), "the attempt's own")
	member.Store(false)
	w.assign(0) // lost, and the abort fails
	require.Eventually(t, func() bool { return standby.Load() == 2 }, 5*time.Second, time.Millisecond)
	time.Sleep(20 * time.Millisecond)
	require.EqualValues(t, 2, inits.Load(), "not a member any more")
	member.Store(true)
	w.assign(0)
	require.Eventually(t, is(4), 5*time.Second, time.Millisecond, "the first try fails, the second does not")
	cancel()
	require.NoError(t, <-done)
	w.exact()
}

// heldClean holds the first cleaning up.
type heldClean struct {
	Checkpoints
	gate <-chan struct{}
}

func (h heldClean) Clean(ctx context.Context, committed []snapshot.RootRef, group snapshot.GroupRoots) (snapshot.CleanReport, error) {
	select {
	case <-h.gate:
	case <-ctx.Done():
		return snapshot.CleanReport{}, ctx.Err()
	}
	return h.Checkpoints.Clean(ctx, committed, group)
}

// What is committed while the cleaning up of an earlier checkpoint goes on is cleaned up behind it, also when nothing is
// committed any more.
func TestWhatIsCommittedDuringACleaningUpIsCleanedUpToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	gate := make(chan struct{})
	w.wrap = func(c Checkpoints) Checkpoints { return heldClean{c, gate} }
	stop := w.start(w.config(), nil)
	w.produceUntil(func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.commits) > 6
	})
	w.caughtUp()
	roots := func() int {
		n, err := filepath.Glob(filepath.Join(w.dir, app, w.name, "*.root"))
		require.NoError(t, err)
		return len(n)
	}
	require.Greater(t, roots(), 4)
	close(gate)
	require.Eventually(t, func() bool { return roots() == 2 }, 5*time.Second, time.Millisecond, "so many are retained")
	require.NoError(t, stop())
	w.exact()
}
