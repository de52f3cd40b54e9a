package processor

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
	"github.com/millweir/millweir/topology"
)

// localPace bounds what the local copy costs. The zero value of each field means its default.
type localPace struct {
	every time.Duration // between two looks at the files; default 3 s
	gap   time.Duration // the same when runs are about to go; default 200 ms
	flush time.Duration // between two writes of the database; default 10 s
	retry time.Duration // before a copy is built anew a second time, doubled up to retryMost; default 10 s
	high  int64         // bytes that wait to be written above which nothing is read; default 16 MiB
	close time.Duration // for the last reads and the last write; default 5 s
	leave time.Duration // beyond that for one read from a disk; default 2 s
	spare time.Duration // before copies go whose tasks another instance has taken while this one was down; default 1 h
}

const (
	// localDuty bounds the share of a core that reading takes to 1/localDuty. The writer has such a bound of its own.
	localDuty      = 10
	localRetryMost = 10 * time.Minute
)

func (p localPace) withDefaults() localPace {
	orDefault(&p.every, 3*time.Second)
	orDefault(&p.gap, 200*time.Millisecond)
	orDefault(&p.flush, 10*time.Second)
	orDefault(&p.retry, 10*time.Second)
	orDefault(&p.high, 16<<20)
	orDefault(&p.close, 5*time.Second)
	orDefault(&p.leave, 2*time.Second)
	orDefault(&p.spare, time.Hour)
	return p
}

// keeper keeps the local copy behind the commits. It reads the runs that committed checkpoints consist of, never the
// memory of a task, and gives them to the database. Nothing that goes wrong with it concerns the service.
//
// Its goroutine is started by startKeeper and ended by close.
type keeper struct {
	local *store.Locals
	repo  *snapshot.Repository
	own   element.Incarnation // of the roots that this process writes
	log   *slog.Logger
	pace  localPace

	mu    sync.Mutex
	lanes map[element.TaskID]*lane
	stays uint64 // lanes made so far
	off   bool   // the copy is disabled: nothing is taken any more

	wake    chan struct{} // capacity 1: look at the lanes again
	ctx     context.Context
	stop    context.CancelFunc
	closing chan struct{} // closed: no pauses any more
	done    chan struct{}

	reader reader // of the goroutine alone
}

var _ engine.LocalCopy = (*keeper)(nil)

// openLocal opens the local copy, which only recovery reads, for the badger backend. The service goes on without it when
// that fails.
func (s *service) openLocal(context.Context) error {
	if s.cfg.Backend != Badger || s.cfg.NoLocalRecovery || s.cfg.DisabledCheckpoints || len(s.plan.States) == 0 {
		return nil
	}
	pace := s.cfg.local.withDefaults()
	dirs := make([]string, len(s.cfg.LocalDirs))
	for i, d := range s.cfg.LocalDirs {
		dirs[i] = filepath.Join(d, s.plan.Application)
	}
	local, err := store.OpenLocals(store.LocalConfig{
		Cluster: s.cluster.ID, Application: s.plan.Application, MinInterval: pace.flush, Logger: s.log,
	}, dirs...)
	if err != nil {
		s.log.Warn("no local copy of the state: the service goes on without it", "error", err)
		return nil
	}
	if local.Stats().Disabled {
		return nil // it has said so
	}
	for _, task := range local.Tasks() {
		if !keepsState(s.plan, task) {
			local.Remove(task)
		}
	}
	k := startKeeper(local, s.repo, s.incarnation, s.log, pace)
	s.local = k
	s.onClose(func() error {
		k.close(s.closeBudget(pace.close))
		return nil
	})
	return nil
}

// keepsState reports whether a task can have state: of a source, or behind an exchange.
func keepsState(plan *topology.Plan, task element.TaskID) bool {
	return slices.ContainsFunc(plan.Stages, func(s topology.StagePlan) bool { return s.Name == task.Source && s.Stateful })
}

// closeBudget is the time that closing may take: not beyond the shutdown timeout of a stop.
func (s *service) closeBudget(most time.Duration) time.Duration {
	if since := s.stopped.Load(); since != nil {
		return min(most, s.cfg.ShutdownTimeout-time.Since(*since))
	}
	return most
}

func startKeeper(local *store.Locals, repo *snapshot.Repository, own element.Incarnation, log *slog.Logger, pace localPace) *keeper {
	ctx, stop := context.WithCancel(context.Background())
	k := &keeper{
		local: local, repo: repo, own: own, log: log, pace: pace, lanes: map[element.TaskID]*lane{},
		wake: make(chan struct{}, 1), ctx: ctx, stop: stop, closing: make(chan struct{}), done: make(chan struct{}),
	}
	k.reader.last = time.Now()
	k.reader.spareUntil = k.reader.last.Add(pace.spare)
	go k.run()
	return k
}

// Committed notes the newest root and what it says of its tasks. It does not wait for anything.
func (k *keeper) Committed(root snapshot.RootRef, tasks []snapshot.TaskEntry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.off {
		return
	}
	for _, entry := range tasks {
		l := k.lanes[entry.Task]
		if l == nil {
			k.stays++
			l = &lane{stay: k.stays}
			k.lanes[entry.Task] = l
		}
		l.follow(root, entry, root.Name.Incarnation == k.own)
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// close lets the copy come up to the newest root and be written, within a time; none: it is left as it is.
func (k *keeper) close(within time.Duration) {
	end := time.Now().Add(within)
	close(k.closing)
	// Reading gets half of the time, because what is read and not written is of no use.
	timer := time.AfterFunc(max(0, within/2), k.stop)
	if within <= 0 {
		k.stop()
	}
	left := time.NewTimer(max(0, within) + k.pace.leave)
	defer left.Stop()
	select {
	case <-k.done:
	case <-left.C: // it waits for a disk that does not answer, and ends with the process
	}
	timer.Stop()
	k.stop()
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	if err := k.local.CloseWithin(ctx); err != nil && !errors.Is(err, store.ErrAbandoned) {
		k.log.Warn("the local copy of the state was not written to its end and may be built anew at the next start", "error", err)
	}
}

// run is the keeper's goroutine.
func (k *keeper) run() {
	defer close(k.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-k.closing:
			k.pass()
			return
		case <-k.wake:
		case <-timer.C:
		}
		if wait := time.Until(k.due()); wait > 0 {
			timer.Reset(wait)
			continue
		}
		k.pass()
		timer.Reset(time.Until(k.due()))
	}
}

// due is the time of the next pass. Called by the keeper's goroutine.
func (k *keeper) due() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := time.Now().Add(time.Hour)
	sooner := func(t time.Time) {
		if t.Before(at) {
			at = t
		}
	}
	if k.off {
		return at
	}
	if !k.reader.spareUntil.IsZero() {
		sooner(k.reader.spareUntil)
	}
	for _, l := range k.lanes {
		switch {
		case l.hurry():
			sooner(k.reader.last.Add(k.pace.gap))
		case l.lost && l.retry.After(k.reader.last.Add(k.pace.every)):
			sooner(l.retry)
		case !l.known, l.lost, l.behind():
			sooner(k.reader.last.Add(k.pace.every))
		}
	}
	if at.Before(k.reader.notBefore) {
		return k.reader.notBefore
	}
	return at
}
