package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/millweir/millweir/checkpoint"
)

// Limits of a run, and the times of the protocol in it. They keep the proportions of the product's defaults: a session
// ends before a transaction times out, a checkpoint times out before both, a request well before that.
const (
	maxSteps = 60_000
	maxTime  = 20 * time.Second

	shortInterval     = 4 * time.Millisecond
	checkpointTimeout = 40 * time.Millisecond
	transactionLimit  = 160 * time.Millisecond
	sessionTimeout    = 50 * time.Millisecond
	heartbeatEvery    = 10 * time.Millisecond
	requestTimeout    = 5 * time.Millisecond
	maxChain          = 3
	maxRetained       = 2
	slots             = 3
)

// Config says what a run is. The zero value of everything but the seed is a random run.
type Config struct {
	Seed  uint64
	Bug   Bug
	Trace bool
	// Instances is the number of instances, 0 = drawn from the seed (1 to 3); Partitions likewise (1 to 4).
	Instances, Partitions int
	// Plain: one checkpoint in flight, and no failure is tolerated. Else both are drawn from the seed. Scripts and
	// scenarios are plain.
	Plain bool
	// Straight: no exchange. Else it is drawn from the seed whether the application has one; scripts and scenarios are straight.
	Straight bool
	// AtLeastOnce: no transactions. Exchanges count barriers.
	AtLeastOnce bool
	// pieces: every offset of a commit goes in a request of its own, as those of very many partitions go in several.
	pieces bool
	// script makes the run an exhaustive one: no random lag, no random fault.
	script *script
	// directives are the faults of a scenario, in place of random ones.
	directives []directive
}

// Counts is what happened in a run.
type Counts struct {
	Faults, Crashes, Checkpoints, Attempts, Records int
	Merged, Deleted                                 int // chains, files
	Takeovers                                       int // the partitions went to another member
	Unconfirmed, Rejoined, Fenced                   int // attempts that ended so, processes that gave up as fenced
	LateCommits                                     int // unconfirmed commits that turned out to be done
	TimedOut                                        int // transactions
	Reused, Restored                                int // task states: kept in memory, read from files
	Drained                                         int // orderly stops
	// Tasks that joined beside running ones, of these while a checkpoint was in flight and without a committed offset;
	// that came to nothing; that left in order; checkpoints for them; revokes without the time for that; attempts that
	// ended because all had left.
	// Records that were held back and dropped when their task left.
	Joined, JoinedInFlight, JoinedFresh, JoinsDropped, Left, RevokeCheckpoints, OutOfBudget, StoodBy, HeldBackDropped int
	// Commits in a generation that was over, and such that were sent again; transactions ended as those of instances that
	// are gone, of these of a process that lives; files of instances that are gone.
	StaleGenerations, Resent, FencedGone, FencedLiving, DeletedOfGone int
	// Roots that were not written because files of the chain were gone; members that were told to give up what they had
	// never heard of; words of the group that came while a callback ran.
	ChainsGone, NeverHeard, Overtold int
	// Markers that were written beside no root; revokes that were looked at when the ownership was another one.
	MarkersAlone, LateRevokes int
	// Pieces are requests for offsets into a transaction that has some already.
	Pieces int
	// Attempts that began with the removal of what had failed, of these first ones of a process; checkpoints whose files were
	// removed when they were given up.
	FailedCleaned, FailedCleanedFirst, Discarded int
	// SecondReads are refusals that a second read of the offsets showed to be of a state of affairs that was over.
	SecondReads int
	// Checkpoints that were triggered while another was in flight, while two were; that were abandoned, beside an older one
	// that stayed; transactions that were reopened, or were lost by then; checkpoints that served a request for a savepoint.
	Concurrent, ThreeInFlight, Abandoned, AbandonedBeside, Reopened, BrokenBack, Savepoints int
	// Attempts with an exchange; subtasks read from others; unaligned snapshots of subtasks, of these by a timeout; parcels
	// that were in flight then; records in flight that were restored; checkpoints that a gate gave up, that a task gave up when it heard of it; attempts that ended
	// for other partitions.
	WiredAttempts, Rescaled, Unaligned, Switched, InFlight, Replayed, GateAborts, GivenUpLate, Redrawn int
	// Runs with an exchange, of these with unaligned snapshots, with a change of the parallelism, with abandoned checkpoints,
	// with several in flight.
	Exchanges, ExchangesUnaligned, ExchangesRescaled, ExchangesAbandoned, ExchangesConcurrent int
	// Tasks whose input has ended, checkpoints that the coordinator brought a subtask of which all inputs had.
	EndedTasks, TriggeredBehindEnds int
	// Cleaners that stood still within a walk, of these while others emptied a directory.
	Stalls, StallsOutlasted int
	IdleCleaned             int // by processes that stood by
	// Transactions that processes which stood by ended as their own; states that a checkpoint had as a whole in place of their
	// chains; attempts that merged chains at their start; cleanings for what was committed during another one.
	Tidied, Renewed, MergedAtStart, CleanedLate int
	Rests                                       int // directories that were looked at in the end
	// Runs whose files or offsets were damaged in the end; processes that refused to start then; starts that went back to the
	// store, and such to which nothing whole was left.
	Damages, Refused, Recovered, NoWayBack int
	// Runs that started from a savepoint in the end, of these without offsets, and without files; tasks that were
	// given what it has, and such whose first checkpoint since was committed; tasks that were found to come from there already.
	SavepointStarts, SavepointForks, SavepointResets, Imports, Imported, SavepointKnown int
	HealedAt                                                                            time.Duration
	// At least once: outputs that were repeated, keys that a checkpoint behind an exchange has counted twice, commits that a late copy
	// has set back.
	Repeated, Recounted, SetBack int
}

// Result is the outcome of a run.
type Result struct {
	Seed   uint64
	Hash   uint64
	Steps  int
	Counts Counts
	// Err is a *Violation, nil when every invariant held and everything was processed in the end.
	Err   error
	Trace []string // with Config.Trace
}

// Violation says which invariant does not hold, and where in the run that came out.
type Violation struct {
	Invariant string
	Step      int
	At        time.Duration
	What      string
}

// Error gives one line.
func (v *Violation) Error() string {
	return fmt.Sprintf("%s violated at step %d (%v): %s", v.Invariant, v.Step, v.At, v.What)
}

// Run executes the schedule of a seed. Equal configurations give equal results.
func Run(cfg Config) (res Result) {
	w := newWorld(cfg)
	defer func() {
		// An assertion of the code under test is a finding like any other; the trace must not be lost with it.
		if r := recover(); r != nil {
			w.violation("panic", "%v", r)
		}
		for _, f := range w.fibers {
			f.end()
		}
		w.classify()
		res = Result{Seed: cfg.Seed, Hash: w.hash, Steps: w.steps, Counts: w.counts, Err: w.err, Trace: w.trace}
	}()
	w.run()
	return
}

// classify counts what kind of run it was.
func (w *world) classify() {
	if w.x == nil {
		return
	}
	w.counts.Exchanges = 1
	w.counts.ExchangesUnaligned = min(1, w.counts.Unaligned)
	w.counts.ExchangesRescaled = min(1, w.counts.Rescaled)
	w.counts.ExchangesAbandoned = min(1, w.counts.Abandoned)
	w.counts.ExchangesConcurrent = min(1, w.counts.Concurrent)
}

func newWorld(cfg Config) *world {
	w := &world{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x6d696c6c77656972)), hash: cfg.Seed, grace: cleanGrace, heap: make([]work, 0, 128)}
	if w.cfg.Instances == 0 {
		w.cfg.Instances = [...]int{1, 2, 2, 2, 2, 3, 3, 3}[w.rng.IntN(8)]
	}
	if w.cfg.Partitions == 0 {
		w.cfg.Partitions = [...]int{1, 2, 2, 3, 3, 4}[w.rng.IntN(6)]
	}
	w.long = w.chance(8)
	w.fine = w.chance(30)
	w.interval = shortInterval
	if w.chance(35) { // revokes find no checkpoint in flight then
		w.interval *= 5
	}
	if s := w.cfg.script; s != nil && s.interval > 0 {
		w.interval = s.interval
	}
	w.concurrent = 1
	if !cfg.Plain && cfg.script == nil && cfg.directives == nil {
		modes := rand.New(rand.NewPCG(cfg.Seed, 0x6d6f646573)) // beside the other draws: the plain run of a seed stays what it was
		w.concurrent = [...]int{1, 1, 3}[modes.IntN(3)]
		w.tolerable = [...]int{0, 2, checkpoint.Unlimited}[modes.IntN(3)]
		if !cfg.Straight {
			w.drawExchange()
		}
		if w.concurrent > 1 {
			w.interval /= 3 // or there is rarely more than one
		}
		w.drawStall()
		if cfg.AtLeastOnce {
			w.drawPlain()
		} else if !cfg.Plain {
			w.drawLater()
			w.drawRest()
			w.drawDamage()
			w.drawSavepoints()
		}
	}
	if s := cfg.script; s != nil {
		w.concurrent, w.x, w.saves = max(1, s.concurrent), s.exchange, s.saves
		if s.decline > 0 {
			w.tolerable = 1
		}
	}
	w.disk = newDisk(w)
	w.broker = newBroker(w)
	w.check = newChecker(w)
	for i := range w.cfg.Instances {
		w.names, w.named = append(w.names, instanceName(i)), i+1
		if i > 0 && w.cfg.script != nil && w.cfg.script.handover {
			break
		}
		after := w.lag(5 * time.Millisecond)
		if i > 0 && w.stall != nil {
			after += 20 * time.Millisecond // it takes over what others have written
		}
		w.start(instanceName(i), after)
	}
	w.broker.start()
	w.planFaults()
	return w
}
