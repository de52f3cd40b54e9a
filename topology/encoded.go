package topology

import (
	"errors"
	"fmt"

	"github.com/millweir/millweir/serde"
)

// Folder folds records into accumulators in their encoded form, and says what the step passes on. A step has one per
// task, all its calls come from one goroutine, so it may keep scratch memory.
type Folder[K, V, W any] interface {
	// Fold appends the accumulator that old and in give to dst, and sets out to what is passed on for the record. old
	// is nil for the first record of a key, never nil later; it is valid during the call only and must not be changed
	// or kept, in out neither. The result is copied, so dst may be scratch of the caller. When Fold returns an error or
	// panics, the record goes to the source's OnError policy and the accumulator stays as it was.
	Fold(dst, old []byte, in *Rec[K, V], out *W) ([]byte, error)
}

// EncodedAggregate describes the accumulators of AggregateEncoded.
type EncodedAggregate[K, V, W any] struct {
	// Codec is the id of the encoding. It is kept with the state and checked at a restore, like the name of a serde:
	// an encoding that changes takes another id.
	Codec string
	// Size is the length of every accumulator in bytes, 0 when it varies. With a size the state is updated in place
	// with one look-up per record.
	Size int
	// Tombstones says that Fold sees records whose value is null. Otherwise they are ignored as in Aggregate.
	Tombstones bool
	// New makes the Folder of one task.
	New func() Folder[K, V, W]
}

// AggregateEncoded is Aggregate for accumulators that are no Go type: how many parts they have is known at run time only,
// or decoding all of them for every record would cost too much. What is passed on need not be the accumulator. There is
// one output per input; tombstones and null keys are treated as Aggregate does.
func AggregateEncoded[K, V, W any](s Stream[K, V], name string, spec EncodedAggregate[K, V, W]) Stream[K, W] {
	if s.b == nil {
		return Stream[K, W]{}
	}
	n := &node{kind: kindAggregate, name: name, states: []state{{name: aggregateState, codec: spec.Codec}}}
	n.compile = func(c *compiler, n *node, down []any) (any, error) {
		table, err := c.state(n, n.states[0])
		if err != nil {
			return nil, err
		}
		f, err := newFolder(spec.New)
		if err != nil {
			return nil, fmt.Errorf("step %s: %w", n.name, err)
		}
		return &encodedAggregateOp[K, V, W]{
			operator: newOperator[K, V, W](c, n, down), table: table, folder: f,
			codec: spec.Codec, size: spec.Size, tombstones: spec.Tombstones,
		}, nil
	}
	out := addStep[K, V, W](s, n)
	s.b.needFunc(n, spec.New == nil)
	if spec.Codec == "" {
		s.b.problem(n.kind, n.name, "the accumulator codec has an empty name")
	}
	if spec.Size < 0 {
		s.b.problem(n.kind, n.name, "the accumulator has a size of %d bytes", spec.Size)
	}
	return out
}

var errNilFolder = errors.New("the function gives a nil Folder")

// newFolder runs user code that may panic.
func newFolder[K, V, W any](newFn func() Folder[K, V, W]) (f Folder[K, V, W], err error) {
	defer func() {
		if p := recover(); p != nil {
			err = asPanic(p)
		}
	}()
	if f = newFn(); f == nil {
		err = errNilFolder
	}
	return f, err
}

// encodedAggregateOp hands stored bytes to a Folder and stores what it gives.
type encodedAggregateOp[K, V, W any] struct {
	operator[K, V, W]
	table      StateTable
	folder     Folder[K, V, W]
	codec      string
	size       int // 0 when it varies
	tombstones bool

	scratch []byte
	// fresh is the key of a slot that was made for the record at work and is not filled yet.
	fresh []byte
}

func (a *encodedAggregateOp[K, V, W]) push(b *Batch[K, V]) error { return a.feed(a, b) }

func (a *encodedAggregateOp[K, V, W]) run(from int) (int, error) {
	var zero W
	recs := a.in.Recs
	for i := from; i < len(recs); i++ {
		a.guard.at = i
		a.out.start()
		in := &recs[i]
		if in.RawKey == nil {
			return i, ErrNullKey
		}
		if in.Tombstone && !a.tombstones {
			a.guard.env.Skipped(a.guard.step, ErrTombstone)
			continue
		}
		out := a.out.next()
		out.Value = zero
		var err error
		if a.size > 0 {
			err = a.inPlace(in, &out.Value)
		} else {
			err = a.replace(in, &out.Value)
		}
		if err != nil {
			return i, err
		}
		carry(out, in)
		out.rawValue, out.Tombstone = nil, false
	}
	return len(recs), nil
}

// replace stores an accumulator of any length.
func (a *encodedAggregateOp[K, V, W]) replace(in *Rec[K, V], out *W) error {
	old, existed := a.table.Get(in.RawKey)
	b, err := a.folder.Fold(a.scratch[:0], known(old, existed), in, out)
	if err != nil {
		return err
	}
	a.scratch = b
	a.table.Put(in.RawKey, b)
	return nil
}

// inPlace stores an accumulator of the fixed size. The slot is written when all has gone well, so that a failing record
// leaves it as it was.
func (a *encodedAggregateOp[K, V, W]) inPlace(in *Rec[K, V], out *W) error {
	slot, existed := a.table.Upsert(in.RawKey, a.size)
	if !existed {
		a.fresh = in.RawKey
	}
	b, err := a.folder.Fold(a.scratch[:0], known(slot, existed), in, out)
	if err != nil {
		return err
	}
	a.scratch = b
	if len(b) != a.size {
		return codecError("accumulator", &serde.LengthError{Codec: a.codec, Want: a.size, Got: len(b)})
	}
	copy(slot, b)
	a.fresh = nil
	return nil
}

// known gives the bytes of a key that is there, not nil when they are empty, and nil for a new key.
func known(b []byte, existed bool) []byte {
	switch {
	case !existed:
		return nil
	case b == nil:
		return []byte{}
	}
	return b
}

// undo also takes back the key of a slot that the failing record has made and not filled.
func (a *encodedAggregateOp[K, V, W]) undo() {
	if a.fresh != nil {
		a.table.Delete(a.fresh)
		a.fresh = nil
	}
	a.operator.undo()
}
