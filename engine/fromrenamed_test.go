package engine

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// copyPlan copies what a source of a name reads, without state.
func copyPlan(t *testing.T, source string) *topology.Plan {
	b := topology.New(app)
	topology.ToTopic(topology.FromTopic(b, source, "in", serde.String(), serde.String()), "out", "out", serde.String(), serde.String())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// behind gives the number of records that a savepoint covers.
func behind(t *testing.T, ref snapshot.SavepointRef) (n int) {
	s, err := snapshot.OpenSavepoint(t.Context(), ref.Path)
	require.NoError(t, err)
	defer s.Close()
	for _, e := range s.Root.Tasks {
		for _, p := range e.Positions {
			n += int(p.Offset)
		}
	}
	return n
}

// TestAForkOfARenamedSource: the only source has another name than at the savepoint. It goes on at its positions, and what it has
// of state is refused, or let go when that is allowed. What is behind an exchange stays.
func TestAForkOfARenamedSource(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plan     func(t *testing.T, source string) *topology.Plan
		stateful bool
	}{
		"stateless": {plan: copyPlan},
		"exchange":  {plan: func(t *testing.T, source string) *topology.Plan { return namedPlan(t, source, true) }},
		"chained":   {plan: func(t *testing.T, source string) *topology.Plan { return namedPlan(t, source, false) }, stateful: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			ref := w.cut(c.plan(t, "in"), aligned, 200)
			begin, had := contents(t, ref.Path), behind(t, ref)
			f := w.fork("fork", 2)
			cfg := f.configOf("fork", ref.Path)
			if c.stateful {
				r, err := New(c.plan(t, "other"), cfg, withFrom(f.ports()), nil)
				require.NoError(t, err)
				err = r.Run(t.Context())
				require.Equal(t, fault.StateMismatch, fault.CodeOf(err), "%v", err)
				require.ErrorContains(t, err, "--allow-dropped-state")
				require.Empty(t, f.committed)
				cfg.AllowDropped = true
			}
			var from atomic.Pointer[FromInfo]
			var l losses
			lis := l.listener()
			lis.StartedFrom = func(i FromInfo) { from.Store(&i) }
			for again := range 2 { // the wish stays on the command line
				stop := f.startPlan(c.plan(t, "other"), cfg, withFrom(f.ports()), lis)
				f.produce(100, 7)
				require.Eventually(t, func() bool { return f.done() >= f.total()-had }, 10*time.Second, time.Millisecond)
				require.NoError(t, stop())
				require.Equal(t, 2*again, from.Load().Ignored)
			}
			require.Len(t, f.output, f.total()-had, "no record is left out, and none is processed again")
			require.NotContains(t, f.commits, element.CheckpointID(0), "no start position is committed")
			if name == "exchange" {
				f.exactFrom(begin)
			}
			require.Len(t, l.dropped, map[bool]int{true: 1}[c.stateful])
		})
	}
}

// A claimed savepoint stays while another instance needs it for a source that has another name now.
func TestAClaimedSavepointOfARenamedSource(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	ref := w.cut(copyPlan(t, "in"), aligned, 200)
	had := behind(t, ref)
	f := w.fork("fork", 2)
	f.others = true
	a, b := f.member, f.join("i2")
	b.fork("fork")
	var fail, gone atomic.Bool
	fail.Store(true)
	f.onCommit = func(c checkpoint.Commit) (bool, error) {
		theirs := slices.ContainsFunc(c.Offsets, func(o checkpoint.OffsetCommit) bool { return o.Position.Partition == 1 })
		if fail.Load() && theirs {
			return false, errSpoiled
		}
		return true, nil
	}
	f.move(a, b, time.Second, 1)
	var stops []func() error
	for _, m := range []*member{a, b} {
		cfg := m.configOf("fork", ref.Path)
		cfg.From.Claim = true
		stops = append(stops, m.startPlan(copyPlan(t, "other"), cfg, withFrom(m.ports()), &Listener{Claimed: func([]string, error) { gone.Store(true) }}))
	}
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.committed[tp(0)].Found
	}, 10*time.Second, time.Millisecond)
	time.Sleep(3 * claimInterval)
	require.False(t, gone.Load(), "the other instance still needs it")
	require.DirExists(t, ref.Path)
	fail.Store(false)
	require.Eventually(t, gone.Load, 10*time.Second, time.Millisecond)
	require.NoDirExists(t, ref.Path)
	require.Eventually(t, func() bool { return f.done() >= f.total()-had }, 10*time.Second, time.Millisecond)
	for _, stop := range stops {
		require.NoError(t, stop())
	}
	require.Len(t, f.output, f.total()-had)
}
