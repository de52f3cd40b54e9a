package topology

import "github.com/millweir/millweir/serde"

// aggregateOp folds records into accumulators of any codec: read, decode, fold, encode, put.
type aggregateOp[K, V, A any] struct {
	operator[K, V, A]
	table      StateTable
	acc        serde.Serde[A]
	fold       fold[K, V, A]
	tombstones bool // fold sees them
	aliases    bool // a decoded accumulator may alias the bytes it came from
	keepRaw    bool // a sink writes the encoded accumulator: keep it in memory that may be given away

	arena   *arena
	encoded []byte // scratch of those that do not keep raw bytes
}

func (a *aggregateOp[K, V, A]) push(b *Batch[K, V]) error { return a.feed(a, b) }

func (a *aggregateOp[K, V, A]) run(from int) (int, error) {
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
		value, raw, err := a.update(in)
		if err != nil {
			return i, err
		}
		out := a.out.next()
		carry(out, in)
		out.Value, out.rawValue, out.Tombstone = value, raw, false
	}
	return len(recs), nil
}

// update gives the new accumulator and, when a sink wants them, its bytes.
func (a *aggregateOp[K, V, A]) update(in *Rec[K, V]) (value A, raw []byte, err error) {
	var acc A
	old, existed := a.table.Get(in.RawKey)
	if existed {
		if a.aliases {
			// The accumulator travels on, while the table's bytes end with the next write.
			old = a.arena.copy(old)
		}
		if acc, err = a.acc.Decode(old); err != nil {
			return acc, nil, stateError(a.acc.Name(), err)
		}
	}
	if acc, err = a.fold(acc, existed, in); err != nil {
		return acc, nil, err
	}
	if !a.keepRaw {
		if a.encoded, err = a.acc.Append(a.encoded[:0], acc); err != nil {
			return acc, nil, codecError("encode accumulator as "+a.acc.Name(), err)
		}
		a.table.Put(in.RawKey, a.encoded)
		return acc, nil, nil
	}
	b, err := a.acc.Append(a.arena.begin(), acc)
	if err != nil {
		return acc, nil, codecError("encode accumulator as "+a.acc.Name(), err)
	}
	raw = a.arena.end(b)
	a.table.Put(in.RawKey, raw)
	return acc, raw, nil
}

// fixedAggregateOp folds into accumulators of a fixed size, in place: one look-up and no allocation per record.
type fixedAggregateOp[K, V, A any] struct {
	aggregateOp[K, V, A]
	size int
	// fresh is the key of a slot that was made for the record at work and is not filled yet.
	fresh []byte
}

func (a *fixedAggregateOp[K, V, A]) push(b *Batch[K, V]) error { return a.feed(a, b) }

func (a *fixedAggregateOp[K, V, A]) run(from int) (int, error) {
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
		if err := a.update(in, &out.Value); err != nil {
			return i, err
		}
		carry(out, in)
		out.rawValue, out.Tombstone = nil, false
	}
	return len(recs), nil
}

// update folds one record and leaves the new accumulator in value.
func (a *fixedAggregateOp[K, V, A]) update(in *Rec[K, V], value *A) (err error) {
	slot, existed := a.table.Upsert(in.RawKey, a.size)
	var acc A
	if !existed {
		a.fresh = in.RawKey
	} else {
		if acc, err = a.acc.Decode(slot); err != nil {
			return stateError(a.acc.Name(), err)
		}
	}
	if acc, err = a.fold(acc, existed, in); err != nil {
		return err
	}
	if err = a.store(slot, acc); err != nil {
		return err
	}
	a.fresh = nil
	*value = acc
	return nil
}

// undo also takes back the key of a slot that the failing record has made and not filled.
func (a *fixedAggregateOp[K, V, A]) undo() {
	if a.fresh != nil {
		a.table.Delete(a.fresh)
		a.fresh = nil
	}
	a.aggregateOp.undo()
}

// store encodes an accumulator and puts it into its slot, which stays as it is when the codec refuses.
func (a *fixedAggregateOp[K, V, A]) store(slot []byte, acc A) (err error) {
	if a.encoded, err = a.acc.Append(a.encoded[:0], acc); err != nil {
		return codecError("encode accumulator as "+a.acc.Name(), err)
	}
	if len(a.encoded) != a.size {
		return codecError("accumulator", &serde.LengthError{Codec: a.acc.Name(), Want: a.size, Got: len(a.encoded)})
	}
	copy(slot, a.encoded)
	return nil
}

// stateError says that stored bytes cannot be read.
func stateError(codec string, err error) error {
	return codecError("decode state as "+codec, err)
}
