package snapshot

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Where records may repeat, offsets that a delayed copy of a commit has set back to the checkpoint before the newest one are
// taken up. Nothing else that lies behind a committed checkpoint is.
func TestASetBackByOneIsTakenUpWhereRecordsMayRepeat(t *testing.T) {
	emptyAt := func(h *history, id int) {
		for p := range h.in.Tasks {
			*h.facts(p) = factsOf(t, position(int32(p), 42), RootRef{Name: nameOf(id, 1)}, h.in, HandleEmpty)
		}
	}
	edit := func(h *history, id int, change func(r *Root)) {
		i := slices.IndexFunc(h.in.Listing, func(i RootInfo) bool { return i.Ref == h.refs[id] })
		root := *h.in.Listing[i].Root
		change(&root)
		h.in.Listing[i].Root = &root
	}
	for name, c := range map[string]struct {
		at     int
		change func(h *history)
		kind   DecisionKind // 0: refused
	}{
		"by one":                        {at: 6, kind: Restore},
		"by two":                        {at: 5},
		"exactly once":                  {at: 6, change: func(h *history) { h.in.Repeats = false }},
		"the newer one follows another": {at: 6, change: func(h *history) { edit(h, 7, func(r *Root) { ref := h.refs[5]; r.Predecessor = &ref }) }},
		"the newer one follows none":    {at: 6, change: func(h *history) { edit(h, 7, func(r *Root) { r.Predecessor = nil }) }},
		"the newer one cannot be read":  {at: 6, change: func(h *history) { h.in.Listing[0].Root = nil }},
		"the newer one follows that of a task that had joined": {at: 6, kind: Restore, change: func(h *history) {
			other := RootInfo{Ref: RootRef{Name: nameOf(6, 9), Path: "shop/i-1/chk-" + nameOf(6, 9).String() + ".root"}, Root: &Root{ClusterID: "cluster-1"}, Marked: true}
			h.in.Listing = append(h.in.Listing, other)
			edit(h, 7, func(r *Root) { r.Predecessor = &other.Ref })
		}},
		"without state, by one":           {at: 6, change: func(h *history) { emptyAt(h, 6) }, kind: StartEmpty},
		"without state, by two":           {at: 5, change: func(h *history) { emptyAt(h, 5) }},
		"without state, one between gone": {at: 6, change: func(h *history) { emptyAt(h, 5) }},
		"to the start position of a task that came late": {at: 5, kind: StartEmpty, change: func(h *history) {
			emptyAt(h, 0)
			edit(h, 6, func(r *Root) { r.Tasks = nil })
		}},
		"to the start positions": {at: 6, kind: StartEmpty, change: func(h *history) {
			emptyAt(h, 0)
			edit(h, 7, func(r *Root) { r.Predecessor = nil })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistory(t)
			h.at(t, c.at)
			h.in.Repeats = true
			var err error
			h.in.Roots, err = h.r.LoadRoots(ctx, NamedRoots(h.in.Tasks))
			require.NoError(t, err)
			h.in.Listing, err = h.r.CommittedAfter(ctx, OldestID(h.in.Tasks))
			require.NoError(t, err)
			require.Len(t, h.in.Listing, 7-c.at)
			if c.change != nil {
				c.change(h)
			}
			got, err := Resolve(*h.in)
			if c.kind == 0 {
				require.True(t, RefusalOf(err).Has(ReasonStaleHandle), "%v", err)
				return
			}
			require.NoError(t, err)
			for _, id := range []element.TaskID{taskA, taskB} {
				require.Equal(t, c.kind, got[id].Kind)
				require.EqualValues(t, 7, got[id].Behind)
			}
		})
	}
}

// The group is set back by one, and the next attempt goes on from there. A second copy of the same commit sets it back again:
// the checkpoint is there although a newer one that nobody goes on with any more is, too, and the start goes on from it.
func TestASecondSetBackToTheSameCheckpointIsTakenUp(t *testing.T) {
	for _, retain := range []int{1, 2, 3} {
		h := newHistory(t)
		h.r.retain = retain
		root6, err := h.r.ReadRoot(ctx, h.refs[6])
		require.NoError(t, err)
		ref6, last := h.refs[6], h.refs[7]
		for id := 9; id <= 8+retain; id++ { // each from 6
			last, _ = mustCheckpoint(t, h.r, id, 1, &ref6, root6, both("again"))
			require.NoError(t, h.r.MarkCommitted(ctx, last))
			_, err = h.r.Clean(ctx, []RootRef{last}, says(last))
			require.NoError(t, err)
		}
		if retain == 1 {
			require.NotContains(t, listAll(t, h.r), ref6.Path, "with transactions one is enough")
			continue
		}
		require.NotContains(t, listAll(t, h.r), h.refs[5].Path)
		h.at(t, 6)
		h.in.Repeats = true
		h.in.Roots, err = h.r.LoadRoots(ctx, NamedRoots(h.in.Tasks))
		require.NoError(t, err)
		h.in.Listing, err = h.r.CommittedAfter(ctx, OldestID(h.in.Tasks))
		require.NoError(t, err)
		got, err := Resolve(*h.in)
		require.NoError(t, err)
		for _, id := range []element.TaskID{taskA, taskB} {
			require.Equal(t, Restore, got[id].Kind)
			require.Equal(t, last.Name.ID, got[id].Behind)
		}
		whole(t, h.r, ref6)
	}
}

// A marked root beside the one that a handle names, and newer, cannot be read: a task that has moved since may be in it, or not. That is
// said as what it is, not as offsets that went back, and a recovery takes it like the others that the damage concerns.
func TestANewerRootThatIsDamagedIsDamage(t *testing.T) {
	h := newHistory(t)
	h.at(t, 6)
	moved := *h.facts(1)
	h.at(t, 7)
	*h.facts(1) = moved
	h.damage(t, h.refs[7].Path)
	in := *h.in
	var err error
	in.Roots, err = h.r.LoadRoots(ctx, NamedRoots(in.Tasks))
	require.NoError(t, err)
	in.Listing, err = h.r.CommittedAfter(ctx, OldestID(in.Tasks))
	require.NoError(t, err)
	_, err = Resolve(in)
	ref := RefusalOf(err)
	require.NotNil(t, ref)
	require.Len(t, ref.Refusals, 2)
	for _, r := range ref.Refusals {
		require.Equal(t, ReasonRootUnusable, r.Reason)
		require.Contains(t, r.Message, h.refs[7].Path)
		require.NotContains(t, r.Message, "went back")
	}
	require.Equal(t, fault.Corrupt, fault.CodeOf(err))
	got, _, err := h.resolve(t)
	require.NoError(t, err)
	for _, id := range []element.TaskID{taskA, taskB} {
		require.Equal(t, h.refs[6], got[id].Root)
	}
}
