package snapshot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/millweir/millweir/internal/fault"
)

// Stats says what Restore read.
type Stats struct {
	Sizes
	Tombstones int64
	// Local says that the state comes from a local copy, and LocalEntries how much of it; Sizes and Tombstones count
	// only what was read from runs behind it.
	Local        bool
	LocalEntries int64
}

// readBuffer is read at once from a run; with one block and one key it is all that a reader holds.
const readBuffer = 128 << 10

var readBuffers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readBuffer) }}

// Restore gives the entries of a task's runs to apply, oldest run first, tombstones included; the caller keeps what
// comes last for a key. keep says which keys are wanted, of the state that Entry.State indexes; nil: all. A task whose
// stage has another parallelism than in the checkpoint reads several entries, one after the other, with the filter of
// Decision.KeepKeys. Everything is read and verified in any case, and counted in Stats. Entry.State indexes entry.States; key and value are valid during the call only. Everything is
// verified, but part of it after apply saw the entries: what was applied counts only when Restore returns nil.
//
// A hole or an overlap in the chain, a damaged, missing or foreign file gives a CorruptError; a state that
// entry.States does not list, or lists with another codec, a fault with code StateMismatch. An error of apply is
// passed on as it is.
func (r *Repository) Restore(ctx context.Context, entry TaskEntry, keep func(state int, key []byte) bool, apply func(Entry) error) (Stats, error) {
	var st Stats
	if err := r.checkChain(entry); err != nil {
		return st, err
	}
	for _, ref := range entry.Runs {
		var mapped Entry
		tombs, err := r.scan(ctx, entry, ref, func(states []int, e *Entry) error {
			mapped = *e
			mapped.State = states[e.State]
			if keep != nil && !keep(mapped.State, mapped.Key) {
				return nil
			}
			return apply(mapped)
		})
		if err != nil {
			return st, err
		}
		st.Tombstones += tombs
		st.Add(ref)
	}
	return st, nil
}

// Verify reads all runs of a task, also those of records in flight, and checks them without giving out entries.
func (r *Repository) Verify(ctx context.Context, entry TaskEntry) (Stats, error) {
	st, err := r.verifyState(ctx, entry)
	if err == nil {
		_, err = r.RestoreInFlight(ctx, entry, nil, func(int, []byte) error { return nil })
	}
	if err == nil {
		st.AddInFlight(entry.InFlight...)
	}
	return st, err
}

func (r *Repository) verifyState(ctx context.Context, entry TaskEntry) (Stats, error) {
	return r.Restore(ctx, entry, nil, func(Entry) error { return nil })
}

func (r *Repository) checkChain(entry TaskEntry) error {
	if err := CheckChain(entry.Runs); err != nil {
		last := parseFilePath(entry.Runs[len(entry.Runs)-1].File)
		return corrupt(last.name.String(), "of task "+entry.Task.String(), "chain", err)
	}
	return nil
}

// scan streams one run. fn gets the map from the run's states to entry.States.
func (r *Repository) scan(ctx context.Context, entry TaskEntry, ref RunRef, fn func([]int, *Entry) error) (int64, error) {
	o, err := r.openRun(ctx, ref)
	if err != nil {
		return 0, r.scanError(ctx, ref, err)
	}
	defer o.Close()
	return r.scanObject(ctx, entry, ref, o, fn)
}

// scanError names the run in an error of reading it.
func (r *Repository) scanError(ctx context.Context, ref RunRef, err error) error {
	var ours applyError
	if errors.As(err, &ours) {
		return ours.err
	}
	err = r.readError(ctx, parseFilePath(ref.File).name.String(), ref.File, "run", err)
	return ioFault(r.st.Location(), "read "+ref.File, err)
}

// scanObject streams a run whose file is open.
func (r *Repository) scanObject(ctx context.Context, entry TaskEntry, ref RunRef, o Object, fn func([]int, *Entry) error) (int64, error) {
	p := parseFilePath(ref.File)
	src := readBuffers.Get().(*bufio.Reader)
	src.Reset(&ctxReader{ctx, io.NewSectionReader(o, ref.Offset, ref.Length)})
	defer func() {
		src.Reset(nil)
		readBuffers.Put(src)
	}()
	rr, err := newRunReader(src, ref)
	if err != nil {
		return 0, r.scanError(ctx, ref, err)
	}
	if err := checkIdentity(rr.head, entry, p); err != nil {
		return 0, r.scanError(ctx, ref, err)
	}
	states, err := mapStates(rr.head.States, entry, p)
	if err != nil {
		return 0, err
	}
	if err := rr.each(func(e *Entry) error { return fn(states, e) }); err != nil {
		return 0, r.scanError(ctx, ref, err)
	}
	return rr.foot.tombstones, nil
}

// openRun opens the file of a run and checks the sizes that the reference claims, before anything is allocated by
// them.
func (r *Repository) openRun(ctx context.Context, ref RunRef) (Object, error) {
	if err := ref.place(); err != nil {
		return nil, err
	}
	if ref.IsInline() {
		return inlineObject{strings.NewReader(ref.Inline)}, nil
	}
	o, err := r.st.Open(ctx, ref.File)
	if err != nil {
		return nil, err
	}
	size, err := o.Size()
	if err == nil && size != ref.FileSize {
		err = formatf("%d bytes long, %d are expected", size, ref.FileSize)
	}
	if err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

// checkIdentity compares what the run says of itself with what it is taken for.
func checkIdentity(h runHeader, entry TaskEntry, p filePath) error {
	if h.Task != entry.Task || h.Name != p.name {
		return formatf("holds task %s of checkpoint %s, task %s of checkpoint %s is expected", h.Task, h.Name, entry.Task, p.name)
	}
	return nil
}

// mapStates finds each state of a run among those of the task. Runs of one chain may number them differently, since
// each process registers them in its own order.
func mapStates(run []StateInfo, entry TaskEntry, p filePath) ([]int, error) {
	out := make([]int, len(run))
	for i, s := range run {
		out[i] = -1
		for j, t := range entry.States {
			if t.Name == s.Name {
				out[i] = j
			}
		}
		if out[i] < 0 {
			return nil, fault.Stopf(fault.StateMismatch, "checkpoint %s: task %s: %s holds state %q, which the task does not list",
				p.name, entry.Task, p, s.Name)
		}
		if t := entry.States[out[i]]; t != s {
			return nil, fault.Stopf(fault.StateMismatch, "checkpoint %s: task %s: %s holds state %q with codecs %s, the task lists it with %s",
				p.name, entry.Task, p, s.Name, s.codecs(), t.codecs())
		}
	}
	return out, nil
}

func (s StateInfo) codecs() string { return fmt.Sprintf("%q/%q", s.KeyCodec, s.Codec) }

// ctxReader ends reading with the context.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *ctxReader) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
