package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
)

// The scenarios: what once went wrong, each as the faults that led there, at the steps where they did harm. The way there
// is random, so each runs with many seeds; in some of them at least it must come to the situation that it is about. The
// numbers behind the names are the seeds under which it was found, in schedules that partitions had in one owner's hand.

const scenarioSeeds = 60

type scenario struct {
	instances, partitions int
	pieces                bool
	directives            []directive
	reached               func(Counts) bool
}

func (s scenario) run(t *testing.T) int {
	reached := 0
	seeds := uint64(scenarioSeeds)
	if raceEnabled {
		seeds /= 3
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		res := Run(Config{Seed: seed, Instances: s.instances, Partitions: s.partitions, pieces: s.pieces, directives: s.directives})
		require.NoError(t, res.Err, "seed %d", seed)
		if s.reached(res.Counts) {
			reached++
		}
	}
	t.Logf("%d of %d runs came to the situation", reached, seeds)
	return reached
}

// mustReach runs variants of a scenario, of which one at least has to come to the situation.
func mustReach(t *testing.T, variants ...scenario) {
	reached := 0
	for _, s := range variants {
		reached += s.run(t)
	}
	require.NotZero(t, reached, "no run came to the situation")
}

// 103: a process was replaced while its stable read was on the way, and looked for roots after its successor had
// committed and cleaned. What it saw did not fit together; it must look again before it gives up for good.
func TestScenarioAReplacedProcessReadsRootsTooLate(t *testing.T) {
	mustReach(t, scenario{instances: 1, partitions: 2, directives: []directive{
		{kind: kCommit, number: 1, nth: 4, do: killHere(false)},
		{kind: kApplyFetchOffsets, number: 2, nth: 1, do: freezeHere(70*time.Millisecond, true)},
	}, reached: func(c Counts) bool { return c.SecondReads > 0 }})
}

// 450: a partition was meant for a member and taken away again before the member heard of it.
func TestScenarioAMemberGivesUpWhatItNeverHeardOf(t *testing.T) {
	mustReach(t, scenario{instances: 2, partitions: 2, directives: []directive{
		{kind: kApplyRevoked, nth: 1, do: func(w *world, _ *work) bool {
			for p, m := range w.broker.group.owner {
				if m == w.broker.group.want[p] && m != nil && p < 2 {
					w.broker.group.moveOne(p)
				}
			}
			return false
		}},
	}, reached: func(c Counts) bool { return c.NeverHeard > 0 }})
}

// 102330, 114736, 131288, 175449, 181007: a process was replaced between the delta and the root, and its successor has
// cleaned files that the root names.
func TestScenarioAReplacedProcessWritesARootOfCleanedFiles(t *testing.T) {
	var all []scenario
	for chain := 1; chain <= 4; chain++ {
		for _, d := range []time.Duration{30, 34, 38} {
			long := func(_ *world, it *work) bool {
				a := it.p.attempt
				return a != nil && len(a.flights) == 1 && a.flights[0].root == nil && !a.merging && len(a.flights[0].acks) == 2 && len(a.tasks[0].committed.Runs) == chain
			}
			all = append(all, scenario{instances: 1, partitions: 2, directives: []directive{
				{kind: kSyncDir, number: 1, do: once(long, freezeHere(d*time.Millisecond, true))},
			}, reached: func(c Counts) bool { return c.ChainsGone > 0 }})
		}
	}
	mustReach(t, all...)
}

// 1029743: the group said something new while a callback of its last word was still to run: one after the other.
func TestScenarioCallbacksRunInOrder(t *testing.T) {
	move := func(w *world, _ *work) bool { w.broker.group.move(); return false }
	mustReach(t, scenario{instances: 3, partitions: 3, directives: []directive{
		{kind: kAssigned, nth: 4, before: true, do: move}, {kind: kAssigned, nth: 7, before: true, do: move},
		{kind: kApplyRevoked, nth: 2, do: move}, {kind: kApplyHeartbeat, nth: 9, do: move},
	}, reached: func(c Counts) bool { return c.Overtold > 0 && c.Takeovers > 0 }})
}

// 1034710: a machine with two processes of one name, of which one stands still, loses power: both are gone.
func TestScenarioPowerIsLostUnderTwoProcesses(t *testing.T) {
	mustReach(t, scenario{instances: 1, partitions: 2, directives: []directive{
		{kind: kLink, number: 1, nth: 2, do: freezeHere(60*time.Millisecond, true)},
		{kind: kSyncDir, number: 2, nth: 3, before: true, do: killHere(true)},
	}, reached: func(c Counts) bool { return c.Crashes == 2 }})
}

// 1043769: records were sent and never answered, so that nothing is known to be in the transaction. The abort has to be
// sent all the same, or the transaction stays open.
func TestScenarioAnAbortAfterSendsWithoutAnAnswer(t *testing.T) {
	mustReach(t, scenario{instances: 1, partitions: 1, directives: []directive{
		{kind: kTask, number: 1, nth: 2, do: func(w *world, _ *work) bool {
			w.arm(netFault{kind: netLoseReply, match: kApplyProduce, count: maxTries + 1})
			return false
		}},
	}, reached: func(c Counts) bool { return c.Attempts > 1 && c.TimedOut == 0 }})
}

// 5182402: a process was replaced right before it cleaned up, and its successor has merged a chain into a file that no
// root names yet.
func TestScenarioAReplacedProcessCleansBesideAMergedRun(t *testing.T) {
	var all []scenario
	for nth := 2; nth <= 6; nth++ {
		all = append(all, scenario{instances: 1, partitions: 1, directives: []directive{
			{kind: kDelete, number: 1, nth: nth, before: true, do: freezeHere(120*time.Millisecond, true)},
		}, reached: func(c Counts) bool { return c.Merged > 1 && c.Fenced > 0 }})
	}
	mustReach(t, all...)
}

// 10126112: a process that stood still was stopped a second time, for shorter than was left of the first.
func TestScenarioAProcessStopsWhileItStandsStill(t *testing.T) {
	var all []scenario
	for _, k := range []kind{kReply, kApplyEnd, kApplyOffsets} {
		all = append(all, scenario{instances: 1, partitions: 2, directives: []directive{
			{kind: k, number: 1, nth: 9, do: func(w *world, it *work) bool {
				p := it.p
				w.halt(p, 40*time.Millisecond, 0)
				w.outside(nil, 10*time.Millisecond, kFault, func() { w.halt(p, 5*time.Millisecond, 0) })
				return false
			}},
		}, reached: func(c Counts) bool { return c.Checkpoints > 1 }})
	}
	mustReach(t, all...)
}

// A late partition starts with a checkpoint of an instance that has others, and that comes to nothing after its root is
// written. A root with the task and no committed offset would look like an offset that has expired.
func TestScenarioTheFirstCheckpointOfALatePartitionFails(t *testing.T) {
	var all []scenario
	for nth := 1; nth <= 6; nth++ {
		all = append(all, scenario{instances: 2, partitions: 3, directives: []directive{
			{kind: kAssigned, number: 1, nth: 1, before: true, do: func(w *world, _ *work) bool {
				w.broker.group.seen = bit(0) // the others come later
				w.outside(nil, 12*time.Millisecond, kAppend, func() { w.broker.group.discover(bit(1) | bit(2)) })
				return false
			}},
			{kind: kCommit, nth: nth, before: true, do: killHere(true)},
		}, reached: func(c Counts) bool { return c.JoinedFresh > 0 }})
	}
	mustReach(t, all...)
}

// While an attempt prepares, a partition comes, is asked for, goes because the time for it ends, and comes again. Only then
// the attempt gets to look at the request, which is about an ownership that is over.
func TestScenarioARevokeThatIsLookedAtTooLate(t *testing.T) {
	prepares := func(w *world, it *work) bool {
		return it.p.attempt != nil && !it.p.attempt.ready && len(w.broker.group.members) == 2
	}
	mustReach(t, scenario{instances: 2, partitions: 4, directives: []directive{
		{kind: kCommit, number: 1, nth: 3, before: true, do: killHere(false)},
		{kind: kRestore, before: true, do: once(prepares, func(w *world, it *work) bool {
			g, me := w.broker.group, it.p.name
			for p, m := range g.owner {
				if m == nil || m.instance == me {
					continue
				}
				other := m.instance
				g.give(p, me)
				w.outside(nil, 30*time.Millisecond, kFault, func() { w.faults.hasty = 5; g.give(p, other) })
				w.outside(nil, 44*time.Millisecond, kFault, func() { g.give(p, me) })
				break
			}
			it.at = w.now + 100*time.Millisecond
			w.wait = it.at + 50*time.Millisecond
			w.push(*it)
			return true
		})},
	}, reached: func(c Counts) bool { return c.OutOfBudget > 0 && c.LateRevokes > 0 }})
}

// The offsets are refused for their generation, again and again, while the partition goes to somebody else: each resend
// proves the claims anew, and the last one finds that they no longer hold.
func TestScenarioAResendProvesItsClaims(t *testing.T) {
	var all []scenario
	for _, times := range []int{2, 4, 6} {
		all = append(all, scenario{instances: 2, partitions: 2, directives: []directive{
			{kind: kCommit, nth: 5, before: true, do: func(w *world, it *work) bool {
				w.arm(netFault{kind: netCode, match: kApplyOffsets, code: kerr.IllegalGeneration.Code, count: times, p: it.p})
				w.faults.hasty++
				for p, m := range w.broker.group.owner {
					if m != nil && m.id == it.p.member && w.broker.group.moveOne(p) {
						break
					}
				}
				return false
			}},
		}, reached: func(c Counts) bool { return c.Resent >= times && c.Takeovers > 0 }})
	}
	mustReach(t, all...)
}

// Two members commit while the group goes through one generation after the other.
func TestScenarioCommitsInTimesOfRebalances(t *testing.T) {
	var all []directive
	for nth := 2; nth < 20; nth += 3 {
		all = append(all, directive{kind: kApplyOffsets, nth: nth, before: true, do: func(w *world, _ *work) bool {
			w.broker.group.gen++
			return false
		}})
	}
	mustReach(t, scenario{instances: 2, partitions: 4, directives: all, reached: func(c Counts) bool { return c.Resent > 3 && c.Rejoined == 0 }})
}

// An instance dies with a transaction open and stays away. Whoever takes its partitions over ends the transaction first;
// the instance comes back at that very moment.
func TestScenarioTheGoneComesBackWhileItIsFenced(t *testing.T) {
	var all []scenario
	for _, at := range []kind{kApplyDescribe, kApplyListTxns, kApplyInit} {
		var dead string
		all = append(all, scenario{instances: 2, partitions: 2, directives: []directive{
			{kind: kCommit, nth: 4, before: true, do: func(w *world, it *work) bool {
				dead = it.p.name
				w.away = sessionTimeout + 25*time.Millisecond
				it.p.die(false, 1)
				return true
			}},
			{kind: at, nth: 9, do: func(w *world, _ *work) bool { w.supervise(dead); return false }},
		}, reached: func(c Counts) bool { return c.FencedGone > 0 }})
	}
	mustReach(t, all...)
}

// A process is frozen right after its commit; its successor goes on and removes the root, which a newer one supersedes. Then
// the first one wakes up and marks the root as committed: a marker without a root beside the roots of the instance. The
// other instance, which takes over a partition of an older checkpoint of that directory, must not take it for a loss.
func TestScenarioAReplacedProcessMarksARootThatIsGone(t *testing.T) {
	away := func(d time.Duration) func(*world, *work) bool {
		return func(w *world, it *work) bool {
			w.away = d
			it.p.die(false, 1)
			return true
		}
	}
	always := func(*world, *work) bool { return true }
	mustReach(t, scenario{instances: 2, partitions: 2, directives: []directive{
		// i1 comes when i0 has committed both partitions. It takes one of them over and is killed before it commits it, and is
		// back before its session ends.
		{kind: kStart, number: 2, before: true, do: once(always, away(20*time.Millisecond))},
		{kind: kRestore, number: 3, before: true, do: once(always, away(sessionTimeout-5*time.Millisecond))},
		// It looked whether the root was there, and writes the marker when that has gone.
		{kind: kLink, number: 1, before: true, do: once(func(w *world, _ *work) bool { return w.counts.Crashes == 2 }, freezeHere(35*time.Millisecond, true))},
	}, reached: func(c Counts) bool { return c.MarkersAlone > 0 }})
}
