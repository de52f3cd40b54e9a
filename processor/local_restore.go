package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
)

// misfit says why a copy, which may be whole, is not one of the state that is to be restored.
type misfit struct{ reason string }

func (m misfit) Error() string { return m.reason }

// errNoGain: the copy is on the chain, at its very beginning.
var errNoGain = errors.New("the local copy is empty")

// localRestore is one restore of a task from its copy. Its goroutine is the caller's.
type localRestore struct {
	k     *keeper
	entry snapshot.TaskEntry
	load  func(snapshot.Entry) error

	at     store.LocalVersion
	states []int           // of the copy's tables
	chain  *snapshot.Chain // the runs behind the copy
	stats  snapshot.Stats
}

// Restore loads the state that a committed root has of a task: the copy, if its last run is on the chain of the entry,
// then the runs behind it. The sizes in the stats are those of the runs alone. It reports false when there is no copy,
// or one that is not whole or not on the chain, or when ctx ended; what was loaded is of no use then. A copy that is at
// fault is set aside. Several tasks may be restored at a time.
func (k *keeper) Restore(ctx context.Context, root snapshot.RootRef, entry snapshot.TaskEntry, load func(snapshot.Entry) error) (snapshot.Stats, bool) {
	r := &localRestore{k: k, entry: entry, load: load}
	r.at, _ = k.local.Version(entry.Task)
	err := r.run(ctx)
	if err == nil {
		return r.stats, true
	}
	var bad misfit
	switch {
	case ctx.Err() != nil:
	case errors.As(err, &bad):
		k.setAside(entry.Task, slog.LevelInfo, "is not on the way to the checkpoint", r.at, root, err)
	case errors.Is(err, store.ErrDamaged):
		k.setAside(entry.Task, slog.LevelWarn, "is damaged", r.at, root, err)
	default: // no copy, or the fault is not its own
		k.log.Debug("the local copy of a task's state is not read", "task", entry.Task.String(), "checkpoint", root.Name.String(), "reason", err)
	}
	return snapshot.Stats{}, false
}

// setAside drops a copy that must not be used. A later pass builds another one.
func (k *keeper) setAside(task element.TaskID, level slog.Level, why string, at store.LocalVersion, root snapshot.RootRef, err error) {
	k.mu.Lock()
	if l := k.lanes[task]; l != nil {
		l.lose()
	}
	k.local.Remove(task)
	k.mu.Unlock()
	k.log.Log(context.Background(), level, "the local copy of a task's state "+why+"; it is set aside, the state is read from the checkpoint",
		"task", task.String(), "copy", versionText(at), "checkpoint", root.Name.String(), "reason", err)
}

// versionText names the checkpoint of a copy, or the last change in it when it stands between two checkpoints.
func versionText(at store.LocalVersion) string {
	if at.Digest == [32]byte{} {
		return fmt.Sprintf("changes up to %d", at.ChainEnd)
	}
	return fmt.Sprintf("%s, changes up to %d", at.Name, at.ChainEnd)
}

func (r *localRestore) run(ctx context.Context) error {
	defer func() {
		if r.chain != nil {
			r.chain.Close()
		}
	}()
	// The copy must not hide that what it is a copy of is gone: no other instance could restore the task.
	if err := r.k.repo.Present(ctx, r.entry); err != nil {
		return err
	}
	err := r.k.local.Load(ctx, r.entry.Task, func(at store.LocalVersion, tables []store.TableInfo) error {
		return r.accept(ctx, at, tables)
	}, func(e store.Entry) error {
		r.stats.LocalEntries++
		return r.load(snapshot.Entry{State: r.states[e.Table], Key: e.Key, Value: e.Value})
	})
	if err != nil {
		return err
	}
	for i, ref := range r.chain.Runs() {
		if err := r.chain.Read(ctx, i, func(e snapshot.Entry) error {
			if e.Deleted {
				r.stats.Tombstones++
			}
			return r.load(e)
		}); err != nil {
			return err
		}
		r.stats.Add(ref)
	}
	r.stats.Local = true
	return nil
}

// accept decides by where the copy stands. It opens the files of the runs that follow, so that they stay.
func (r *localRestore) accept(ctx context.Context, at store.LocalVersion, tables []store.TableInfo) error {
	r.at = at
	behind, ok := runsBehind(at, r.entry)
	switch {
	case !ok && at.ChainEnd > r.entry.ChainEnd():
		return misfit{fmt.Sprintf("its changes reach to checkpoint %d, those of the checkpoint to %d", at.ChainEnd, r.entry.ChainEnd())}
	case !ok:
		return misfit{fmt.Sprintf("no run of the checkpoint ends at %d with the digest %x", at.ChainEnd, at.Run[:8])}
	case at.ChainEnd == 0 && len(behind) > 0:
		return errNoGain
	}
	states := tablesOf(r.entry.States)
	for _, t := range tables {
		i := slices.Index(states, t)
		if i < 0 {
			return misfit{fmt.Sprintf("its state %q with codec %q is not one of the checkpoint", t.Name, t.Codec)}
		}
		r.states = append(r.states, i)
	}
	var err error
	r.chain, err = r.k.repo.OpenChain(ctx, r.entry, at.ChainEnd)
	return err
}

// Left sets the copy of a task aside that has gone to another instance.
func (k *keeper) Left(task element.TaskID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at, ok := k.local.Version(task)
	delete(k.lanes, task)
	k.local.Remove(task)
	if ok {
		k.log.Info("the local copy of a task's state is set aside: the task has left this instance", "task", task.String(), "copy", versionText(at))
	}
}
