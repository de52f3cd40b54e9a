package sim

import (
	"fmt"
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
	directives            []directive
	reached               func(Counts) bool
}

func (s scenario) run(t *testing.T) {
	reached := 0
	for seed := uint64(1); seed <= scenarioSeeds; seed++ {
		res := Run(Config{Seed: seed, Instances: s.instances, Partitions: s.partitions, directives: s.directives})
		require.NoError(t, res.Err, "seed %d", seed)
		if s.reached(res.Counts) {
			reached++
		}
	}
	require.NotZero(t, reached, "no run came to the situation")
	t.Logf("%d of %d runs came to the situation", reached, scenarioSeeds)
}

// 103: a process was replaced while its stable read was on the way, and looked for roots after its successor had
// committed and cleaned. What it saw did not fit together; it must look again before it gives up for good.
func TestScenarioAReplacedProcessReadsRootsTooLate(t *testing.T) {
	scenario{instances: 1, partitions: 2, directives: []directive{
		{kind: kCommit, number: 1, nth: 4, do: killHere(false)},
		{kind: kApplyFetchOffsets, number: 2, nth: 1, do: freezeHere(70*time.Millisecond, true)},
	}, reached: func(c Counts) bool { return c.SecondReads > 0 }}.run(t)
}

// 450: a partition was meant for a member and taken away again before the member heard of it.
func TestScenarioAMemberGivesUpWhatItNeverHeardOf(t *testing.T) {
	scenario{instances: 2, partitions: 2, directives: []directive{
		{kind: kApplyRevoked, nth: 1, do: func(w *world, _ *work) bool {
			for p, m := range w.broker.group.owner {
				if m == w.broker.group.want[p] && m != nil && p < 2 {
					w.broker.group.moveOne(p)
				}
			}
			return false
		}},
	}, reached: func(c Counts) bool { return c.NeverHeard > 0 }}.run(t)
}

// 102330, 114736, 131288, 175449, 181007: a process was replaced between the delta and the root, and its successor has
// cleaned files that the root names.
func TestScenarioAReplacedProcessWritesARootOfCleanedFiles(t *testing.T) {
	var reached bool
	for nth := 3; nth <= 12; nth++ {
		scenario{instances: 1, partitions: 2, directives: []directive{
			{kind: kSyncDir, number: 1, nth: nth, do: freezeHere(90*time.Millisecond, true)},
		}, reached: func(c Counts) bool { reached = reached || c.ChainsGone > 0; return true }}.run(t)
	}
	require.True(t, reached, "no root was refused for its files")
}

// 1029743: the group said something new while a callback of its last word was still to run: one after the other.
func TestScenarioCallbacksRunInOrder(t *testing.T) {
	move := func(w *world, _ *work) bool { w.broker.group.move(); return false }
	scenario{instances: 3, partitions: 3, directives: []directive{
		{kind: kAssigned, nth: 4, before: true, do: move}, {kind: kAssigned, nth: 7, before: true, do: move},
		{kind: kApplyRevoked, nth: 2, do: move}, {kind: kApplyHeartbeat, nth: 9, do: move},
	}, reached: func(c Counts) bool { return c.Overtold > 0 && c.Takeovers > 0 }}.run(t)
}

// 1034710: a machine with two processes of one name, of which one stands still, loses power: both are gone.
func TestScenarioPowerIsLostUnderTwoProcesses(t *testing.T) {
	scenario{instances: 1, partitions: 2, directives: []directive{
		{kind: kLink, number: 1, nth: 2, do: freezeHere(60*time.Millisecond, true)},
		{kind: kSyncDir, number: 2, nth: 3, before: true, do: killHere(true)},
	}, reached: func(c Counts) bool { return c.Crashes == 2 }}.run(t)
}

// 1043769: records were sent and never answered, so that nothing is known to be in the transaction. The abort has to be
// sent all the same, or the transaction stays open.
func TestScenarioAnAbortAfterSendsWithoutAnAnswer(t *testing.T) {
	scenario{instances: 1, partitions: 1, directives: []directive{
		{kind: kTask, number: 1, nth: 2, do: func(w *world, _ *work) bool {
			w.arm(netFault{kind: netLoseReply, match: kApplyProduce, count: maxTries + 1})
			return false
		}},
	}, reached: func(c Counts) bool { return c.Attempts > 1 && c.TimedOut == 0 }}.run(t)
}

// 5182402: a process was replaced right before it cleaned up, and its successor has merged a chain into a file that no
// root names yet.
func TestScenarioAReplacedProcessCleansBesideAMergedRun(t *testing.T) {
	for nth := 2; nth <= 6; nth++ {
		scenario{instances: 1, partitions: 1, directives: []directive{
			{kind: kDelete, number: 1, nth: nth, before: true, do: freezeHere(120*time.Millisecond, true)},
		}, reached: func(c Counts) bool { return c.Merged > 1 && c.Fenced > 0 }}.run(t)
	}
}

// 10126112: a process that stood still was stopped a second time, for shorter than was left of the first.
func TestScenarioAProcessStopsWhileItStandsStill(t *testing.T) {
	for _, k := range []kind{kReply, kApplyEnd, kApplyOffsets} {
		scenario{instances: 1, partitions: 2, directives: []directive{
			{kind: k, number: 1, nth: 9, do: func(w *world, it *work) bool {
				p := it.p
				w.halt(p, 40*time.Millisecond, 0)
				w.outside(nil, 10*time.Millisecond, kFault, func() { w.halt(p, 5*time.Millisecond, 0) })
				return false
			}},
		}, reached: func(c Counts) bool { return c.Checkpoints > 1 }}.run(t)
	}
}

// A late partition starts with a checkpoint of an instance that has others, and that comes to nothing after its root is
// written. A root with the task and no committed offset would look like an offset that has expired.
func TestScenarioTheFirstCheckpointOfALatePartitionFails(t *testing.T) {
	for nth := 1; nth <= 6; nth++ {
		scenario{instances: 2, partitions: 3, directives: []directive{
			{kind: kAssigned, number: 1, nth: 1, before: true, do: func(w *world, _ *work) bool {
				w.broker.group.seen = bit(0) // the others come later
				w.outside(nil, 12*time.Millisecond, kAppend, func() { w.broker.group.discover(bit(1) | bit(2)) })
				return false
			}},
			{kind: kCommit, nth: nth, before: true, do: killHere(true)},
		}, reached: func(c Counts) bool { return c.JoinedFresh > 0 }}.run(t)
	}
}

// A member is asked to give a partition up while its attempt still prepares. The time for that ends, it gets the partition
// again, and only then the attempt comes to look at the request, which is about an ownership that is over.
func TestScenarioARevokeThatIsLookedAtTooLate(t *testing.T) {
	regained := 0
	for delay := time.Duration(1); delay <= 4; delay++ {
		scenario{instances: 2, partitions: 3, directives: []directive{
			{kind: kRestore, nth: 2, before: true, do: func(w *world, it *work) bool {
				for p, m := range w.broker.group.owner {
					if m != nil && m.id == it.p.member && it.p.attempt.onTheWay().has(p) && w.broker.group.moveOne(p) {
						w.faults.hasty++
						w.broker.group.back[p] = it.p.name
						w.wait = w.now + 120*time.Millisecond
						it.at = w.now + delay*20*time.Millisecond
						w.push(*it)
						return true
					}
				}
				return false
			}},
		}, reached: func(c Counts) bool {
			if c.OutOfBudget > 0 && c.Takeovers > 1 {
				regained++
			}
			return c.Attempts > 0
		}}.run(t)
	}
	require.NotZero(t, regained)
}

// The offsets are refused for their generation, again and again, while the partition goes to somebody else: each resend
// proves the claims anew, and the last one finds that they no longer hold.
func TestScenarioAResendProvesItsClaims(t *testing.T) {
	for _, times := range []int{2, 4, 6} {
		scenario{instances: 2, partitions: 2, directives: []directive{
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
		}, reached: func(c Counts) bool { return c.Resent >= times && c.Takeovers > 0 }}.run(t)
	}
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
	scenario{instances: 2, partitions: 4, directives: all, reached: func(c Counts) bool { return c.Resent > 3 && c.Rejoined == 0 }}.run(t)
}

// An instance dies with a transaction open and stays away. Whoever takes its partitions over ends the transaction first;
// the instance comes back at that very moment.
func TestScenarioTheGoneComesBackWhileItIsFenced(t *testing.T) {
	living := 0
	for _, at := range []kind{kApplyDescribe, kApplyListTxns, kApplyInit} {
		var dead string
		scenario{instances: 2, partitions: 2, directives: []directive{
			{kind: kCommit, nth: 4, before: true, do: func(w *world, it *work) bool {
				dead = it.p.name
				w.away = sessionTimeout + 25*time.Millisecond
				it.p.die(false, 1)
				return true
			}},
			{kind: at, nth: 9, do: func(w *world, _ *work) bool { w.supervise(dead); return false }},
		}, reached: func(c Counts) bool {
			living += c.FencedLiving
			return c.FencedGone > 0 || at != kApplyInit
		}}.run(t)
	}
	t.Log(fmt.Sprint(living, " processes that lived were fenced"))
}
