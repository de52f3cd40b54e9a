package store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/millweir/millweir/element"
)

// LocalConfig configures the local copy of the committed state of all tasks of an instance.
type LocalConfig struct {
	// Dir is the directory for the copy.
	Dir string
	// Cluster and Application are part of the copy's identity: that of another one is dropped.
	Cluster, Application string
	// MinInterval is the least time between the starts of two flushes; default 10 s.
	MinInterval time.Duration
	// DutyCycle bounds the writer's share of one core to 1/DutyCycle, a flush that is in a hurry excepted; default 10.
	DutyCycle int
	// MaxPendingBytes is the size of collected changes that starts a flush early; default 32 MiB. A task whose changes
	// come faster than they can be written, beyond twice that, loses its copy.
	MaxPendingBytes int64
	// MinFreeBytes is the free space of the file system below which the copy is given up, and not even closed, because
	// writing to memory-mapped files on a full disk ends the process; default 256 MiB, negative for no check.
	MinFreeBytes int64
	// CloseTimeout bounds the last flush; default 10 s.
	CloseTimeout time.Duration
	Logger       *slog.Logger // default slog.Default()
	// Step, when not nil, is called by the writer between any two of its writes to the database. An error of it is
	// taken for one of the database. It is there for fault injection.
	Step func() error

	// left is the number of directories that are in use, when there are several for the copies of an instance.
	left     *atomic.Int32
	memTable int64         // size at which Badger writes a table; memTableSize but in tests
	grace    time.Duration // for a write and for closing the database when the time to close is over; closeGrace but in tests
}

const defaultDutyCycle = 10

func (c *LocalConfig) setDefaults() error {
	if c.Dir == "" {
		return errors.New("local copy of the state: no directory given")
	}
	if len(c.Cluster) > maxNameLen || len(c.Application) > maxNameLen {
		return errors.New("local copy of the state: cluster or application name too long")
	}
	c.MinInterval = orDefault(c.MinInterval, 10*time.Second)
	c.DutyCycle = orDefault(c.DutyCycle, defaultDutyCycle)
	c.MaxPendingBytes = orDefault(c.MaxPendingBytes, 32<<20)
	c.memTable = orDefault(c.memTable, memTableSize)
	c.CloseTimeout = orDefault(c.CloseTimeout, 10*time.Second)
	c.grace = orDefault(c.grace, closeGrace)
	if c.MinFreeBytes == 0 {
		c.MinFreeBytes = 256 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

func orDefault[T int | int64 | time.Duration](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// LocalStats counts what the local copy did since it was opened.
type LocalStats struct {
	Disabled     bool          // an error ended it
	Failures     int64         // errors of the copy: the one that disabled it, and copies of single tasks that were given up
	Flushes      int64         // completed
	Collected    int64         // changes taken from checkpoints
	Written      int64         // changes written to disk, deletions included
	PendingBytes int64         // collected and not yet written
	DiskBytes    int64         // size of the database's files
	LastFlush    time.Duration // working time of the newest flush
}

// Local is a copy on local disk of the committed state, written behind. It is never the truth: when anything goes wrong
// with it, it says so once, loudly, and does nothing from then on; no method blocks a checkpoint on its disk. All
// methods may be called from any goroutine.
type Local struct {
	cfg LocalConfig
	log *slog.Logger
	dir string
	db  *badger.DB // used by the writer; others read under dbMu

	lock   *os.File         // keeps others off the directory; nil when this Local has let go of it
	sizes  map[string]int64 // of the writer: of the database's mapped files, when they were last looked at
	unsafe atomic.Bool      // a write has failed, and Badger would try it again for ever before it closes; or a file is cut off

	dbMu      sync.RWMutex // write-locked to close db
	abandoned atomic.Bool  // the database was not closed

	mu         sync.Mutex
	tasks      map[element.TaskID]*localTask
	nextNumber uint32
	dead       []uint32         // numbers whose data is to be dropped
	gone       []element.TaskID // tasks whose record is to be deleted
	stats      LocalStats
	why        error // what disabled it
	closing    bool
	soon       bool          // the next flush need not wait for the interval
	room       chan struct{} // closed and replaced when a flush took the pending changes
	waiters    []chan error  // Flush calls that wait for the next flush

	wake   chan struct{} // capacity 1: look at the state again
	stop   context.CancelFunc
	done   chan struct{} // closed when the writer has ended
	freeAt func(dir string) (int64, bool)
	list   func(dir string) ([]os.DirEntry, error)
}

// localTask is the copy of one task. Guarded by Local.mu.
type localTask struct {
	number  uint32
	at      LocalVersion // of the newest change collected
	durable LocalVersion // what the database holds
	clean   bool         // the database holds an applied record for durable
	stale   bool         // given up until the next Reset
	loading bool         // a Reset has not handed over everything
	reading int          // Loads that are under way: the database's part must not change
	dropped bool         // to be dropped when the last of them is over
	tally   tally        // of what the database holds, also of a Reset that is not over
	tables  []TableInfo
	pending *pendingChanges
}

// Begin says whether the task's copy stands exactly at a checkpoint, so that Apply may go on from there. If it does not,
// the copy is given up; Reset makes a new one.
func (l *Local) Begin(task element.TaskID, at LocalVersion) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tasks[task]
	if t == nil || l.stats.Disabled {
		return false
	}
	if !t.stale && !t.loading && t.at == at {
		return true
	}
	l.giveUp(t)
	return false
}

// Reset drops the task's copy and makes a new one from the whole state at a checkpoint. It iterates full on the calling
// goroutine and waits for the writer whenever the pending limit is reached, until ctx ends. Until it returns the task's
// changes must not be applied. Entries number the tables; a later entry of a key replaces an earlier one. An error that
// full yields, or the end of ctx, leaves the task without a copy.
func (l *Local) Reset(ctx context.Context, task element.TaskID, at LocalVersion, tables []TableInfo, full iter.Seq2[Entry, error]) error {
	t, err := l.startReset(task, at, tables)
	if t == nil {
		return err
	}
	n := 0
	for e, err := range full {
		if n++; err == nil && n&1023 == 0 {
			err = l.waitRoom(ctx)
		}
		l.mu.Lock()
		if err != nil {
			l.giveUp(t)
			l.mu.Unlock()
			return err
		}
		ok := l.collect(t, e.Table, e)
		l.mu.Unlock()
		if !ok {
			return nil
		}
	}
	l.mu.Lock()
	t.loading = false
	l.mu.Unlock()
	l.kick()
	return nil
}

// startReset gives the task a new, empty copy; nil when the local copy is disabled or closing.
func (l *Local) startReset(task element.TaskID, at LocalVersion, tables []TableInfo) (*localTask, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stats.Disabled || l.closing {
		return nil, nil
	}
	if len(task.Source) > maxNameLen {
		return nil, fmt.Errorf("local copy of task %s: name too long", task)
	}
	t := &localTask{number: l.nextNumber, at: at, loading: true, pending: newPending()}
	for _, info := range tables {
		if _, ok := t.table(info); !ok {
			return nil, fmt.Errorf("local copy of task %s: state %q given twice or with a name too long", task, info.Name)
		}
	}
	if old := l.tasks[task]; old != nil {
		l.abandon(task, old)
	}
	l.nextNumber++
	l.tasks[task] = t
	return t, nil
}

// Remove drops the copy of a task that leaves the instance.
func (l *Local) Remove(task element.TaskID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tasks[task]
	if t == nil || l.stats.Disabled {
		return
	}
	l.abandon(task, t)
	delete(l.tasks, task)
	l.kick()
}

// Apply collects copies of the changes that lead to a newer committed checkpoint, each key's last value; Entry.Table
// indexes tables. Nothing may lie between the version that the copy stands at and the first of the changes. It costs one
// store access per change on the calling goroutine and never waits for the disk. A task without a copy is ignored.
func (l *Local) Apply(task element.TaskID, at LocalVersion, tables []TableInfo, changes iter.Seq[Entry]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tasks[task]
	if t == nil || t.stale || l.stats.Disabled {
		return
	}
	if t.loading || at.Name.ID <= t.at.Name.ID {
		l.fault(task, t, fmt.Errorf("checkpoint %s applied while the copy is at %s", at.Name, t.at.Name))
		return
	}
	numbers := make([]int, len(tables))
	for i, info := range tables {
		n, ok := t.table(info)
		if !ok {
			l.fault(task, t, fmt.Errorf("state %q came with another codec", info.Name))
			return
		}
		numbers[i] = n
	}
	for e := range changes {
		if !l.collect(t, numbers[e.Table], e) {
			return
		}
	}
	t.at = at
	if pending := l.pendingBytes(); pending > 2*l.cfg.MaxPendingBytes {
		l.fault(task, t, fmt.Errorf("%d bytes of changes wait, the disk is too slow", pending))
	} else if pending > l.cfg.MaxPendingBytes {
		l.kick()
	}
}

// Version gives the checkpoint of the newest changes that were collected for a task, written or not, and whether the
// task has a copy.
func (l *Local) Version(task element.TaskID) (LocalVersion, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tasks[task]
	if t == nil || t.stale || t.loading || l.stats.Disabled {
		return LocalVersion{}, false
	}
	return t.at, true
}

// Stats gives the counters.
func (l *Local) Stats() LocalStats {
	l.mu.Lock()
	st := l.stats
	st.PendingBytes = l.pendingBytes()
	l.mu.Unlock()
	if !l.dbMu.TryRLock() {
		return st // it is being closed, which may take as long as the disk takes
	}
	defer l.dbMu.RUnlock()
	if l.db != nil {
		lsm, vlog := l.db.Size()
		st.DiskBytes = lsm + vlog
	}
	return st
}

// table finds or adds a table of the copy by its name. It reports false when the name is known with another codec.
func (t *localTask) table(info TableInfo) (int, bool) {
	for i, have := range t.tables {
		if have.Name == info.Name {
			return i, have.Codec == info.Codec
		}
	}
	if len(t.tables) >= maxTables-1 || len(info.Name) > maxNameLen || len(info.Codec) > maxNameLen {
		return 0, false
	}
	t.tables = append(t.tables[:len(t.tables):len(t.tables)], info)
	return len(t.tables) - 1, true
}

// collect takes one change; l.mu is held. It reports false when the task's copy had to be given up.
func (l *Local) collect(t *localTask, table int, e Entry) bool {
	if t.stale || l.stats.Disabled {
		return false
	}
	if err := t.pending.add(table, e); err != nil {
		l.fault(element.TaskID{}, t, err)
		return false
	}
	l.stats.Collected++
	return true
}

// fault gives up the copy of one task; l.mu is held.
func (l *Local) fault(task element.TaskID, t *localTask, err error) {
	l.giveUp(t)
	l.stats.Failures++
	for id, have := range l.tasks {
		if have == t {
			task = id
		}
	}
	l.log.Warn("the local copy of a task's state is given up; it will be built anew",
		"task", task.String(), "error", err)
}

// giveUp lets go of what was collected for a task; l.mu is held. The database keeps a copy that nobody will take for
// current: its record names an older checkpoint.
func (l *Local) giveUp(t *localTask) {
	t.stale, t.pending = true, newPending()
}

// abandon gives up a copy and has its record and data deleted by the next flush; l.mu is held.
func (l *Local) abandon(task element.TaskID, t *localTask) {
	l.giveUp(t)
	if t.dropped = true; t.reading == 0 {
		l.dead = append(l.dead, t.number)
	}
	l.gone = append(l.gone, task)
}

func (l *Local) pendingBytes() int64 {
	var n int64
	for _, t := range l.tasks {
		n += t.pending.bytes()
	}
	return n
}

// waitRoom waits until the pending changes are below the limit; it forces a flush for it.
func (l *Local) waitRoom(ctx context.Context) error {
	for {
		l.mu.Lock()
		if l.stats.Disabled || l.closing || l.pendingBytes() < l.cfg.MaxPendingBytes {
			l.mu.Unlock()
			return nil
		}
		room := l.room
		l.mu.Unlock()
		l.kick()
		select {
		case <-room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// kick makes the writer look at the state.
func (l *Local) kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
