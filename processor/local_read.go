package processor

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
)

var (
	errGivenUp  = errors.New("the database could not take the changes")
	errClosing  = errors.New("closing")
	errIterDone = errors.New("no more entries wanted")
)

// reader is what the keeper's goroutine knows of its own work.
type reader struct {
	last      time.Time     // begin of the newest pass
	notBefore time.Time     // the next pass
	slept     time.Duration // in this pass

	spareUntil time.Time // when copies go that no task here has asked for; zero: they are gone

	chunk   time.Time // since when it has worked without a pause
	entries int
	bytes   int

	following bool // a pass over the changes is under way
	building  *building
}

// building is a copy that is being built anew. What is committed meanwhile is collected beside it.
type building struct {
	task    element.TaskID
	stay    uint64
	changes *store.Changes
	at      store.LocalVersion // with the changes
	spoilt  bool               // the changes are not whole
	large   bool
}

// pass brings all copies up to their newest roots, those first that only need what has changed.
func (k *keeper) pass() {
	k.begin()
	defer k.end()
	k.meet()
	k.dropUnused()
	k.follow()
	for _, task := range k.tasks(func(l *lane) bool { return l.lost && k.mayRebuild(l) }) {
		if k.ctx.Err() != nil || k.disabled() {
			return
		}
		k.rebuild(task)
	}
}

// meet asks the database where the copies of tasks stand that are new here.
func (k *keeper) meet() {
	for _, task := range k.tasks(func(l *lane) bool { return !l.known }) {
		stay := k.look(task).stay
		at, ok := k.local.Version(task)
		k.update(task, stay, func(l *lane) { l.start(at, ok) })
	}
}

// dropUnused drops copies that were on disk when the process started and whose tasks have not come.
func (k *keeper) dropUnused() {
	if r := &k.reader; r.spareUntil.IsZero() || time.Now().Before(r.spareUntil) {
		return
	}
	k.reader.spareUntil = time.Time{}
	for _, task := range k.local.Tasks() {
		k.mu.Lock()
		unused := k.lanes[task] == nil
		if unused {
			k.local.Remove(task)
		}
		k.mu.Unlock()
		if unused {
			k.log.Info("the local copy of a task's state is set aside: the task is not on this instance", "task", task.String())
		}
	}
}

// follow brings the copies forward that are on their chain.
func (k *keeper) follow() {
	k.reader.following = true
	defer func() { k.reader.following = false }()
	for _, task := range k.tasks((*lane).behind) {
		if k.ctx.Err() != nil {
			return
		}
		l := k.look(task)
		if err := k.advance(task, l); err != nil {
			k.lose(task, l.stay, err)
		} else {
			k.update(task, l.stay, k.pastMerge)
		}
	}
}

// pastMerge has a copy written soon that has come to the end of a merged run: what is on disk lies inside of it.
func (k *keeper) pastMerge(l *lane) {
	if l.merged && !l.behind() {
		l.merged = false
		k.local.Soon()
	}
}

// mayRebuild says whether it is time to build a copy anew. While closing, only what is done quickly is begun.
func (k *keeper) mayRebuild(l *lane) bool {
	if k.isClosing() {
		return l.size() <= k.pace.high
	}
	return !l.retry.After(time.Now())
}

func (k *keeper) isClosing() bool {
	select {
	case <-k.closing:
		return true
	default:
		return false
	}
}

// disabled notices that the database has ended itself.
func (k *keeper) disabled() bool {
	if !k.local.Stats().Disabled {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.off = true
	clear(k.lanes)
	return true
}

// tasks lists the tasks whose lanes fulfil a condition, in order.
func (k *keeper) tasks(which func(*lane) bool) []element.TaskID {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []element.TaskID
	for id, l := range k.lanes {
		if which(l) {
			out = append(out, id)
		}
	}
	slices.SortFunc(out, element.TaskID.Compare)
	return out
}

// look gives a copy of a task's lane; the zero lane when the task has left.
func (k *keeper) look(task element.TaskID) lane {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.lanes[task]; l != nil {
		return *l
	}
	return lane{}
}

// update changes a task's lane, unless it is not that of the stay any more: the task has left and perhaps come back.
func (k *keeper) update(task element.TaskID, stay uint64, f func(*lane)) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.lanes[task]
	if l == nil || l.stay != stay {
		return false
	}
	f(l)
	return true
}

// lose gives up a copy that cannot be brought forward; a later pass builds it anew.
func (k *keeper) lose(task element.TaskID, stay uint64, err error) {
	switch {
	case !k.update(task, stay, (*lane).lose): // it has left
	case k.ctx.Err() != nil || errors.Is(err, errClosing) || errors.Is(err, errGivenUp): // the database has said why
	case errors.Is(err, fs.ErrNotExist):
		k.log.Debug("the local copy of a task's state fell behind the checkpoints that are kept; it will be built anew", "task", task.String(), "error", err)
	default:
		k.log.Warn("the local copy of a task's state could not follow; it will be built anew", "task", task.String(), "error", err)
	}
}

// advance reads the runs that a copy is behind, one by one, and gives each to the database once it is verified.
func (k *keeper) advance(task element.TaskID, l lane) error {
	if l.stay == 0 { // it has left
		return nil
	}
	if len(l.owed) == 0 {
		return k.apply(task, l.stay, l.target(), store.NewChanges())
	}
	if !k.room(task, l.stay) {
		return nil
	}
	entry := l.entry
	entry.Runs = l.owed
	chain, err := k.repo.OpenChain(k.ctx, entry, l.at.ChainEnd)
	if err != nil {
		return err
	}
	defer chain.Close()
	for i := range chain.Runs() {
		if !k.room(task, l.stay) {
			return nil
		}
		c := store.NewChanges()
		b := k.collecting(task, l.stay)
		if b != nil {
			c = b.changes
		}
		if err := k.readRun(chain, i, l.entry.States, c); err != nil {
			if b != nil {
				b.spoilt = true
			}
			return err
		}
		if err := k.apply(task, l.stay, l.versionAt(i), c); err != nil {
			return err
		}
	}
	return nil
}

// collecting gives the copy of a task that is being built anew, nil when it is not.
func (k *keeper) collecting(task element.TaskID, stay uint64) *building {
	if b := k.reader.building; b != nil && b.task == task && b.stay == stay {
		return b
	}
	return nil
}

// room says whether more may be read: what waits to be written is bounded.
func (k *keeper) room(task element.TaskID, stay uint64) bool {
	if b := k.collecting(task, stay); b != nil {
		return !b.spoilt && b.changes.Bytes() < 2*k.pace.high
	}
	if k.local.PendingBytes() < k.pace.high {
		return true
	}
	// The last pass writes what it has read, to go on reading. When the time is over it stops where it is.
	return k.isClosing() && k.local.Flush(k.ctx) == nil
}

// readRun collects the changes of one run.
func (k *keeper) readRun(chain *snapshot.Chain, i int, states []snapshot.StateInfo, into *store.Changes) error {
	numbers := make([]int, len(states))
	for j, info := range tablesOf(states) {
		n, ok := into.Table(info)
		if !ok {
			return errors.New("state " + info.Name + " came with another codec")
		}
		numbers[j] = n
	}
	return chain.Read(k.ctx, i, func(e snapshot.Entry) error {
		if err := k.breathe(len(e.Key) + len(e.Value)); err != nil {
			return err
		}
		return into.Add(store.Entry{Table: numbers[e.State], Key: e.Key, Value: e.Value, Deleted: e.Deleted})
	})
}

func tablesOf(states []snapshot.StateInfo) []store.TableInfo {
	out := make([]store.TableInfo, len(states))
	for i, s := range states {
		out[i] = store.TableInfo{Name: s.Name, Codec: s.Codec}
	}
	return out
}

// apply gives changes to the database; those of a copy that is being built stay collected until it is whole.
func (k *keeper) apply(task element.TaskID, stay uint64, at store.LocalVersion, c *store.Changes) error {
	if b := k.collecting(task, stay); b != nil {
		b.at = at
	} else {
		k.local.Apply(task, at, c.Tables(), c.Take())
		if got, ok := k.local.Version(task); !ok || got != at {
			return errGivenUp
		}
	}
	k.update(task, stay, func(l *lane) { l.moved(at) })
	return nil
}

// rebuild makes the copy anew from everything that the newest root names.
func (k *keeper) rebuild(task element.TaskID) {
	began := time.Now()
	l := k.look(task)
	if !k.update(task, l.stay, func(of *lane) { of.rebuild(began, k.pace.retry, localRetryMost); l = *of }) {
		return
	}
	b := &building{task: task, stay: l.stay, changes: store.NewChanges(), at: l.at, large: l.size() > k.pace.high}
	k.reader.building = b
	entries, err := k.reset(task, l)
	k.reader.building = nil
	switch {
	case err != nil:
	case b.spoilt: // said so already
		return
	case b.at != l.at:
		err = k.apply(task, l.stay, b.at, b.changes)
	}
	if err != nil {
		k.lose(task, l.stay, err)
		return
	}
	if k.forget(task, l.stay) {
		return
	}
	k.local.Soon()
	level := slog.LevelInfo
	if entries == 0 {
		level = slog.LevelDebug // a task without state, most likely: there was nothing to build
	}
	k.log.Log(k.ctx, level, "local copy of a task's state built anew", "task", task.String(), "checkpoint", l.root.Name.String(),
		"entries", entries, "took", time.Since(began).Round(time.Millisecond))
}

// forget sets a copy aside again that was made after its task had left. It says whether it had.
func (k *keeper) forget(task element.TaskID, stay uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.lanes[task]
	if l != nil && l.stay == stay {
		return false
	}
	k.local.Remove(task)
	if l != nil {
		l.lose()
	}
	return true
}

// reset gives the whole state to the database.
func (k *keeper) reset(task element.TaskID, l lane) (entries int64, err error) {
	chain, err := k.repo.OpenChain(k.ctx, l.entry, 0)
	if err != nil {
		return 0, err
	}
	defer chain.Close()
	err = k.local.Reset(k.ctx, task, l.at, tablesOf(l.entry.States), k.whole(chain, &entries))
	if err == nil {
		if got, ok := k.local.Version(task); !ok || got != l.at {
			err = errGivenUp
		}
	}
	return entries, err
}

// whole gives all entries of a chain. Between them it lets the writer catch up, and takes what is committed meanwhile.
func (k *keeper) whole(chain *snapshot.Chain, n *int64) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		for i := range chain.Runs() {
			err := chain.Read(k.ctx, i, func(e snapshot.Entry) error {
				if err := k.breathe(len(e.Key) + len(e.Value)); err != nil {
					return err
				}
				*n++
				if !yield(store.Entry{Table: e.State, Key: e.Key, Value: e.Value, Deleted: e.Deleted}, nil) {
					return errIterDone
				}
				return nil
			})
			if err == errIterDone {
				return
			}
			if err != nil {
				yield(store.Entry{}, err)
				return
			}
		}
	}
}

const (
	breathEntries = 256
	breathBytes   = 512 << 10
	breathWork    = 2 * time.Millisecond
)

// breathe is called for every entry that is read. Every few milliseconds it pauses, so that the keeper takes its share
// of a core and no more; in the building of a copy it also waits for the writer and follows the other tasks.
func (k *keeper) breathe(size int) error {
	r := &k.reader
	r.entries++
	r.bytes += size
	if r.entries < breathEntries && r.bytes < breathBytes {
		return nil
	}
	r.entries, r.bytes = 0, 0
	if k.ctx.Err() != nil {
		return context.Cause(k.ctx)
	}
	if worked := time.Since(r.chunk); worked > breathWork {
		k.pause((localDuty - 1) * worked)
	}
	if r.building == nil || r.following {
		return nil
	}
	for {
		if k.isClosing() && r.building.large {
			return errClosing
		}
		if k.ctx.Err() != nil {
			return context.Cause(k.ctx)
		}
		if time.Until(k.due()) <= 0 {
			r.last = time.Now()
			k.meet()
			k.follow()
		}
		if k.isClosing() || k.local.PendingBytes() < k.pace.high || k.disabled() {
			return nil
		}
		k.pause(k.pace.gap)
	}
}

// pause waits, unless the copy is being closed.
func (k *keeper) pause(d time.Duration) {
	start := time.Now()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-k.closing:
	case <-k.ctx.Done():
	}
	k.reader.chunk = time.Now()
	k.reader.slept += k.reader.chunk.Sub(start)
}

func (k *keeper) begin() {
	r := &k.reader
	r.last, r.chunk, r.slept, r.entries, r.bytes = time.Now(), time.Now(), 0, 0, 0
}

// end sets the time of the next pass by what this one worked.
func (k *keeper) end() {
	r := &k.reader
	busy := time.Since(r.last) - r.slept
	r.notBefore = r.last.Add(localDuty * busy)
}
