package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The offsets of a checkpoint go in several requests of one transaction. What happens between two of them must be as if it
// had happened to all.

// halfSent is the moment at which the broker has taken some of the offsets of a process and not the others.
func halfSent(nth int) func(*world, *work) bool {
	var seen *world
	times := 0
	return func(w *world, it *work) bool {
		if seen != w {
			seen, times = w, 0
		}
		if it.p.attempt == nil {
			return false
		}
		sent := 0
		for _, p := range w.broker.group.pending {
			for _, o := range p.offsets {
				if o.found && p.txn.state == ongoing {
					sent++
				}
			}
		}
		if sent == 0 || sent >= len(it.p.attempt.tasks) {
			return false
		}
		times++
		return times == nth
	}
}

// betweenPieces does something to a process at the first, second … time that its offsets are half sent.
func betweenPieces(instances int, do func(*world, *work) bool, reached func(Counts) bool) []scenario {
	var all []scenario
	for nth := 1; nth <= 4; nth++ {
		all = append(all, scenario{instances: instances, partitions: 3, pieces: true, directives: []directive{
			{kind: kApplyOffsets, do: once(halfSent(nth), do)},
		}, reached: func(c Counts) bool { return c.Pieces > 0 && reached(c) }})
	}
	return all
}

func TestScenarioACrashBetweenPiecesOfTheOffsets(t *testing.T) {
	mustReach(t, betweenPieces(1, killHere(false), func(c Counts) bool { return c.Crashes > 0 })...)
	mustReach(t, betweenPieces(2, killHere(true), func(c Counts) bool { return c.Crashes > 0 })...)
}

// Another process of the name takes the ids over between two pieces: the next one is refused.
func TestScenarioFencedBetweenPiecesOfTheOffsets(t *testing.T) {
	mustReach(t, betweenPieces(1, freezeHere(70*time.Millisecond, true), func(c Counts) bool { return c.Fenced > 0 })...)
}

// A partition whose offset is sent already, or is not, goes to another member between two pieces.
func TestScenarioAPartitionMovesBetweenPiecesOfTheOffsets(t *testing.T) {
	move := func(w *world, _ *work) bool { w.broker.group.move(); return false }
	mustReach(t, betweenPieces(2, move, func(c Counts) bool { return c.Takeovers > 0 && c.StaleGenerations > 0 })...)
	freeze := func(w *world, it *work) bool {
		w.broker.group.move()
		return freezeHere(2*sessionTimeout, false)(w, it)
	}
	mustReach(t, betweenPieces(2, freeze, func(c Counts) bool { return c.Takeovers > 0 && c.Rejoined > 0 })...)
}

// TestSchedulesWithPiecesOfTheOffsets plays random schedules in which every commit goes in pieces.
func TestSchedulesWithPiecesOfTheOffsets(t *testing.T) {
	many := 0
	for seed := uint64(1); seed <= 400; seed++ {
		res := Run(Config{Seed: seed, pieces: true})
		require.NoError(t, res.Err, "seed %d", seed)
		many += res.Counts.Pieces
	}
	require.Greater(t, many, 400)
	t.Logf("%d further pieces", many)
}
