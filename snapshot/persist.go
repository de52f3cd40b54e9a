package snapshot

import (
	"context"
	"fmt"
	"io"
	"iter"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
)

// TaskDelta is what one task changed since a checkpoint, or its whole state, and what was on the way to it.
type TaskDelta struct {
	Task   element.TaskID
	States []StateInfo // what Entry.State indexes
	// From is where the task's chain of runs ends (TaskEntry.ChainEnd), 0 for the first run: not the id of the
	// previous checkpoint, which may have added no run. To is the id of this checkpoint.
	From, To element.CheckpointID
	// Full says that Entries are the whole state: the run takes the place of the task's chain. From is 0. Tombstones are
	// counted in Len and left out, for what is not in the run does not exist. The first run of a task is full when its state was read from several tasks of a root; see Decision.Sources.
	Full bool
	// Entries are sorted by state, then key, each key once; keys and values stay valid until the next one is asked for. It
	// is ranged over once, from one goroutine at a time.
	Entries iter.Seq[Entry]
	// Len is the exact number of entries.
	Len int
	// InFlight gives the records on the way to the task to add, in the order in which they are to be taken again; those of
	// one sender in the order in which it sent them. Group is the key group, -1 of a record without one. data is taken during
	// the call. When add fails, InFlight returns its error. nil: none.
	InFlight func(add func(group int, data []byte) error) error
}

// Chain gives the runs of the task's next entry: run, which Persist gave for the delta, in place of the runs before when it
// is the whole state, behind them when not. Neither is changed.
func (d *TaskDelta) Chain(before []RunRef, run RunRef) []RunRef {
	var out []RunRef
	if !d.Full {
		out = append(out, before...)
	}
	if !run.IsZero() {
		out = append(out, run)
	}
	return out
}

// Persisted is what Persist wrote for a delta.
type Persisted struct {
	Run      RunRef // zero for a delta without entries
	InFlight RunRef // for TaskEntry.InFlight; zero without records
}

// Persist writes what all tasks give, and tells for each where it is. Runs of at most Config.MemoryThreshold bytes are not
// written but given back inline, for the root to hold them; see inlineLimit. All others go into one pack file, with one
// fsync. When it returns nil they are durable. If none is left no file is made.
func (r *Repository) Persist(ctx context.Context, name element.CheckpointName, deltas []TaskDelta) ([]Persisted, error) {
	r.claim(name, true)
	p := &packer{repo: r, name: name, out: make([]Persisted, len(deltas))}
	defer p.close()
	for i := range deltas {
		if err := checkDelta(&deltas[i], name); err != nil {
			return nil, fmt.Errorf("checkpoint %s: task %s: %w", name, deltas[i].Task, err)
		}
		p.plan(&deltas[i], &p.out[i])
	}
	if len(p.parts) == 0 {
		return p.out, nil
	}
	err := context.Cause(ctx)
	if err == nil {
		err = failpoint.Err(failpoint.DeltaBefore)
	}
	if err == nil {
		err = p.write(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", name, err)
	}
	return p.out, nil
}

func checkDelta(d *TaskDelta, name element.CheckpointName) error {
	switch {
	case !ValidName(d.Task.Source) || d.Task.Partition < 0:
		return formatf("not a valid task")
	case d.Len < 0 || (d.Len > 0 && d.Entries == nil):
		return formatf("%d entries without a source of them", d.Len)
	case d.Len > 0 && (d.To <= d.From || d.To > name.ID):
		return formatf("delta over (%d, %d] in checkpoint %d", d.From, d.To, name.ID)
	case d.Full && d.From != 0:
		return formatf("the whole state at %d is said to begin at %d", d.To, d.From)
	}
	if d.Len == 0 && d.Entries != nil {
		for range d.Entries { // a forgotten Len must not lose state
			return formatf("no entries are declared, but there are some")
		}
	}
	return checkStates(d.States)
}

// packer writes the runs of a checkpoint. It makes the file when the first run does not fit into the root.
type packer struct {
	repo  *Repository
	name  element.CheckpointName
	parts []part
	out   []Persisted

	at     int // part in work
	rw     *runWriter
	buf    bufferWriter // a run that may fit
	file   io.Writer    // nil: there is none yet
	off    int64        // bytes in it
	inline int64        // bytes given to the root
}

// part is a run to be written.
type part struct {
	head  runHeader
	seq   iter.Seq[Entry]
	count int          // entries of seq, -1: not known
	err   func() error // after seq: why it ended early
	out   *RunRef

	limit  int64 // bytes up to which it goes into the root
	begun  bool  // next is in use
	first  bool  // next was not asked yet
	seen   int   // entries that seq has given
	next   func() (Entry, bool)
	stop   func()
	inFile bool
}

// errNeedsFile says that there is something for the file.
var errNeedsFile = fmt.Errorf("no file yet")

func (p *packer) plan(d *TaskDelta, out *Persisted) {
	if d.Len > 0 {
		p.parts = append(p.parts, part{
			head: runHeader{Name: p.name, Task: d.Task, From: d.From, To: d.To, Full: d.Full, States: d.States},
			seq:  d.Entries, count: d.Len, out: &out.Run,
		})
	}
	if d.InFlight != nil {
		seq, err := inFlightEntries(d.InFlight)
		p.parts = append(p.parts, part{head: inFlightHeader(p.name, d.Task), seq: seq, count: -1, err: err, out: &out.InFlight})
	}
}

func (p *packer) close() {
	for i := range p.parts {
		if stop := p.parts[i].stop; stop != nil {
			stop()
		}
	}
}

// written is where the runs are written, in the file or for the root, and not durable yet.
func written() error { return failpoint.Err(failpoint.DeltaAfter) }

func (p *packer) write(ctx context.Context) error {
	p.rw = newRunWriter(nil)
	path := filePath{dir: p.repo.dir, kind: packFile, name: p.name}.String()
	err := p.pack()
	var info FileInfo
	if err == errNeedsFile {
		info, err = p.repo.st.Put(ctx, path, func(w io.Writer) error {
			p.file = w
			if err := p.pack(); err != nil {
				return err
			}
			return written()
		})
	} else if err == nil {
		err = written()
	}
	if err != nil {
		return err
	}
	for i := range p.parts {
		if part := &p.parts[i]; part.inFile {
			part.out.File, part.out.FileSize = path, info.Length
			p.repo.know(*part.out)
		} else if part.out.IsInline() && part.count >= 0 {
			p.repo.addInline(givenInline{p.name.ID, part.head.Task, part.out.Length, part.head.Full})
		}
	}
	return nil
}

// pack goes on with the parts until one needs the file and there is none.
func (p *packer) pack() error {
	for ; p.at < len(p.parts); p.at++ {
		part := &p.parts[p.at]
		if !part.begun {
			part.limit = p.repo.inlineLimit(part.head.Task, part.head.Full, part.count < 0, p.inline)
		}
		var err error
		if part.count >= 0 && !part.begun && int64(part.count)*minEntry > part.limit {
			err = p.direct(part)
		} else {
			err = p.gather(part)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// minEntry is a lower bound of what an entry takes in a run.
const minEntry = 4

// direct writes a run that is known not to fit into the root.
func (p *packer) direct(part *part) error {
	if p.file == nil {
		return errNeedsFile
	}
	part.inFile = true
	p.rw.w, p.rw.off = p.file, p.off
	if err := p.rw.begin(part.head); err != nil {
		return err
	}
	var e Entry
	for e = range part.seq {
		if err := p.add(part, &e); err != nil {
			return err
		}
	}
	return p.finish(part)
}

// add writes an entry; the whole state has no tombstones.
func (p *packer) add(part *part, e *Entry) error {
	part.seen++
	if part.head.Full && e.Deleted {
		return nil
	}
	return p.rw.add(e)
}

// gather writes a run to memory, and to the file from where it is too large for the root.
func (p *packer) gather(part *part) error {
	if !part.begun {
		part.begun, part.first = true, true
		part.next, part.stop = iter.Pull(part.seq)
		p.buf = p.buf[:0]
		p.rw.w, p.rw.off = &p.buf, 0
		if err := p.rw.begin(part.head); err != nil {
			return err
		}
	}
	for {
		if !part.inFile && !part.first && p.rw.size() > part.limit {
			if p.file == nil {
				return errNeedsFile
			}
			if err := p.spill(part); err != nil {
				return err
			}
		}
		e, ok := part.next()
		if !ok {
			break
		}
		part.first = false
		if err := p.add(part, &e); err != nil {
			return err
		}
	}
	if part.err != nil {
		if err := part.err(); err != nil {
			return fmt.Errorf("task %s: records in flight: %w", part.head.Task, err)
		}
	}
	if part.count < 0 && part.first {
		return nil // nothing in flight
	}
	return p.finish(part)
}

// spill moves what there is of a run to the file.
func (p *packer) spill(part *part) error {
	part.inFile = true
	if _, err := p.file.Write(p.buf); err != nil {
		return err
	}
	p.rw.w = p.file
	p.rw.start += p.off
	p.rw.off += p.off
	return nil
}

func (p *packer) finish(part *part) error {
	ref, err := p.rw.finish()
	if err == nil && part.count >= 0 && part.seen != part.count {
		err = fmt.Errorf("task %s: %d entries, %d were declared", part.head.Task, part.seen, part.count)
	}
	if err != nil {
		return err
	}
	if part.inFile {
		p.off = p.rw.off
	} else {
		ref.File, ref.Inline = filePath{dir: p.repo.dir, kind: rootFile, name: p.name}.String(), string(p.buf)
		p.inline += ref.Length
	}
	*part.out = ref
	return nil
}

// bufferWriter collects what is written to it.
type bufferWriter []byte

func (b *bufferWriter) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}
