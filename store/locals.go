package store

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/millweir/millweir/element"
)

// Locals spreads the local copies of tasks over several directories, each of which has a Local. A task's copy lies in one
// directory: the tasks of a source or exchange take turns by their number. A directory that cannot be used is left out, and
// its tasks go on to the next one; so do they when its Local ends itself, but without the copy that it had. All methods may be
// called from any goroutine; they are those of Local.
type Locals struct {
	all []*Local // in the order of the directories, those that cannot be used included
}

// OpenLocals opens the local copies in the directories, one at least; cfg.Dir does not count. The bounds hold for each
// directory, but that of the writers' share of a core for all together. The error is about the configuration only: what cannot be opened is
// disabled and has said so. Copies that lie where their task does not belong, since the directories were others when they were
// written, are dropped.
func OpenLocals(cfg LocalConfig, dirs ...string) (*Locals, error) {
	if len(dirs) == 0 {
		return nil, errors.New("local copies of the state: no directory given")
	}
	ls := &Locals{}
	cfg.DutyCycle = orDefault(cfg.DutyCycle, defaultDutyCycle) * len(dirs)
	if len(dirs) > 1 {
		cfg.left = new(atomic.Int32)
		cfg.left.Store(int32(len(dirs)))
	}
	for _, dir := range dirs {
		cfg.Dir = dir
		l, err := OpenLocal(cfg)
		if err != nil {
			return nil, errors.Join(err, ls.Close())
		}
		ls.all = append(ls.all, l)
	}
	for _, l := range ls.all {
		for _, task := range l.Tasks() {
			if ls.of(task) != l {
				l.log.Info("the local copy of a task's state lies in a directory that the task has no longer; it will be built anew in its own", "task", task.String(), "dir", l.dir)
				l.Remove(task)
			}
		}
	}
	return ls, nil
}

// of gives the Local that a task belongs to, a disabled one when all are.
func (ls *Locals) of(task element.TaskID) *Local {
	n := uint32(len(ls.all))
	first := firstPlace(task)
	for i := range n {
		if l := ls.all[(first%n+i)%n]; !l.disabled() {
			return l
		}
	}
	return ls.all[first%n]
}

// firstPlace is the number, modulo that of the directories, of the one in which a task has its files.
func firstPlace(task element.TaskID) uint32 {
	first := uint32(task.Partition)
	for i := range len(task.Source) { // so that the tasks with number 0 of many sources do not meet in one directory
		first += uint32(task.Source[i])
	}
	return first
}

func (l *Local) disabled() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats.Disabled
}

// Begin is Local.Begin.
func (ls *Locals) Begin(task element.TaskID, at LocalVersion) bool {
	return ls.of(task).Begin(task, at)
}

// Reset is Local.Reset.
func (ls *Locals) Reset(ctx context.Context, task element.TaskID, at LocalVersion, tables []TableInfo, full iter.Seq2[Entry, error]) error {
	return ls.of(task).Reset(ctx, task, at, tables, full)
}

// Remove drops the copy of a task that leaves the instance, wherever it is.
func (ls *Locals) Remove(task element.TaskID) {
	for _, l := range ls.all {
		l.Remove(task)
	}
}

// Apply is Local.Apply.
func (ls *Locals) Apply(task element.TaskID, at LocalVersion, tables []TableInfo, changes iter.Seq[Entry]) {
	ls.of(task).Apply(task, at, tables, changes)
}

// Version is Local.Version.
func (ls *Locals) Version(task element.TaskID) (LocalVersion, bool) { return ls.of(task).Version(task) }

// Load is Local.Load.
func (ls *Locals) Load(ctx context.Context, task element.TaskID, accept func(at LocalVersion, tables []TableInfo) error, fn func(Entry) error) error {
	return ls.of(task).Load(ctx, task, accept, fn)
}

// Iterate is Local.Iterate.
func (ls *Locals) Iterate(task element.TaskID, fn func(table TableInfo, key, value []byte) bool) error {
	return ls.of(task).Iterate(task, fn)
}

// Tasks lists the tasks that have a copy, current or not, in no particular order.
func (ls *Locals) Tasks() []element.TaskID {
	var out []element.TaskID
	for _, l := range ls.all {
		for _, task := range l.Tasks() {
			if !slices.Contains(out, task) {
				out = append(out, task)
			}
		}
	}
	return out
}

// PendingBytes is the size of what was collected and not yet written.
func (ls *Locals) PendingBytes() (n int64) {
	for _, l := range ls.all {
		n += l.PendingBytes()
	}
	return n
}

// Soon is Local.Soon.
func (ls *Locals) Soon() {
	for _, l := range ls.all {
		l.Soon()
	}
}

// Stats gives the sums of the counters. Disabled says that all are; LastFlush is the longest.
func (ls *Locals) Stats() LocalStats {
	sum := LocalStats{Disabled: true}
	for _, l := range ls.all {
		st := l.Stats()
		sum.Disabled = sum.Disabled && st.Disabled
		sum.Failures += st.Failures
		sum.Flushes += st.Flushes
		sum.Collected += st.Collected
		sum.Written += st.Written
		sum.PendingBytes += st.PendingBytes
		sum.DiskBytes += st.DiskBytes
		sum.LastFlush = max(sum.LastFlush, st.LastFlush)
	}
	return sum
}

// Flush writes what was collected so far in the directories that are in use, and waits for it, until ctx ends. When none is,
// the error is that of Local.Flush.
func (ls *Locals) Flush(ctx context.Context) error {
	return ls.each(func(l *Local) error {
		if l.disabled() && len(ls.all) > 1 && !ls.Stats().Disabled {
			return nil
		}
		return l.Flush(ctx)
	})
}

// Close is Local.Close.
func (ls *Locals) Close() error { return ls.each((*Local).Close) }

// CloseWithin is Local.CloseWithin.
func (ls *Locals) CloseWithin(ctx context.Context) error {
	return ls.each(func(l *Local) error { return l.CloseWithin(ctx) })
}

// each calls f for all at once, and waits for all.
func (ls *Locals) each(f func(*Local) error) error {
	errs := make([]error, len(ls.all))
	var all sync.WaitGroup
	for i, l := range ls.all {
		all.Go(func() { errs[i] = f(l) })
	}
	all.Wait()
	return errors.Join(errs...)
}
