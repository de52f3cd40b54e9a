package snapshot

import (
	"context"
	"fmt"
	"io"
	"iter"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
)

// TaskDelta is what one task changed since a checkpoint.
type TaskDelta struct {
	Task   element.TaskID
	States []StateInfo // what Entry.State indexes
	// From is where the task's chain of runs ends (TaskEntry.ChainEnd), 0 for the first run: not the id of the
	// previous checkpoint, which may have added no run. To is the id of this checkpoint.
	From, To element.CheckpointID
	// Entries are sorted by state, then key, each key once; keys and values stay valid during Persist. It is ranged
	// over once.
	Entries iter.Seq[Entry]
	// Len is the exact number of entries.
	Len int
}

// Persist writes the deltas of all tasks into one pack file, with one fsync, and gives one reference per delta, the
// zero RunRef for a delta without entries. When it returns nil the runs are durable. If all are empty no file is made.
func (r *Repository) Persist(ctx context.Context, name element.CheckpointName, deltas []TaskDelta) ([]RunRef, error) {
	r.claim(name, true)
	refs := make([]RunRef, len(deltas))
	any := false
	for i := range deltas {
		if err := checkDelta(&deltas[i], name); err != nil {
			return nil, fmt.Errorf("checkpoint %s: task %s: %w", name, deltas[i].Task, err)
		}
		any = any || deltas[i].Len > 0
	}
	if !any {
		return refs, nil
	}
	if err := failpoint.Err(failpoint.DeltaBefore); err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", name, err)
	}
	path := filePath{dir: r.dir, kind: packFile, name: name}.String()
	info, err := r.st.Put(ctx, path, func(w io.Writer) error {
		rw := newRunWriter(w)
		for i := range deltas {
			if deltas[i].Len == 0 {
				continue
			}
			ref, err := writeDelta(rw, name, &deltas[i])
			if err != nil {
				return err
			}
			refs[i] = ref
		}
		return failpoint.Err(failpoint.DeltaAfter)
	})
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", name, err)
	}
	for i := range refs {
		if deltas[i].Len > 0 {
			refs[i].File, refs[i].FileSize = path, info.Length
			r.know(refs[i])
		}
	}
	return refs, nil
}

func checkDelta(d *TaskDelta, name element.CheckpointName) error {
	switch {
	case !ValidName(d.Task.Source) || d.Task.Partition < 0:
		return formatf("not a valid task")
	case d.Len < 0 || (d.Len > 0 && d.Entries == nil):
		return formatf("%d entries without a source of them", d.Len)
	case d.Len > 0 && (d.To <= d.From || d.To > name.ID):
		return formatf("delta over (%d, %d] in checkpoint %d", d.From, d.To, name.ID)
	}
	if d.Len == 0 && d.Entries != nil {
		for range d.Entries { // a forgotten Len must not lose state
			return formatf("no entries are declared, but there are some")
		}
	}
	return checkStates(d.States)
}

func writeDelta(w *runWriter, name element.CheckpointName, d *TaskDelta) (RunRef, error) {
	err := w.begin(runHeader{Name: name, Task: d.Task, From: d.From, To: d.To, States: d.States})
	if err != nil {
		return RunRef{}, err
	}
	var e Entry
	for e = range d.Entries {
		if err = w.add(&e); err != nil {
			return RunRef{}, err
		}
	}
	ref, err := w.finish()
	if err == nil && ref.Entries != int64(d.Len) {
		err = fmt.Errorf("task %s: %d entries, %d were declared", d.Task, ref.Entries, d.Len)
	}
	return ref, err
}
