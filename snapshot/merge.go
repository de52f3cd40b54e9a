package snapshot

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
)

// Merge writes the state that a task's runs amount to as one full run in a file of its own, with one fsync, or gives it
// back inline when it is small, as Persist does. Newer
// runs win; tombstones and what they hide are dropped. The task's next root lists the result in place of entry.Runs.
// All runs are verified before the first byte is written. Memory: one block per run.
//
// A name is used once for each task.
//
// Clean leaves the file alone until a committed root names it, the task is merged again, or Forget is called. Cleaners of
// other processes know nothing of it: whoever was out of the group, or lost the task, names what it has merged before in no
// root any more. A task without runs gives the zero RunRef.
func (r *Repository) Merge(ctx context.Context, name element.CheckpointName, entry TaskEntry) (RunRef, error) {
	if len(entry.Runs) == 0 {
		return RunRef{}, nil
	}
	r.claim(name, true)
	if !ValidName(entry.Task.Source) || entry.Task.Partition < 0 || entry.ChainEnd() > name.ID {
		return RunRef{}, fmt.Errorf("merge %s: task %s with runs up to %d is not valid", name, entry.Task, entry.ChainEnd())
	}
	if err := checkStates(entry.States); err != nil {
		return RunRef{}, fmt.Errorf("merge %s: task %s: %w", name, entry.Task, err)
	}
	if _, err := r.verifyState(ctx, entry); err != nil {
		return RunRef{}, err
	}
	m := &merger{repo: r, ctx: ctx, entry: entry}
	defer m.close()
	if err := m.open(); err != nil {
		return RunRef{}, err
	}
	if ref, err := m.inline(name); err != nil || ref.IsInline() {
		return ref, err
	}
	path := filePath{dir: r.dir, kind: fullFile, name: name, task: entry.Task.String()}.String()
	if err := failpoint.Err(failpoint.MergeBefore); err != nil {
		return RunRef{}, fmt.Errorf("merge %s: task %s: %w", name, entry.Task, err)
	}
	r.protect(entry.Task.String(), path) // before it appears, so that no Clean can meet it unprotected
	var ref RunRef
	info, err := r.st.Put(ctx, path, func(w io.Writer) (err error) {
		ref, err = m.write(w, name)
		return err
	})
	if err == nil {
		err = failpoint.Err(failpoint.MergeAfter)
	}
	if err != nil {
		r.Forget(RunRef{File: path})
		return RunRef{}, fmt.Errorf("merge %s: task %s: %w", name, entry.Task, err)
	}
	ref.File, ref.FileSize = path, info.Length
	r.know(ref)
	return ref, nil
}

// Forget says that a merged run will not be used, so that Clean may delete it.
func (r *Repository) Forget(ref RunRef) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if task := parseFilePath(ref.File).task; r.merged[task] == ref.File {
		delete(r.merged, task)
	}
}

func (r *Repository) protect(task, path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.merged[task] = path
}

// merger merges runs state by state. The runs were verified; the second reading still checks every block.
type merger struct {
	repo  *Repository
	ctx   context.Context
	entry TaskEntry
	runs  []mergeRun // oldest first
}

type mergeRun struct {
	obj      Object
	ref      RunRef
	file     filePath
	states   []int // of the run -> of the entry
	sections []section
}

// mergeCursor stands on an entry of one section.
type mergeCursor struct {
	blockReader
	file  filePath
	first bool
	done  bool
}

func (m *merger) close() {
	for i := range m.runs {
		m.runs[i].obj.Close()
	}
}

// open opens all runs and reads their footers.
func (m *merger) open() error {
	for _, ref := range m.entry.Runs {
		p := parseFilePath(ref.File)
		o, err := m.repo.openRun(m.ctx, ref)
		if err != nil {
			return m.fail(p, err)
		}
		m.runs = append(m.runs, mergeRun{obj: o, ref: ref, file: p})
		run := &m.runs[len(m.runs)-1]
		rr, err := newRunReader(io.NewSectionReader(o, ref.Offset, ref.Length), ref)
		if err != nil {
			return m.fail(p, err)
		}
		if run.states, err = mapStates(rr.head.States, m.entry, p); err != nil {
			return err
		}
		if run.sections, err = readSections(o, ref); err != nil {
			return m.fail(p, err)
		}
	}
	return nil
}

// readSections reads the footer of a run from its end.
func readSections(o io.ReaderAt, ref RunRef) ([]section, error) {
	var tail [runTail]byte
	if err := readFullAt(o, tail[:], ref.Offset+ref.Length-runTail); err != nil {
		return nil, err
	}
	c := cursor{b: tail[:]}
	n := int64(c.u32("footer"))
	if n < runTail || n > maxRunHead || n > ref.Length {
		return nil, formatf("footer claims %d bytes", n)
	}
	b := make([]byte, n)
	if err := readFullAt(o, b, ref.Offset+ref.Length-n); err != nil {
		return nil, err
	}
	f, err := decodeFooter(b)
	if err != nil {
		return nil, err
	}
	for _, s := range f.sections {
		if s.offset > ref.Length || s.length > ref.Length-s.offset {
			return nil, formatf("footer names a section outside the run")
		}
	}
	return f.sections, nil
}

func readFullAt(o io.ReaderAt, b []byte, off int64) error {
	n, err := o.ReadAt(b, off)
	switch {
	case n == len(b):
		return nil
	case err == io.EOF:
		return formatf("truncated")
	}
	return err
}

func (m *merger) fail(p filePath, err error) error {
	err = m.repo.readError(m.ctx, p.name.String(), p.String(), "run", err)
	return ioFault(m.repo.st.Location(), "read "+p.String(), err)
}

// inlineTries is how many times larger than a run that lies in the root the runs may be of which it is tried to make one.
const inlineTries = 8

// errTooLarge ends the writing of a run that does not fit into the root.
var errTooLarge = errors.New("too large for the root")

// limitWriter collects what is written to it, up to a limit.
type limitWriter struct {
	buf   bufferWriter
	limit int64
}

func (w *limitWriter) Write(p []byte) (int, error) {
	if int64(len(w.buf)+len(p)) > w.limit {
		return 0, errTooLarge
	}
	return w.buf.Write(p)
}

// inline merges in memory when the result may be small. It gives the zero reference when it is not.
func (m *merger) inline(name element.CheckpointName) (RunRef, error) {
	var size int64
	for i := range m.entry.Runs {
		size += m.entry.Runs[i].Length
	}
	w := &limitWriter{limit: m.repo.inlineLimit(m.entry.Task, true, false, 0)}
	if w.limit == 0 || size > inlineTries*w.limit {
		return RunRef{}, nil
	}
	ref, err := m.write(w, name)
	switch {
	case errors.Is(err, errTooLarge):
		return RunRef{}, nil
	case err != nil:
		return RunRef{}, fmt.Errorf("merge %s: task %s: %w", name, m.entry.Task, err)
	}
	ref.File, ref.Inline = filePath{dir: m.repo.dir, kind: rootFile, name: name}.String(), string(w.buf)
	m.repo.addInline(givenInline{name.ID, m.entry.Task, ref.Length, true})
	m.repo.mu.Lock()
	delete(m.repo.merged, m.entry.Task.String()) // no file takes the place of one that was merged before
	m.repo.mu.Unlock()
	return ref, nil
}

func (m *merger) write(w io.Writer, name element.CheckpointName) (RunRef, error) {
	rw := newRunWriter(w)
	err := rw.begin(runHeader{Name: name, Task: m.entry.Task, To: m.entry.ChainEnd(), Full: true, States: m.entry.States})
	if err != nil {
		return RunRef{}, err
	}
	for state := range m.entry.States {
		if err := m.mergeState(rw, state); err != nil {
			return RunRef{}, err
		}
	}
	return rw.finish()
}

// mergeState merges one state of all runs. There are few runs, so the smallest key is found by looking at each.
func (m *merger) mergeState(rw *runWriter, state int) error {
	cursors := m.cursors(state)
	for _, c := range cursors {
		if err := m.advance(c); err != nil {
			return err
		}
	}
	for {
		var newest *mergeCursor // of those on the smallest key
		for _, c := range cursors {
			if !c.done && (newest == nil || bytes.Compare(c.entry.Key, newest.entry.Key) <= 0) {
				newest = c
			}
		}
		if newest == nil {
			return nil
		}
		if !newest.entry.Deleted {
			e := newest.entry
			e.State = state
			if err := rw.add(&e); err != nil {
				return err
			}
		}
		// The newest moves last: the others are compared with its key.
		for _, c := range cursors {
			if c != newest && !c.done && bytes.Equal(c.entry.Key, newest.entry.Key) {
				if err := m.advance(c); err != nil {
					return err
				}
			}
		}
		if err := m.advance(newest); err != nil {
			return err
		}
	}
}

// cursors opens the sections that hold a state, oldest run first.
func (m *merger) cursors(state int) []*mergeCursor {
	var out []*mergeCursor
	for i := range m.runs {
		run := &m.runs[i]
		for _, s := range run.sections {
			if s.state >= len(run.states) || run.states[s.state] != state {
				continue
			}
			src := &ctxReader{m.ctx, io.NewSectionReader(run.obj, run.ref.Offset+s.offset, s.length)}
			c := &mergeCursor{file: run.file}
			c.blockReader = blockReader{r: bufio.NewReaderSize(src, blockSize), remain: s.length, state: -1, states: len(run.states)}
			out = append(out, c)
		}
	}
	return out
}

func (m *merger) advance(c *mergeCursor) error {
	if c.left == 0 {
		ok, err := c.nextBlock(true)
		if err != nil {
			return m.fail(c.file, err)
		}
		if !ok {
			c.done = true
			return nil
		}
		c.first = true
	}
	if err := c.nextEntry(c.first); err != nil {
		return m.fail(c.file, err)
	}
	c.first = false
	return nil
}
