package processor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/rules"
	"github.com/millweir/millweir/snapshot"
)

const (
	// statusTimeout bounds the question what the engine does; without an answer its state is known all the same.
	statusTimeout = 2 * time.Second
	// runningPoll is the pause between two looks whether an attempt runs.
	runningPoll = 50 * time.Millisecond
)

// operations is what a running service lets others see and do from outside: by its admin listener and its control topic.
type operations struct {
	s       *service
	metrics *metrics
	control *control // between openControl and the end

	doing atomic.Pointer[string] // what the start does at the moment
	over  chan struct{}          // closed when the engine has ended
	end   error                  // why, after over: nil after a stop in order

	stop context.Context // its end is the wish to stop
	quit func()          // ends the run as a signal would

	mu         sync.Mutex
	cancelled  bool
	deleting   bool   // cancelled, and the state is to go
	member     string // that this was in the group at the time of such a cancel
	mark       string // see lastLook
	kept       error  // why such a cancel has not deleted the state
	processing bool   // the attempt has come so far
	incomplete error  // why the last checkpoint of a stop is missing
}

// newOperations makes them; quit ends stop.
func newOperations(stop context.Context, s *service, quit func()) *operations {
	o := &operations{s: s, stop: stop, quit: quit, over: make(chan struct{})}
	o.metrics = newMetrics(s)
	o.starting("starting")
	return o
}

// starting notes what the start does.
func (o *operations) starting(what string) { o.doing.Store(&what) }

// listener adds what the operations want to know to the user's own listener.
func (o *operations) listener(user engine.Listener) engine.Listener {
	lis := o.metrics.listener(user)
	started, ended := lis.AttemptStarted, lis.AttemptEnded
	lis.AttemptStarted = func(i engine.AttemptInfo) {
		o.mu.Lock()
		o.processing = true
		o.mu.Unlock()
		call(started, i)
	}
	lis.AttemptEnded = func(n int, err error, rec fault.Recovery, delay time.Duration) {
		o.mu.Lock()
		switch {
		case o.stop.Err() == nil:
		case err != nil:
			o.incomplete = err
		case rec == fault.Stop && !o.processing && o.cancelled: // after a signal nothing is undone
			o.incomplete = errors.New("it was still restoring its state")
		}
		o.processing = false
		o.mu.Unlock()
		ended(n, err, rec, delay)
	}
	waiting := lis.StoppedWaiting
	lis.StoppedWaiting = func(cause error) {
		o.lacks(cause)
		call(waiting, cause)
	}
	return lis
}

// oneLine is a message without line breaks; joined errors come behind each other.
func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }

// ended notes the end of the engine, and answers those who asked for it.
func (o *operations) ended(err error) {
	o.mu.Lock()
	o.end = err
	if err == nil && o.incomplete != nil {
		kept := ""
		if o.deleting {
			kept = ", and deletes no checkpoints"
		}
		o.end = fault.Stopf(fault.Unfinished, "stopped without a last checkpoint%s: %w", kept, o.incomplete)
	}
	o.mu.Unlock()
	close(o.over)
}

// openAdmin starts the listener, before anything that may take long: who asks is told what is waited for.
func (s *service) openAdmin(context.Context) error {
	s.ops.starting(fmt.Sprintf("connecting to the brokers %v", s.cfg.Brokers))
	if s.cfg.AdminListen == rules.Off {
		return nil
	}
	srv, err := admin.Start(admin.Config{Listen: s.cfg.AdminListen, Token: s.cfg.AdminToken, AddressFile: filepath.Join(s.cfg.DataDir, admin.AddressFile), Logger: s.log}, s.ops)
	if err != nil {
		return err
	}
	s.onClose(srv.Close)
	return nil
}

var _ admin.Service = (*operations)(nil)

// Who gives the application and the instance.
func (o *operations) Who() (application, instance string) { return o.s.application, o.s.instance }

// Live gives the error with which the engine has ended.
func (o *operations) Live() error {
	select {
	case <-o.over:
	default:
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.end == nil {
		return errors.New("stopped in order")
	}
	return o.end
}

// Ready says what the instance does. Ready are one that processes, and one that stands by as a member of the group.
func (o *operations) Ready(ctx context.Context) (string, bool) {
	if err := o.Live(); err != nil {
		return "ended: " + err.Error(), false
	}
	if o.s.stopped.Load() != nil {
		return "stopping", false
	}
	r := o.s.runner.Load()
	if r == nil {
		return *o.doing.Load(), false
	}
	st := o.status(ctx, r)
	since := time.Since(st.Since).Round(time.Second)
	switch st.State {
	case engine.Running:
		return fmt.Sprintf("processing, attempt %d for %s", st.Attempt, since), true
	case engine.Restoring:
		return fmt.Sprintf("restoring the state, attempt %d for %s", st.Attempt, since), false
	case engine.Ending:
		return fmt.Sprintf("putting away what attempt %d began, for %s", st.Attempt, since), false
	case engine.Waiting:
		return fmt.Sprintf("attempt %d failed, another one follows: %v", st.Attempt, st.Cause), false
	case engine.StandingBy:
		return o.readyToStandBy(st)
	}
	return "ended", false
}

// status asks the engine, not for long.
func (o *operations) status(ctx context.Context, r *engine.Runner) engine.Status {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	st, err := r.Status(ctx)
	if err != nil {
		o.s.log.Debug("the engine did not say what it does", "error", err)
	}
	return st
}

// Metrics gives the handler of the metrics.
func (o *operations) Metrics() http.Handler { return o.metrics.handler() }

// Checkpoints gives what is known of checkpoints.
func (o *operations) Checkpoints(ctx context.Context) (admin.Report, error) {
	rep := admin.Report{Application: o.s.application, Instance: o.s.instance, State: *o.doing.Load(), Totals: o.metrics.totals(), InFlight: []admin.Checkpoint{}, Recent: []admin.Checkpoint{}}
	r := o.s.runner.Load()
	if r == nil {
		return rep, nil
	}
	st := o.status(ctx, r)
	rep.State, rep.Since, rep.Attempt, rep.Restarts = string(st.State), st.Since, st.Attempt, st.Restarts
	if st.Cause != nil {
		rep.Cause = st.Cause.Error()
	}
	if o.s.cfg.DisabledCheckpoints {
		return rep, nil // the engine's are commits of offsets only
	}
	if st.Last != nil {
		rep.Committed, rep.Root = st.Last.Name.String(), st.Last.Path
	}
	for _, c := range st.Checkpoints.InFlight {
		rep.InFlight = append(rep.InFlight, admin.CheckpointOf(c, true))
	}
	for _, c := range st.Checkpoints.Recent {
		rep.Recent = append(rep.Recent, admin.CheckpointOf(c, false))
	}
	return rep, nil
}

// running waits until an attempt runs. st.State is StandingBy for a member that has nothing to do.
func (o *operations) running(ctx context.Context) (*engine.Runner, engine.Status, error) {
	for {
		select {
		case <-o.over:
			return nil, engine.Status{}, fault.Stopf(fault.NotRunning, "the instance has ended")
		default:
		}
		if o.s.stopped.Load() != nil {
			return nil, engine.Status{}, fault.Stopf(fault.NotRunning, "the instance is stopping")
		}
		what := *o.doing.Load()
		if r := o.s.runner.Load(); r != nil {
			st := o.status(ctx, r)
			if st.State == engine.Running {
				return r, st, nil
			}
			text, ready := o.Ready(ctx)
			if ready && st.State == engine.StandingBy {
				return r, st, nil
			}
			what = text
		}
		if sleep(ctx, runningPoll) != nil {
			return nil, engine.Status{}, fault.Stopf(fault.NotRunning, "nothing is being processed: %s", what)
		}
	}
}

// part begins the answer of this instance.
func (o *operations) part(st engine.Status) admin.Part {
	p := admin.Part{Instance: o.s.instance, Partitions: []string{}, StandingBy: st.State == engine.StandingBy, OffsetsOnly: o.s.cfg.DisabledCheckpoints}
	for _, t := range st.Tasks {
		if t.Position.Topic != "" {
			p.Partitions = append(p.Partitions, t.Position.TopicPartition.String())
		}
	}
	slices.Sort(p.Partitions)
	return p
}

func (o *operations) nameOf(s checkpoint.CheckpointStats) string {
	return element.CheckpointName{ID: s.ID, Incarnation: o.s.incarnation}.String()
}

// snapshots refuses, at once and in any state, what a service without checkpoints cannot do.
func (o *operations) snapshots() error {
	if o.s.cfg.DisabledCheckpoints {
		return fault.Stopf(fault.NotRunning, "the service takes no checkpoints and no savepoints (checkpointing.interval: disabled)")
	}
	return nil
}

// TriggerCheckpoint takes a checkpoint now.
func (o *operations) TriggerCheckpoint(ctx context.Context) (admin.Triggered, error) {
	if err := o.snapshots(); err != nil {
		return admin.Triggered{}, err
	}
	r, st, err := o.running(ctx)
	if err != nil {
		return admin.Triggered{}, err
	}
	out := admin.Triggered{Part: o.part(st)}
	if out.StandingBy {
		return out, nil
	}
	stats, needed, err := r.Checkpoint(ctx)
	if err != nil || !needed {
		return out, err
	}
	c := admin.CheckpointOf(stats, false)
	out.Needed, out.Checkpoint, out.Stats = true, o.nameOf(stats), &c
	return out, nil
}

// savepointDir gives the place for a savepoint, and an error when it is none.
func (o *operations) savepointDir(dir string) (string, error) {
	if dir == "" {
		dir = o.s.cfg.SavepointsDir
	}
	if dir == "" {
		return "", fault.Stopf(fault.BadFile, "the running instance has no directory for savepoints: name one in the command, or start it with state.savepoints.dir")
	}
	if text := rules.Dir(dir); text != "" {
		return "", fault.Stopf(fault.Usage, "savepoint directory %q %s", dir, text)
	}
	return rules.DirOf(dir), snapshot.CheckSavepointDir(rules.DirOf(dir))
}

// Savepoints lists the savepoint directory.
func (o *operations) Savepoints(ctx context.Context) ([]admin.SavepointInfo, error) {
	if o.s.cfg.SavepointsDir == "" {
		return nil, fault.Stopf(fault.BadFile, "state.savepoints.dir is not set")
	}
	list, err := snapshot.ListSavepoints(ctx, o.s.cfg.SavepointsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the first savepoint makes it
		return nil, err
	}
	out := []admin.SavepointInfo{}
	for _, s := range list {
		out = append(out, SavepointInfoOf(s))
	}
	return out, nil
}

// SavepointInfoOf gives a savepoint on disk as listings show it.
func SavepointInfoOf(s snapshot.SavepointInfo) admin.SavepointInfo {
	info := admin.SavepointInfo{Path: s.Ref.Path, Application: s.Application, Checkpoint: s.Name.String(), Bytes: s.Bytes, Requests: s.Requests, Positions: []admin.Position{}}
	if s.Err != nil {
		info.Damage, info.Unreadable = s.Err.Error(), errors.As(s.Err, new(*snapshot.UnreadableError))
	}
	if r := s.Root; r != nil {
		created := time.UnixMilli(r.CreatedUnixMilli).UTC()
		info.Created, info.Instance, info.Tasks = &created, r.Instance, len(r.Tasks)
		for i := range r.Tasks {
			for _, p := range r.Tasks[i].Positions {
				info.Positions = append(info.Positions, admin.Position{Topic: p.Topic, Partition: p.Partition, Offset: p.Offset})
			}
		}
	}
	return info
}

// TriggerSavepoint takes a savepoint of this instance's tasks. One without tasks has none to take, which who asks all instances
// need not know, and who asks this one does.
func (o *operations) TriggerSavepoint(ctx context.Context, dir string) (admin.Part, error) {
	request, err := newRequest()
	if err != nil {
		return admin.Part{}, err
	}
	out, err := o.savepoint(ctx, request, dir)
	if err == nil && out.StandingBy {
		err = fault.Stopf(fault.NotRunning, "no savepoint: the instance stands by, without partitions; those that have some are to be asked, or all together")
	}
	return out, err
}

// savepoint takes this instance's part of the savepoint that a request asks for.
func (o *operations) savepoint(ctx context.Context, request, dir string) (admin.Part, error) {
	if err := o.snapshots(); err != nil {
		return admin.Part{}, err
	}
	dir, err := o.savepointDir(dir)
	if err != nil {
		return admin.Part{}, err
	}
	r, st, err := o.running(ctx)
	if err != nil {
		return admin.Part{}, err
	}
	out := o.part(st)
	if out.StandingBy {
		return out, nil
	}
	ref, err := r.Savepoint(ctx, request, dir)
	if err != nil {
		return out, err
	}
	return o.withSavepoint(ctx, out, ref)
}

// withSavepoint says of a part what the savepoint itself says, whatever has moved since it was asked for.
func (o *operations) withSavepoint(ctx context.Context, p admin.Part, ref snapshot.SavepointRef) (admin.Part, error) {
	sp, err := snapshot.OpenSavepoint(ctx, ref.Path)
	if err != nil {
		return p, fmt.Errorf("the savepoint that was written: %w", err)
	}
	p.Path, p.Digest, p.Checkpoint, p.Partitions, p.Requests = ref.Path, ref.Digest.String(), sp.Root.Name.String(), []string{}, sp.Requests
	for i := range sp.Root.Tasks {
		for _, pos := range sp.Root.Tasks[i].Positions {
			p.Partitions = append(p.Partitions, pos.TopicPartition.String())
		}
	}
	slices.Sort(p.Partitions)
	return p, sp.Close()
}

// Cancel stops the instance. A savepoint is cut at the last checkpoint, so that nothing is committed behind it; without it the
// instance goes on.
func (o *operations) Cancel(ctx context.Context, c admin.Cancel) (admin.Part, error) {
	request, err := newRequest()
	if err != nil {
		return admin.Part{}, err
	}
	out, err := o.cancelFor(ctx, request, c)
	if err == nil {
		out.Kept, err = o.whyKept()
	}
	return out, err
}

// errStopping says that an instance was told to end, and has not yet.
var errStopping = errors.New("the instance is stopping")

// cancelFor is Cancel; a savepoint that is asked for carries the request's id.
func (o *operations) cancelFor(ctx context.Context, request string, c admin.Cancel) (admin.Part, error) {
	out := o.part(engine.Status{})
	if err := c.Check(); err != nil {
		return out, err
	}
	var wait func(context.Context) (snapshot.SavepointRef, error)
	if c.Savepoint {
		if err := o.snapshots(); err != nil {
			return out, err // before anything stops: who wants a savepoint does not want to end without one
		}
		dir, err := o.savepointDir(c.Dir)
		if err != nil {
			return out, err
		}
		r, st, err := o.running(ctx)
		if err != nil {
			return out, err
		}
		if out = o.part(st); !out.StandingBy {
			if wait, err = r.StopWithSavepoint(ctx, request, dir); err != nil {
				return out, err
			}
		}
	} else if r := o.s.runner.Load(); r != nil {
		out = o.part(o.status(ctx, r))
	}
	if !c.Savepoint && !o.s.cfg.DisabledCheckpoints {
		out.Retention = string(o.s.cfg.Retention)
	}
	var failed error
	if wait != nil {
		o.s.log.Info("taking a last checkpoint and a savepoint, to stop with them", "dir", c.Dir)
		ref, err := wait(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return out, fmt.Errorf("there is no savepoint yet, and the instance stops when there is one: %w", err)
		case err != nil:
			o.s.log.Warn("the service goes on: there is no savepoint to stop with", "error", err)
			return out, fmt.Errorf("there is no savepoint, and the instance goes on: %w", err)
		}
		if out, err = o.withSavepoint(ctx, out, ref); err != nil {
			failed = fmt.Errorf("the instance stops: %w", err)
		}
	}
	o.s.cancel(ctx, !c.Savepoint && o.s.cfg.Retention == DeleteOnCancellation)
	select {
	case <-o.over:
	case <-ctx.Done():
		return out, errors.Join(failed, fmt.Errorf("%w: %w", errStopping, ctx.Err()))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return out, errors.Join(o.end, failed)
}

// writeSavepoint writes a savepoint for the engine.
func (s *service) writeSavepoint(ctx context.Context, dir string, head snapshot.SavepointHead, tasks []snapshot.SavepointTask) (snapshot.SavepointRef, error) {
	return snapshot.WriteSavepoint(ctx, snapshot.SavepointConfig{Dir: dir, WriteBufferSize: int(max(s.cfg.WriteBufferSize, s.cfg.MemoryThreshold))}, head, tasks)
}

// openSavepoint opens the savepoint that a checkpoint names.
func (s *service) openSavepoint(ctx context.Context, ref snapshot.SavepointRef) (engine.Savepoint, error) {
	sp, err := snapshot.OpenTwin(ctx, ref)
	if err != nil {
		return nil, err
	}
	return savepoint{sp}, nil
}

// savepoint is one as the engine sees it.
type savepoint struct{ *snapshot.Savepoint }

// Contents says what the savepoint holds.
func (s savepoint) Contents() *snapshot.Root { return s.Root }
