package engine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/snapshot"
)

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
				left, err := w.repo.List(t.Context())
				require.NoError(t, err)
				require.Equal(t, newest, left[0].Ref.Name.ID)
				require.NoError(t, os.WriteFile(filepath.Join(w.dir, left[0].Ref.Path), []byte("damaged"), 0o600))
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
