package gate

import (
	"math/rand/v2"
	"testing"

	"github.com/millweir/millweir/element"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestGarbageIsHarmless: events that no driver sends, for inputs that do not exist, in any order: no panic, what is kept
// stays bounded, and what is said about one checkpoint stays consistent.
func TestGarbageIsHarmless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inputs := rapid.IntRange(-1, 4).Draw(t, "inputs")
		mode := Mode(rapid.IntRange(0, 3).Draw(t, "mode"))
		g := New(inputs, mode, Feedback(rapid.IntRange(-1, 4).Draw(t, "feedback")), After(element.CheckpointID(rapid.IntRange(0, 3).Draw(t, "after"))))
		snapshots, aborts := map[element.CheckpointID]int{}, map[element.CheckpointID]int{}
		blocked, decided := map[int]bool{}, element.CheckpointID(0)
		// Draws of rapid prefer small numbers: few alignments would get far.
		r, base := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)), 0
		for range rapid.IntRange(1, 500).Draw(t, "events") {
			if r.IntN(8) == 0 {
				base++
			}
			in := r.IntN(8) - 2
			b := Barrier{ID: element.CheckpointID(base + r.IntN(5)), Unaligned: r.IntN(4) == 0, Timeout: r.IntN(2) == 0}
			var actions []Action
			switch r.IntN(21) {
			case 0, 1, 2, 3, 4:
				actions = g.Announced(in, b)
			case 5, 6, 7, 8, 9, 10:
				actions = g.Barrier(in, b)
			case 11, 12, 13, 14:
				actions = g.Cancelled(in, b.ID)
			case 15, 16:
				actions = g.TimedOut(b.ID)
			case 17, 18, 19:
				actions = g.Trigger(b)
			case 20:
				if r.IntN(4) == 0 {
					actions = g.Ended(in)
				}
			}
			for _, a := range actions {
				require.NotEmpty(t, a.String())
				switch a := a.(type) {
				case Block:
					require.False(t, blocked[a.Input])
					blocked[a.Input] = true
				case Unblock:
					require.NotEmpty(t, blocked)
					clear(blocked)
				case Snapshot:
					require.Zero(t, aborts[a.ID])
					require.Zero(t, snapshots[a.ID])
					snapshots[a.ID]++
					require.Greater(t, a.ID, decided)
					decided = a.ID
				case Abort:
					require.Zero(t, aborts[a.ID])
					aborts[a.ID]++
					if mode != Counting {
						require.True(t, a.ID > decided || a.ID == decided && snapshots[a.ID] > 0, "%v after %d", a, decided)
						decided = a.ID
					}
				}
			}
			for i := range max(inputs, 0) {
				require.Equal(t, blocked[i] && g.open(i), g.Blocked(i))
			}
			require.LessOrEqual(t, len(g.Pending()), maxPending)
			if x, ok := g.h.(*exact); ok {
				require.LessOrEqual(t, len(x.triggered), maxPending)
				require.LessOrEqual(t, len(x.refused), maxPending)
			} else {
				require.LessOrEqual(t, len(g.h.(*counting).count), maxPending)
			}
		}
	})
}

// TestWhatIsKeptIsBounded: a coordinator that triggers and cancels for ever, while the inputs say nothing, or everything
// but the end.
func TestWhatIsKeptIsBounded(t *testing.T) {
	g := New(2, Aligned)
	x := g.h.(*exact)
	for n := element.CheckpointID(1); n <= maxPending; n++ {
		require.Empty(t, g.Trigger(Barrier{ID: n}))
	}
	// The oldest one has begun, through an input, and there is one too many: it is given up once.
	require.Equal(t, []Action{Block{Input: 0, ID: 1}}, g.Barrier(0, Barrier{ID: 1}))
	require.Equal(t, []Action{Abort{ID: 1}, Unblock{}}, g.Trigger(Barrier{ID: maxPending + 1}))
	require.Equal(t, []Action{Abort{ID: 2}}, g.Trigger(Barrier{ID: maxPending + 2}))
	require.Equal(t, []Action{Abort{ID: 3}}, g.Cancelled(Coordinator, maxPending+3))
	require.Len(t, x.triggered, maxPending)
	// The ends bring them all.
	require.Empty(t, g.Ended(0))
	actions := g.Ended(1)
	require.Len(t, actions, maxPending)
	require.Equal(t, Snapshot{ID: 4, Forward: Barrier{ID: 4}}, actions[0])
	require.Equal(t, Abort{ID: maxPending + 3}, actions[maxPending-1])

	g = New(2, Aligned)
	x = g.h.(*exact)
	for n := element.CheckpointID(1); n <= 1000; n++ {
		require.Empty(t, g.Cancelled(Coordinator, n))
		require.Equal(t, []Action{Abort{ID: n}}, g.Barrier(int(n)%2, Barrier{ID: n}))
		require.Empty(t, g.Barrier(int(n+1)%2, Barrier{ID: n}))
		require.Empty(t, x.refused)
		require.Empty(t, x.triggered)
	}
	g = New(2, Counting)
	for n := element.CheckpointID(1); n <= 1000; n++ {
		g.Cancelled(Coordinator, n)
		require.LessOrEqual(t, len(g.h.(*counting).count), maxPending)
	}
}

// TestTheTableIsComplete: every cell that is empty is empty on purpose.
func TestTheTableIsComplete(t *testing.T) {
	empty := map[[2]string][]string{}
	events := [numEvents]string{evAnnounced: "announced", evBarrier: "barrier", evCancelled: "cancelled", evTimedOut: "timed out"}
	for p := range numPhases {
		for e := range numEvents {
			c := transitions[p][e]
			if c.same == nil {
				empty[[2]string{p.String(), events[e]}] = append(empty[[2]string{p.String(), events[e]}], "same")
			}
			if c.newer == nil {
				empty[[2]string{p.String(), events[e]}] = append(empty[[2]string{p.String(), events[e]}], "newer")
			}
		}
	}
	require.Equal(t, map[[2]string][]string{
		// Nothing runs, so nothing can be about it.
		{"idle", "announced"}: {"same"}, {"idle", "barrier"}: {"same"}, {"idle", "cancelled"}: {"same"},
		// A timer is started by what runs only.
		{"idle", "timed out"}: {"same", "newer"}, {"aligning", "timed out"}: {"newer"},
		// It has switched already.
		{"recording", "timed out"}: {"same", "newer"},
	}, empty)
}

func TestModeAndQueries(t *testing.T) {
	require.Equal(t, "aligned counting unaligned Mode(9)", Aligned.String()+" "+Counting.String()+" "+Unaligned.String()+" "+Mode(9).String())
	require.True(t, New(0, Aligned).AllEnded())
	g := New(2, Unaligned, Feedback(1))
	require.False(t, g.AllEnded())
	require.Empty(t, g.Ended(0))
	require.True(t, g.AllEnded())
	// What a gate gives belongs to the caller: the next event does not touch it.
	g = New(2, Aligned)
	first := g.Barrier(0, Barrier{ID: 1})
	g.Barrier(1, Barrier{ID: 1})
	require.Equal(t, []Action{Block{Input: 0, ID: 1}}, first)
}

// BenchmarkCheckpoint is a whole aligned checkpoint of a task with four inputs.
func BenchmarkCheckpoint(b *testing.B) {
	g := New(4, Aligned)
	b.ReportAllocs()
	for n := range b.N {
		for in := range 4 {
			g.Barrier(in, Barrier{ID: element.CheckpointID(n + 1)})
		}
	}
}
