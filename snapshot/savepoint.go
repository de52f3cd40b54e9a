package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// A savepoint is a checkpoint that belongs to its owner and stands by itself: one directory with the metadata and one file of
// data, in which every task has its whole state as one run. Nothing outside of the directory is needed to read it, and no
// cleaner ever touches it. Its name is savepoint-<application>-<checkpoint>-<incarnation>.
const (
	savepointMagic = "MWSP"
	// savepointVersion is that of one which says what request it is of; without, version 1 is written.
	savepointVersion = 2
	savepointPrefix  = "savepoint-"
	savepointMeta    = "_metadata"
	savepointData    = "state.data"
)

// SavepointHead says what a savepoint is of.
type SavepointHead struct {
	ID string // as it was asked for; see ValidName
	// Requests are the ids of the requests that it serves, mostly one. The parts that other instances write carry the same;
	// see SameRequest. Each is a ValidName; none: nothing is known of other parts.
	Requests         []string
	Name             element.CheckpointName
	Application      string
	Instance         string
	ClusterID        string
	StoreID          string // of the checkpoint directory, "" when there is none
	CreatedUnixMilli int64
}

// SavepointTask is what one task gives to a savepoint.
type SavepointTask struct {
	Task      element.TaskID
	Positions []element.Position
	States    []StateInfo // what Entry.State indexes
	// Parallelism and MaxParallelism are as in TaskEntry.
	Parallelism, MaxParallelism int
	// Entries are the whole state, as in TaskDelta with Full. nil: none.
	Entries iter.Seq[Entry]
	// Err tells after Entries that they are not all; nil: it cannot happen.
	Err func() error
	// InFlight is as in TaskDelta.
	InFlight func(add func(group int, data []byte) error) error
}

// SavepointConfig says where savepoints lie.
type SavepointConfig struct {
	// Dir is a path or a file:// URL; it is made when it is not there. Not used when Storage is set.
	Dir string
	// Storage overrides Dir. It is not closed.
	Storage Storage
	// WriteBufferSize is as in Config.
	WriteBufferSize int
}

// WriteSavepoint writes a savepoint into a directory of its own below that of the configuration, the metadata last: what has
// none is not finished. When it returns nil everything is durable. After an error nothing is left, as far as that can be
// helped. One of that name which is there gives fs.ErrExist.
func WriteSavepoint(ctx context.Context, cfg SavepointConfig, head SavepointHead, tasks []SavepointTask) (SavepointRef, error) {
	ref, err := writeSavepoint(ctx, cfg, head, tasks)
	if err != nil {
		return SavepointRef{}, fmt.Errorf("savepoint %s: %w", head.ID, err)
	}
	return ref, nil
}

func writeSavepoint(ctx context.Context, cfg SavepointConfig, head SavepointHead, tasks []SavepointTask) (SavepointRef, error) {
	head.Requests = slices.Compact(slices.Sorted(slices.Values(head.Requests)))
	if err := checkRequests(head.Requests); err != nil {
		return SavepointRef{}, err
	}
	if !ValidName(head.ID) || !ValidName(head.Application) || head.Name.ID == 0 {
		return SavepointRef{}, formatf("id %q or application %q is not a valid name, or there is no checkpoint", head.ID, head.Application)
	}
	st := cfg.Storage
	if st == nil {
		l, err := openSavepoints(cfg.Dir, false)
		if err != nil {
			return SavepointRef{}, err
		}
		defer l.Close()
		if st = l; cfg.WriteBufferSize > 0 {
			l.SetWriteBuffer(min(cfg.WriteBufferSize, MaxWriteBufferSize))
		}
	}
	w := &savepointWriter{st: st, dir: savepointPrefix + head.Application + "-" + head.Name.String(), head: head}
	ref, err := w.write(ctx, tasks)
	if err != nil {
		w.undo()
	}
	return ref, err
}

// CheckSavepointDir makes the directory that savepoints are to lie in when it is not there, and checks that it can be read and
// written. Errors are faults that name the directory and the reason.
func CheckSavepointDir(dir string) error {
	l, err := openSavepoints(dir, false)
	if err != nil {
		return err
	}
	return l.Close()
}

// SameSavepointDir reports that two names lead to one directory, through links, say. Of one that is not there the name counts.
func SameSavepointDir(a, b string) bool {
	if a, b = strings.TrimPrefix(a, "file://"), strings.TrimPrefix(b, "file://"); a == b {
		return true
	}
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// openSavepoints opens the directory that savepoints lie in.
func openSavepoints(dir string, readOnly bool) (*Local, error) {
	p, isURL := strings.CutPrefix(dir, "file://")
	switch {
	case dir == "":
		return nil, fault.Stopf(fault.BadFile, "no directory for savepoints: set state.savepoints.dir or name one")
	case isURL && !strings.HasPrefix(p, "/"), !isURL && strings.Contains(dir, "://"):
		return nil, fault.Stopf(fault.BadFile, "savepoint directory %q: only directories and file:///… URLs are supported", dir)
	case readOnly:
		return openLocalReadOnly(savepointDir, p)
	}
	return openLocal(savepointDir, p)
}

// savepointWriter writes one savepoint.
type savepointWriter struct {
	st   Storage
	dir  string
	head SavepointHead
	made []string // files
}

func (w *savepointWriter) write(ctx context.Context, tasks []SavepointTask) (SavepointRef, error) {
	root := &Root{Name: w.head.Name, Application: w.head.Application, Instance: w.head.Instance, ClusterID: w.head.ClusterID,
		StoreID: w.head.StoreID, CreatedUnixMilli: w.head.CreatedUnixMilli}
	for i := range tasks {
		t := &tasks[i]
		if err := checkStates(t.States); err != nil {
			return SavepointRef{}, fmt.Errorf("task %s: %w", t.Task, err)
		}
		root.Tasks = append(root.Tasks, TaskEntry{Task: t.Task, Positions: t.Positions, States: t.States,
			Parallelism: t.Parallelism, MaxParallelism: t.MaxParallelism})
	}
	info, err := w.put(ctx, savepointData, func(out io.Writer) error { return w.runs(out, root, tasks) })
	switch {
	case errors.Is(err, errNoRuns):
	case err != nil:
		return SavepointRef{}, err
	}
	for i := range root.Tasks {
		for _, runs := range [][]RunRef{root.Tasks[i].Runs, root.Tasks[i].InFlight} {
			for k := range runs {
				runs[k].File, runs[k].FileSize = root.packPath(), info.Length
			}
		}
	}
	root = root.sorted()
	if err := root.validate(); err != nil {
		return SavepointRef{}, err
	}
	meta := encodeSavepoint(savepointIDs{w.head.ID, w.head.Requests}, root)
	if len(meta) > maxRootSize {
		return SavepointRef{}, formatf("metadata of %d bytes, at most %d are allowed", len(meta), maxRootSize)
	}
	if _, err := w.put(ctx, savepointMeta, writeBytes(meta)); err != nil {
		return SavepointRef{}, err
	}
	return SavepointRef{ID: w.head.ID, Path: strings.TrimSuffix(w.st.Location(), "/") + "/" + w.dir, Digest: digestOf(meta)}, nil
}

func (w *savepointWriter) put(ctx context.Context, name string, write func(io.Writer) error) (FileInfo, error) {
	name = path.Join(w.dir, name)
	info, err := w.st.Put(ctx, name, write)
	if err == nil {
		w.made = append(w.made, name)
	}
	return info, err
}

// errNoRuns says that no task has anything to write.
var errNoRuns = errors.New("no runs")

// runs writes those of all tasks, in the order in which the metadata names them.
func (w *savepointWriter) runs(out io.Writer, root *Root, tasks []SavepointTask) error {
	rw := newRunWriter(out)
	order := make([]int, len(tasks))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return tasks[a].Task.Compare(tasks[b].Task) })
	for _, i := range order {
		t, e := &tasks[i], &root.Tasks[i]
		if t.Entries != nil {
			head := runHeader{Name: w.head.Name, Task: t.Task, To: w.head.Name.ID, Full: true, States: t.States}
			ref, err := writeWhole(rw, head, t.Entries, t.Err)
			if err != nil {
				return err
			}
			e.Runs = appendRun(e.Runs, ref)
		}
		if t.InFlight != nil {
			seq, failed := inFlightEntries(t.InFlight)
			ref, err := writeWhole(rw, inFlightHeader(w.head.Name, t.Task), seq, failed)
			if err != nil {
				return err
			}
			e.InFlight = appendRun(e.InFlight, ref)
		}
	}
	if rw.off == 0 {
		return errNoRuns
	}
	return nil
}

func appendRun(runs []RunRef, ref RunRef) []RunRef {
	if ref.Length == 0 {
		return runs
	}
	return append(runs, ref)
}

// writeWhole writes a run, none when there are no entries.
func writeWhole(rw *runWriter, head runHeader, seq iter.Seq[Entry], failed func() error) (RunRef, error) {
	begun := false
	var e Entry
	for e = range seq {
		if !begun {
			begun = true
			if err := rw.begin(head); err != nil {
				return RunRef{}, err
			}
		}
		if err := rw.add(&e); err != nil {
			return RunRef{}, err
		}
	}
	if failed != nil {
		if err := failed(); err != nil {
			return RunRef{}, fmt.Errorf("task %s: %w", head.Task, err)
		}
	}
	if !begun {
		return RunRef{}, nil
	}
	return rw.finish()
}

// undo removes what was written. It does its best: what stays has no metadata.
func (w *savepointWriter) undo() {
	ctx := context.Background()
	for _, name := range slices.Backward(w.made) {
		_ = w.st.Delete(ctx, name)
	}
	if st, ok := w.st.(Directories); ok {
		_, _ = st.Retire(ctx, w.dir+"/", never)
	}
}
