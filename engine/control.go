package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// RunState is what a runner is doing.
type RunState string

// The states of a runner.
const (
	StandingBy RunState = "standing-by" // it has no partitions, or not all that it needs
	Restoring  RunState = "restoring"   // an attempt has begun and does not process yet
	Running    RunState = "running"
	Ending     RunState = "ending"  // an attempt is over, and what it began is put away
	Waiting    RunState = "waiting" // between a failed attempt and the next one
	Ended      RunState = "ended"
)

// Status is what a runner tells of itself.
type Status struct {
	State   RunState
	Attempt int // from 1
	// Restarts counts those after failures; History has the newest attempts, at most restart.HistorySize of them, oldest first. Its
	// times count from Began.
	Restarts int
	History  []restart.Attempt
	Began    time.Time
	// Since is when State began, and Cause the error that ended the last failed attempt, nil when there is none.
	Since time.Time
	Cause error
	// Told is when the attempt that runs told what follows. Zero: nothing is known of that, also while State is Running.
	Told time.Time
	// Tasks and Checkpoints are those of the attempt that runs; Last is its newest committed checkpoint.
	Tasks       []TaskStatus
	Checkpoints checkpoint.Stats
	Last        *snapshot.RootRef
}

// TaskStatus is one task of the attempt that runs.
type TaskStatus struct {
	ID       element.TaskID
	Position element.Position // what is committed: of a source's task the next offset of the last checkpoint
	// Records, Emitted and Skipped count since the attempt began.
	Records, Emitted, Skipped int64
	// StateBytes is what its state is stored in.
	StateBytes int64
	// Uncommitted is the size in bytes of the state that has changed since the last commit, as of the last batch.
	Uncommitted int64
	Ended       bool // its input has ended
}

// life is the part of a status that outlives attempts. It is replaced as a whole.
type life struct {
	state    RunState
	attempt  int
	since    time.Time
	cause    error
	restarts int
	history  []restart.Attempt
}

// live notes what the runner does now. It is called where attempts are.
func (r *Runner) live(state RunState, attempt int, cause error) {
	r.life.Store(&life{state: state, attempt: attempt, since: time.Now(), cause: cause, restarts: r.policy.Restarts(), history: r.policy.History()})
}

// Status tells what the runner does. It may be called from any goroutine.
func (r *Runner) Status(ctx context.Context) (Status, error) {
	var s Status
	told := make(chan Status, 1)
	err := r.ask(ctx, func(a *attempt) error {
		told <- a.status()
		return nil
	})
	switch {
	case err == nil:
		s = <-told
	case errors.Is(err, errNoAttempt):
		err = nil
	}
	l := r.life.Load() // behind the question: one that has ended without an answer is not Running any more
	s.Began, s.State, s.Attempt, s.Since, s.Cause, s.Restarts, s.History = r.start, l.state, l.attempt, l.since, l.cause, l.restarts, l.history
	return s, err
}

// status is what the attempt tells. The loop calls it.
func (a *attempt) status() Status {
	s := Status{Told: time.Now(), Checkpoints: a.co.Stats(), Last: a.last}
	for _, id := range a.order {
		t := a.tasks[id]
		ts := TaskStatus{ID: id, Records: t.stats.records.Load(), Emitted: t.stats.emitted.Load(), Skipped: t.stats.skipped.Load(), StateBytes: t.committed.RunBytes(), Uncommitted: t.stats.uncommitted.Load(), Ended: t.over}
		if len(t.committed.Positions) > 0 {
			ts.Position = t.committed.Positions[0]
		}
		s.Tasks = append(s.Tasks, ts)
	}
	return s
}

var errNoAttempt = errors.New("no attempt is running")

// ask runs f in the goroutine that decides, while an attempt runs. An error of f ends the attempt. With an error of ask f may
// still run, then or later.
func (r *Runner) ask(ctx context.Context, f func(*attempt) error) error {
	a := r.running.Load()
	if a == nil {
		return errNoAttempt
	}
	done := make(chan struct{})
	select {
	case a.events <- event{kind: evAsk, ask: func() error { err := f(a); close(done); return err }}:
	case <-a.ctx.Done():
		return errNoAttempt
	case <-ctx.Done():
		return ctx.Err()
	}
	err := errNoAttempt
	select {
	case <-done:
	case <-a.ctx.Done():
	case <-ctx.Done():
		err = ctx.Err()
	}
	select {
	case <-done: // also when more has happened since
		return nil
	default:
		return err
	}
}

// request is what somebody outside waits for: a checkpoint that was triggered after it was asked for.
type request struct {
	after     element.CheckpointID // the newest one in flight when it was asked for
	savepoint string               // its name; "" = a checkpoint is enough
	dir       string
	id        string      // of who asked, which the savepoint carries; "" = none
	final     bool        // it is to be cut at a last checkpoint, and to be the end
	reply     chan answer // capacity 1
}

type answer struct {
	stats     checkpoint.CheckpointStats
	savepoint snapshot.SavepointRef
	skipped   bool
	err       error
}

// errNoSnapshots refuses what only a service with checkpoints can do. Another attempt would not do better.
func errNoSnapshots() error {
	return fault.Stopf(fault.NotRunning, "the service takes no checkpoints and no savepoints (checkpointing.interval: disabled)")
}

// Checkpoint takes a checkpoint now. It is refused with Config.NoSnapshots, as are savepoints. ok is false when nothing has changed since the last one, so that none is needed.
func (r *Runner) Checkpoint(ctx context.Context) (stats checkpoint.CheckpointStats, ok bool, err error) {
	ans, err := r.request(ctx, &request{})
	return ans.stats, !ans.skipped, err
}

// Savepoint takes a savepoint into a directory: complete, self-contained, of all tasks of this instance. The id is that of the
// request, the same for all instances that are asked for their parts; "" when there is none.
func (r *Runner) Savepoint(ctx context.Context, id, dir string) (snapshot.SavepointRef, error) {
	ans, err := r.request(ctx, &request{savepoint: fmt.Sprintf("s%d", r.requests.Add(1)), dir: dir, id: id})
	return ans.savepoint, err
}

// StopWithSavepoint takes a last checkpoint and at it a savepoint, behind the last record that is processed, and ends Run with
// it: see Halted. When the savepoint cannot be written, or the checkpoint cannot be taken, there is nothing to end with, and
// Run goes on with another attempt. wait gives the savepoint; the end comes whether or not somebody waits.
func (r *Runner) StopWithSavepoint(ctx context.Context, id, dir string) (wait func(context.Context) (snapshot.SavepointRef, error), err error) {
	q := &request{savepoint: fmt.Sprintf("s%d", r.requests.Add(1)), dir: dir, id: id, final: true}
	if err := r.place(ctx, q); err != nil {
		return nil, err
	}
	return func(ctx context.Context) (snapshot.SavepointRef, error) {
		ans, err := q.await(ctx)
		return ans.savepoint, err
	}, nil
}

// Halted reports that a savepoint of StopWithSavepoint has been written: Run ends.
func (r *Runner) Halted() bool { return r.halted.Load() }

func (r *Runner) request(ctx context.Context, q *request) (answer, error) {
	if err := r.place(ctx, q); err != nil {
		return answer{}, err
	}
	return q.await(ctx)
}

// place hands a request to the attempt that runs.
func (r *Runner) place(ctx context.Context, q *request) error {
	if r.cfg.NoSnapshots {
		return errNoSnapshots()
	}
	q.reply = make(chan answer, 1)
	err := r.ask(ctx, func(a *attempt) error { return a.take(q) })
	if errors.Is(err, errNoAttempt) {
		return fault.Restartf(fault.NotRunning, "nothing is being processed at the moment")
	}
	return err
}

func (q *request) await(ctx context.Context) (answer, error) {
	select {
	case ans := <-q.reply:
		return ans, ans.err
	case <-ctx.Done():
	}
	select {
	case ans := <-q.reply: // it came at the same moment
		return ans, ans.err
	default:
		return answer{}, ctx.Err()
	}
}

// take begins to serve a request. The loop calls it.
func (a *attempt) take(q *request) error {
	if a.co.Dead() || a.stop.Err() != nil || q.final && a.lasting {
		q.reply <- answer{err: fault.Restartf(fault.NotRunning, "the service is stopping")}
		return nil
	}
	if n := len(a.pending); n > 0 {
		if q.after = a.pending[n-1].name.ID; a.pending[n-1].last {
			q.after-- // nothing comes behind that one
		}
	}
	a.requests = append(a.requests, q)
	switch {
	case q.final:
		a.halting = true
		a.stopIn() // evDrained, and with it the final checkpoint, follows
		return nil
	case q.savepoint != "":
		return a.execute(a.co.RequestSavepoint(a.now(), q.savepoint))
	}
	return a.execute(a.co.RequestCheckpoint(a.now(), checkpoint.Manual))
}

// final asks for the last checkpoint, and for the savepoints that are to be cut there.
func (a *attempt) final() []checkpoint.Action {
	a.lasting = true
	var savepoints []string
	for _, q := range a.requests {
		if q.final {
			savepoints = append(savepoints, q.savepoint)
		}
	}
	return a.co.RequestFinal(a.now(), savepoints...)
}

// serve answers the requests that match, and forgets them.
func (a *attempt) serve(matches func(*request) bool, ans func(*request) answer) {
	kept := a.requests[:0]
	for _, q := range a.requests {
		if matches(q) {
			q.reply <- ans(q)
		} else {
			kept = append(kept, q)
		}
	}
	a.requests = kept
}

// completed answers those who waited for a checkpoint.
func (a *attempt) completed(p *pending, stats checkpoint.CheckpointStats) {
	a.serve(func(q *request) bool {
		_, has := p.savepoints[q.savepoint]
		return has || q.savepoint == "" && q.after < p.name.ID
	}, func(q *request) answer {
		s := p.savepoints[q.savepoint]
		if q.final && s.err == nil {
			a.r.halted.Store(true)
		}
		return answer{stats: stats, savepoint: s.ref, err: s.err}
	})
}

// skipped answers those who wanted a checkpoint although nothing has changed. Beside the last one the coordinator says so of every wish,
// and who waits for that one goes on waiting.
func (a *attempt) skipped() {
	a.serve(func(q *request) bool {
		return q.savepoint == "" && !slices.ContainsFunc(a.pending, func(p *pending) bool { return q.after < p.name.ID })
	}, func(*request) answer { return answer{skipped: true} })
}

// refused answers one who wanted a savepoint when too many wait.
func (a *attempt) refused(name string) {
	a.serve(func(q *request) bool { return q.savepoint == name }, func(*request) answer {
		return answer{err: fault.Restartf(fault.NotRunning, "%d requests for a savepoint wait already", checkpoint.MaxSavepoints)}
	})
}

// unserved answers all who still wait when the attempt is over.
func (a *attempt) unserved(cause error) {
	code := fault.CodeOf(cause)
	if fault.RecoveryOf(cause) == fault.Rejoin || code == fault.OK || errors.Is(cause, errStopped) || errors.Is(cause, errFinished) || leaves(cause) { // nothing has failed: who asks again is served
		code = fault.NotRunning
	}
	a.serve(func(*request) bool { return true }, func(*request) answer {
		return answer{err: fault.Restartf(code, "the attempt ended before the checkpoint was complete: %w", cause)}
	})
}

// savepointsOf gives what writes the savepoints that a checkpoint was asked for: one per directory. A savepoint that cannot be
// written is the concern of who asked for it, not of the checkpoint.
func (a *attempt) savepointsOf(p *pending) func(context.Context) map[string]savepointResult {
	if len(p.wanted) == 0 {
		return func(context.Context) map[string]savepointResult { return nil }
	}
	var wanted []*request
	for _, q := range a.requests {
		if slices.Contains(p.wanted, q.savepoint) {
			wanted = append(wanted, q)
		}
	}
	cfg, write := a.r.cfg, a.r.ports.WriteSavepoint
	head := snapshot.SavepointHead{Name: p.name, Application: cfg.Application, Instance: cfg.Instance, ClusterID: cfg.ClusterID, StoreID: a.r.ports.Checkpoints.StoreID(), CreatedUnixMilli: time.Now().UnixMilli()}
	var tasks []snapshot.SavepointTask
	for _, id := range a.order {
		ack, ok := p.acks[id]
		if !ok {
			continue
		}
		// Also one that starts, which the root leaves out: the savepoint lies in no store, and the part has to be whole.
		st := snapshot.SavepointTask{Task: id, States: ack.states, Entries: ack.frozen.Full(), Err: ack.frozen.Err}
		if t := a.tasks[id]; t.exchange {
			st.Parallelism, st.MaxParallelism = t.parallelism, a.par.most
		} else {
			st.Positions = []element.Position{ack.position}
		}
		tasks = append(tasks, st)
	}
	return func(ctx context.Context) map[string]savepointResult {
		out := map[string]savepointResult{}
		for _, group := range byDirectory(wanted) {
			head.ID, head.Requests = group[0].savepoint, nil
			for _, q := range group {
				if q.id != "" {
					head.Requests = append(head.Requests, q.id)
				}
			}
			ref, err := write(ctx, group[0].dir, head, tasks)
			for _, q := range group {
				out[q.savepoint] = savepointResult{ref, err}
			}
		}
		return out
	}
}

// byDirectory groups requests whose savepoints would be one and the same, by whatever names their directory was given.
func byDirectory(requests []*request) [][]*request {
	var out [][]*request
	for _, q := range requests {
		i := slices.IndexFunc(out, func(group []*request) bool { return snapshot.SameSavepointDir(group[0].dir, q.dir) })
		if i < 0 {
			out = append(out, nil)
			i = len(out) - 1
		}
		out[i] = append(out[i], q)
	}
	return out
}
