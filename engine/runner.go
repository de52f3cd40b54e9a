package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// errStopped ends an attempt that was asked to stop and has committed everything, errStandBy one whose last task has
// left: nothing of either is uncommitted.
var (
	errStopped = errors.New("stopped")
	errStandBy = errors.New("no partition is assigned any more")
	// errRedrawn ends an attempt with exchanges whose partitions change, errFinished one whose inputs have all ended, errGained
	// such a one when more inputs have come at its end, errUnsaved one that was to end with a savepoint which could not be written.
	errRedrawn  = errors.New("the assignment has changed")
	errFinished = errors.New("all inputs have ended")
	errGained   = errors.New("all inputs have ended, and others have come")
	errUnsaved  = errors.New("the savepoint to end with was not written")
)

// closed is a channel that nobody has to wait for.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Runner runs a plan until it is told to stop: one attempt after the other, each from the last committed checkpoint.
type Runner struct {
	plan  *topology.Plan
	cfg   Config
	ports Ports
	lis   *Listener
	start time.Time

	policy   *restart.Policy // touched where attempts are, and by the running one when it begins to process
	life     atomic.Pointer[life]
	requests atomic.Int64            // that have been made, to tell them apart
	halted   atomic.Bool             // a savepoint that was to be the end has been written
	running  atomic.Pointer[attempt] // while its loop runs; for Revoke

	// What an attempt leaves for the next one; touched between attempts and by the running attempt's loop only.
	lastID       element.CheckpointID
	kept         map[element.TaskID]*keptState
	states       states
	merged       map[element.TaskID]snapshot.RunRef // full runs for the next root, see mergeState
	unmerged     map[element.TaskID]*unmerged       // the same of chains that cannot be merged
	had          map[element.TaskID]uint64          // tasks of the last attempt and their ownership epochs: see forgetLost
	cleanedGroup time.Time                          // when CleanGroup was last called
	granted      atomic.Bool                        // the wish for a savepoint: what is committed comes from it
	claimed      bool                               // nothing is left of the claimed savepoint, or it is a person's to look at
	// losses counts the attempts that ended with a loss of ownership or because the broker asked for it, in a row and since the
	// last commit; asked are those of the second kind.
	losses, asked int
	unsure        []unsure // until the next attempt knows; see cleanFailed
	// untidy: transactions under our ids may be open that no attempt has begun since, a predecessor's or one that could not
	// be aborted.
	untidy bool
	parted bool // an attempt had some of the partitions, and needs all
	// began is where partitions without a committed offset were found to start; see startsAsBefore.
	began map[element.TopicPartition]element.Position
	// member is the ownership epoch at which the instance was last found not to be outlived.
	member uint64
}

// keptState is a task's state in memory after its attempt has ended, and the checkpoint whose commit it is sure of.
type keptState struct {
	state  State
	states []snapshot.StateInfo // all that are registered in it, also those that no checkpoint lists yet
	root   snapshot.RootRef
}

// New makes a runner. The listener may be nil.
func New(plan *topology.Plan, cfg Config, ports Ports, lis *Listener) (*Runner, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fault.Stopf(fault.BadFile, "engine configuration: %w", err)
	}
	if lis == nil {
		lis = &Listener{}
	}
	policy, err := restart.New(cfg.Restart, rand.Float64)
	if err != nil {
		return nil, fault.Stopf(fault.BadFile, "engine configuration: %w", err)
	}
	if err := cfg.suits(plan); err != nil {
		return nil, err
	}
	r := &Runner{plan: plan, cfg: cfg, ports: ports, lis: lis, start: time.Now(), policy: policy, kept: map[element.TaskID]*keptState{}, untidy: true}
	r.live(StandingBy, 0, nil)
	return r, nil
}

// Run processes until ctx ends; then it takes a last checkpoint, within the shutdown timeout, and returns nil. Any
// other return is an error that no further attempt could cure, classed and with an exit code (package fault).
func (r *Runner) Run(ctx context.Context) error {
	// The work outlives ctx: between the wish to stop and the end lies the last checkpoint.
	work, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	stopping := context.AfterFunc(ctx, func() {
		time.AfterFunc(r.cfg.ShutdownTimeout, kill)
	})
	defer stopping()

	defer r.states.closeOthers(func(State) bool { return false })
	defer func() { r.live(Ended, r.life.Load().attempt, r.life.Load().cause) }()
	var failed, lost error // the last attempt's, which has left work uncommitted: it failed, or lost partitions
	for n := 1; ; n++ {
		r.live(StandingBy, n, r.life.Load().cause)
		asg, err := r.awaitAssignment(ctx)
		if ctx.Err() != nil && fault.RecoveryOf(err) != fault.Stop { // another error may come of the stop
			if r.holds() {
				r.stoppedWaiting(failed, lost)
			}
			return nil
		}
		r.policy.Started(time.Since(r.start))
		r.live(Restoring, n, nil)
		failed, lost = nil, nil
		if err == nil {
			err = r.attempt(ctx, work, n, asg)
		}
		var unknown error
		if errors.Is(err, errFinished) {
			err, unknown = r.finish(ctx, work)
		}
		if errors.Is(err, errStopped) {
			r.policy.Ended(time.Since(r.start), nil)
			r.ended(n, nil, fault.Stop, 0)
			return unknown
		}
		if leaves(err) {
			r.policy.Left(time.Since(r.start), fault.New(fault.Rejoin, fault.OK, "%w", err), 0)
			r.ended(n, nil, fault.Rejoin, 0)
			if errors.Is(err, errRedrawn) {
				r.awaitChange(ctx)
			}
			continue
		}
		class := fault.RecoveryOf(err)
		if class == fault.Stop {
			r.policy.Ended(time.Since(r.start), err)
			r.ended(n, err, class, 0)
			return err
		}
		if ctx.Err() != nil {
			// Stopping, and the last checkpoint did not succeed: what it would have covered is processed again after
			// the next start. Nothing is lost, so this is not a failure of the process.
			r.policy.Ended(time.Since(r.start), err)
			r.ended(n, err, class, 0)
			return nil
		}
		var delay time.Duration
		if asked := errors.Is(err, fault.ErrAsked) && r.asked < mostAsked; asked || class == fault.Rejoin {
			delay = r.lossDelay()
			r.policy.Left(time.Since(r.start), err, delay)
			r.losses++
			if asked {
				r.asked++
				class, failed = fault.Rejoin, err
			} else {
				lost = err
			}
		} else {
			var verdict *restart.Verdict
			if delay, verdict = r.policy.Failed(time.Since(r.start), err); verdict != nil {
				err = verdict.Fault()
				r.ended(n, err, fault.Stop, 0)
				return err
			}
			r.losses, r.asked, failed = 0, 0, err
		}
		r.live(Waiting, n, err)
		r.ended(n, err, class, delay)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			if failed != nil || r.holds() {
				r.stoppedWaiting(failed, lost)
			}
			return nil
		}
	}
}

// holds reports that partitions are this instance's. What was not committed of others is done again by who has them now.
func (r *Runner) holds() bool { return len(r.ports.Group.Current().Partitions) > 0 }

// stoppedWaiting tells of a stop after an attempt that has left work uncommitted, since it failed or lost partitions, and before
// the next one.
func (r *Runner) stoppedWaiting(failed, lost error) {
	switch {
	case r.lis.StoppedWaiting == nil:
	case failed != nil:
		r.lis.StoppedWaiting(fmt.Errorf("the last attempt had failed: %w", failed))
	case lost != nil:
		r.lis.StoppedWaiting(fmt.Errorf("the last attempt had lost what it worked on, and partitions are assigned to the instance again: %w", lost))
	}
}

// leaves reports that an attempt has ended in order and another one follows.
func leaves(err error) bool {
	return errors.Is(err, errStandBy) || errors.Is(err, errRedrawn) || errors.Is(err, errUnsaved) || errors.Is(err, errGained) || errors.Is(err, errParted)
}

// awaitChange gives the group time to take away what it has asked for: it names it as assigned until the last checkpoint
// of it is over, and an attempt that began at once would end with a loss.
func (r *Runner) awaitChange(ctx context.Context) {
	select {
	case <-r.ports.Group.Changes():
	case <-time.After(redrawDelay):
	case <-ctx.Done():
	}
}

// redrawDelay is how long a new assignment is waited for at most.
const redrawDelay = 500 * time.Millisecond

// mostAsked bounds how often in a row, and since the last commit, the broker may ask for another try without the restart strategy
// counting it: one that never has enough is a failure.
const mostAsked = 3

// mostLossDelay bounds the delay after losses of ownership. An instance that waits holds partitions that nobody works on.
const mostLossDelay = 5 * time.Second

// lossDelay is the delay after an attempt that ended with a loss of ownership. After one the wait is for the assignment.
// Without a commit in between the next is the same one, and the group or the broker needs time to see it. The restart
// strategy is not for this: nothing has failed, and its delay would stay for an hour after a few rebalances.
func (r *Runner) lossDelay() time.Duration {
	if r.losses == 0 {
		return 0
	}
	return min(r.cfg.LossDelay<<min(r.losses-1, 20), mostLossDelay)
}

func (r *Runner) ended(n int, err error, class fault.Recovery, delay time.Duration) {
	if r.lis.AttemptEnded != nil {
		r.lis.AttemptEnded(n, err, class, delay)
	}
}

// awaitAssignment waits until the group gives this instance something. It returns without an error and without an
// assignment when ctx ends. With more members than partitions some stand by and take over when another leaves.
func (r *Runner) awaitAssignment(ctx context.Context) (Assignment, error) {
	told := false
	var v vigil
	var rest idle
	for {
		if err := r.ports.Group.Err(); err != nil {
			return Assignment{}, err
		}
		asg := r.ports.Group.Current()
		missing, err := r.missing(ctx, asg)
		if len(asg.Partitions) > 0 && (len(missing) == 0 || err != nil) {
			return asg, err
		}
		var again <-chan time.Time
		waits := r.parted && len(asg.Partitions) > 0
		if waits {
			if err := v.look(ctx, r, missing); err != nil {
				return Assignment{}, err
			}
			again = time.After(othersPoll)
		}
		if asg.Epoch > 0 && !told && !waits && r.lis.StandingBy != nil {
			told = true
			r.lis.StandingBy(len(asg.Partitions))
		}
		if asg.Member && asg.Epoch != r.member {
			switch err := r.outlived(ctx); {
			case err == nil:
				r.member = asg.Epoch
			case fault.RecoveryOf(err) == fault.Stop:
				return Assignment{}, err
			default:
				again = time.After(time.Second)
			}
		}
		if asg.Member && r.untidy {
			later := r.tidy(ctx)
			if later == nil {
				continue
			}
			again = later
		}
		var house <-chan time.Time
		if asg.Member && len(asg.Partitions) == 0 {
			house = rest.due(r.cfg.CleanGroupInterval)
		}
		select {
		case <-r.ports.Group.Changes():
		case <-again:
		case <-house:
			rest.round(ctx, r)
		case <-ctx.Done():
			return Assignment{}, nil
		}
	}
}

// missing gives what an assignment lacks to begin with. Where tasks exchange records one instance has all partitions, and a
// recovery from the store goes back with all of them.
func (r *Runner) missing(ctx context.Context, asg Assignment) ([]element.TopicPartition, error) {
	if !r.plan.HasExchange() && !r.parted || len(asg.Partitions) == 0 {
		return nil, nil
	}
	topics, err := r.inputs(ctx)
	return missing(asg.Since, topics), err
}

// inputs gives what the cluster knows now of the topics that the sources read.
func (r *Runner) inputs(ctx context.Context) (map[string]Topic, error) {
	names := make([]string, len(r.plan.Sources))
	for i, s := range r.plan.Sources {
		names[i] = s.Topic
	}
	return r.ports.Offsets.Topics(ctx, names)
}

// outlived asks whether the application has ended while this instance slept. One that did not sleep so long that the group
// forgot it has heard of it.
func (r *Runner) outlived(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, abortTimeout)
	defer cancel()
	return r.ports.Offsets.Outlived(bounded)
}

// tidy ends the transactions that are open under our ids while this instance stands by. No attempt of ours will, and the
// instance that has the partitions now must not, since this one lives: its stable read would wait for their timeout, and
// so would every reader of the output. It must be a member again, or it might be the older one of two processes. After an
// error the channel says when to try again.
func (r *Runner) tidy(ctx context.Context) <-chan time.Time {
	bounded, cancel := context.WithTimeout(ctx, abortTimeout)
	defer cancel()
	if r.ports.Committer.Init(bounded) != nil {
		return time.After(time.Second)
	}
	r.untidy = false
	return nil
}

// attempt runs once from restore to failure or stop, and leaves nothing running. The end of stop is the wish to stop, that
// of work the end of the patience with it.
func (r *Runner) attempt(stop, work context.Context, n int, asg Assignment) error {
	ctx, cancel := context.WithCancelCause(work)
	a := &attempt{r: r, par: parallelismOf(r.plan, r.cfg), flow: &flow{}, wholes: &wholes{always: r.cfg.FullSnapshots, sync: r.cfg.SyncSnapshots}, number: n, asg: asg, ctx: ctx, cancel: cancel, stop: stop, began: time.Now(), events: make(chan event, 64), released: &step{over: closed}, resuming: &step{over: closed}, discarded: closed, merge: mergeState{full: r.merged, bad: r.unmerged},
		kept: r.kept, lastID: r.lastID, joined: make(chan *intake, 1), left: map[element.TopicPartition]uint64{}, feed: newFeeder(nil)}
	if r.plan.HasExchange() {
		a.brake = &brake{}
	}
	err := a.run()
	if work.Err() != nil && !errors.Is(err, errStopped) {
		err = fmt.Errorf("the graceful stop took longer than the shutdown timeout of %s: %w", r.cfg.ShutdownTimeout, err)
	}
	r.untidy = !leaves(err)
	a.tearDown()
	a.unserved(err)
	return err
}
