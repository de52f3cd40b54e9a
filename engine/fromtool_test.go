package engine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// damageRoot spoils a root, counted from the newest one, and gives its id.
func (w *world) damageRoot(i int) element.CheckpointID {
	left, err := w.repo.List(w.t.Context())
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(filepath.Join(w.dir, left[i].Ref.Path), []byte("damaged"), 0o600))
	return left[i].Ref.Name.ID
}

// Offsets that a tool has set tell nothing of the checkpoints in the store, and those that went back not all: new checkpoints are
// above them all the same, or the next start would take what they commit for offsets that went back. A damaged checkpoint that
// no offset names is no obstacle, and its id counts.
func TestGoingBackToASavepointOverOffsetsOfATool(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]bool{"all whole": false, "the newest root is damaged": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			ref := w.cut(countPlan(t), aligned, 200)
			begin := contents(t, ref.Path)
			newest := w.lastCommit()
			for tp, at := range w.committed {
				at.Metadata = ""
				w.committed[tp] = at
			}
			if damage {
				require.Equal(t, newest, w.damageRoot(0))
			}
			w.output, w.commits = nil, nil
			cfg := w.configOf(app, ref.Path)
			r, err := New(countPlan(t), cfg, withFrom(w.ports()), nil)
			require.NoError(t, err)
			require.True(t, snapshot.RefusalOf(r.Run(t.Context())).Has(snapshot.ReasonOtherLineage))
			cfg.From.AcceptDuplicates = true
			for range 3 {
				stop := w.startPlan(countPlan(t), cfg, withFrom(w.ports()), nil)
				w.produce(100, 7)
				w.outputsFrom(begin)
				require.NoError(t, stop())
			}
			w.exactFrom(begin)
			require.Greater(t, slices.Min(w.commits), newest)
		})
	}
}

// Nor is it one where partitions have no offset at all: those that are gone, and one that was added since.
func TestGoingBackToASavepointBesideADamagedRoot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plan  *topology.Plan
		alter func(*world)
		code  fault.Code // of a start as always
	}{
		"offsets gone":    {countPlan(t), (*world).forget, fault.HandleMismatch},
		"partition added": {latestPlan(t, false), func(w *world) { w.added(30); w.assign(3) }, fault.Corrupt},
		"both":            {latestPlan(t, true), func(w *world) { w.forget(); w.added(30); w.assign(3) }, fault.HandleMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			r, err := New(c.plan, w.config(), withFrom(w.ports()), nil)
			require.NoError(t, err)
			stop := w.run(r)
			w.produceUntil(func() bool { return w.done() > 50 })
			ref, err := r.Savepoint(t.Context(), "", t.TempDir())
			require.NoError(t, err)
			w.produce(100, 7)
			w.caughtUp()
			require.NoError(t, stop())
			last := w.lastCommit()
			w.damageRoot(1)
			c.alter(w)
			cfg := w.configOf(app, ref.Path)
			r, err = New(c.plan, cfg, withFrom(w.ports()), nil)
			require.NoError(t, err)
			require.Equal(t, c.code, fault.CodeOf(r.Run(t.Context())))
			cfg.From.AcceptDuplicates = true
			w.output, w.commits = nil, nil
			for range 2 {
				stop = w.startPlan(c.plan, cfg, withFrom(w.ports()), nil)
				w.produce(100, 7)
				w.caughtUp()
				require.NoError(t, stop())
			}
			require.Greater(t, w.lastCommit(), last)
			require.Equal(t, w.total()-behind(t, ref), w.done())
		})
	}
}
