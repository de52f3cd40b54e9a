package snapshot

import (
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

const (
	// MaxMemoryThreshold is the most that Config.MemoryThreshold may be: 1 MiB.
	MaxMemoryThreshold = 1 << 20
	// DefaultWriteBufferSize is Config.WriteBufferSize when it is not set.
	DefaultWriteBufferSize = 4096
	// MaxWriteBufferSize is the most that Config.WriteBufferSize may be: 64 MiB.
	MaxWriteBufferSize = 64 << 20

	// maxInline bounds the bytes of inline runs of a root. Since every root carries the inline runs of all chains along it
	// is far below maxRootSize.
	maxInline = 4 << 20
)

// inlineBytes is what the newest root, and what was given to those to come, holds inline of the tasks' chains.
type inlineBytes struct {
	tasks map[element.TaskID]int64
	total int64
	given []givenInline // to roots that are not written yet
}

// givenInline is an inline run of a checkpoint.
type givenInline struct {
	to   element.CheckpointID
	task element.TaskID
	n    int64
	full bool
}

func (b *inlineBytes) count(g *givenInline) {
	if g.full {
		b.total -= b.tasks[g.task]
		b.tasks[g.task] = 0
	}
	b.total += g.n
	b.tasks[g.task] += g.n
}

// inlineLimit gives the size up to which a run goes into the root. Every root carries the inline runs of the chains along
// until they are merged; so those of one task are together no larger than the threshold, and those of a root than maxInline:
// what exceeds it goes into a file. A full run frees what the chain before it holds; records in flight are in no chain.
// The last root of another process is not counted: right after a restart the sums may be twice as large.
func (r *Repository) inlineLimit(task element.TaskID, full, inFlight bool, given int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	carried := r.inline.tasks[task]
	limit := min(r.threshold, maxInline-r.inline.total-given)
	switch {
	case full:
		limit = min(r.threshold, limit+carried)
	case !inFlight:
		limit = min(limit, r.threshold-carried)
	}
	return max(0, limit)
}

// addInline counts an inline run that was given out.
func (r *Repository) addInline(g givenInline) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inline.count(&g)
	r.inline.given = append(r.inline.given, g)
}

// countInline counts what a new root holds, and what was given to newer ones.
func (r *Repository) countInline(root *Root) {
	sum := inlineBytes{tasks: map[element.TaskID]int64{}}
	for i := range root.Tasks {
		e := &root.Tasks[i]
		if n := e.InlineBytes(); n > 0 {
			sum.tasks[e.Task] = n
			sum.total += n
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.inline.given {
		if g.to > root.Name.ID {
			sum.count(&g)
			sum.given = append(sum.given, g)
		}
	}
	r.inline = sum
}

// InlineBytes is the size of the runs of the chain that lie in the root.
func (e *TaskEntry) InlineBytes() int64 {
	var n int64
	for i := range e.Runs {
		n += int64(len(e.Runs[i].Inline))
	}
	return n
}

// inlineObject reads an inline run as if it were a file.
type inlineObject struct{ *strings.Reader }

func (o inlineObject) Size() (int64, error) { return o.Reader.Size(), nil }
func (o inlineObject) Close() error         { return nil }

// Buffered is what a Storage is told of how its writers are to buffer.
type Buffered interface {
	// SetWriteBuffer sets the bytes that a Put collects before it writes. It is called before the first Put.
	SetWriteBuffer(bytes int)
}

// writeBuffer checks the two sizes and gives that of the writers' buffers: the larger one.
func (cfg *Config) writeBuffer() (int, error) {
	n := cfg.WriteBufferSize
	switch {
	case cfg.MemoryThreshold < 0 || cfg.MemoryThreshold > MaxMemoryThreshold:
		return 0, fault.Stopf(fault.BadFile, "state.backend.fs.memory-threshold is %d bytes, 0 to %d are possible", cfg.MemoryThreshold, MaxMemoryThreshold)
	case n < 0 || n > MaxWriteBufferSize:
		return 0, fault.Stopf(fault.BadFile, "state.backend.fs.write-buffer-size is %d bytes, 1 to %d are possible", n, MaxWriteBufferSize)
	case n == 0:
		n = DefaultWriteBufferSize
	}
	return max(n, cfg.MemoryThreshold), nil
}
