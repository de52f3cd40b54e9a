package topology

const (
	kindFilter kind = "filter"
	kindMap    kind = "map"
)

// Filter keeps the records for which pred is true. A tombstone passes untouched, without a call: it deletes downstream
// what its key stands for. FilterRec decides about tombstones too.
//
// Key and value that pred receives must not be changed.
func Filter[K, V any](s Stream[K, V], name string, pred func(K, V) bool) Stream[K, V] {
	keep := func(r *Rec[K, V]) (bool, error) { return r.Tombstone || pred(r.Key, r.Value), nil }
	return addFilter(s, name, keep, pred == nil)
}

// FilterRec keeps the records for which pred is true. It sees whole records, tombstones and null keys included, and must
// not change them. An error goes to the source's OnError policy.
func FilterRec[K, V any](s Stream[K, V], name string, pred func(*Rec[K, V]) (bool, error)) Stream[K, V] {
	return addFilter(s, name, pred, pred == nil)
}

// Map changes the value; key, headers and timestamp stay. A tombstone passes untouched, without a call. MapRec sees
// tombstones too.
//
// Key and value that fn receives must not be changed.
func Map[K, V, W any](s Stream[K, V], name string, fn func(K, V) W) Stream[K, W] {
	apply := func(in *Rec[K, V], out *Rec[K, W]) error {
		if in.Tombstone {
			out.Tombstone = true
		} else {
			out.Value = fn(in.Key, in.Value)
		}
		return nil
	}
	return addMap(s, name, apply, fn == nil)
}

// MapRec changes values, headers and timestamps. out arrives with key, raw key, headers, timestamp and offset of in and
// with a zero value; Tombstone is false. fn sets out.Value or out.Tombstone, and may change the headers by their methods
// and the timestamp. Key, raw key and offset stay whatever fn does. fn must not change in. An error goes to the source's
// OnError policy.
func MapRec[K, V, W any](s Stream[K, V], name string, fn func(in *Rec[K, V], out *Rec[K, W]) error) Stream[K, W] {
	return addMap(s, name, fn, fn == nil)
}

func addFilter[K, V any](s Stream[K, V], name string, pred func(*Rec[K, V]) (bool, error), missing bool) Stream[K, V] {
	n := &node{kind: kindFilter, name: name}
	n.compile = func(c *compiler, n *node, down []any) (any, error) {
		return &filterOp[K, V]{operator: newOperator[K, V, V](c, n, down), pred: pred}, nil
	}
	out := addStep[K, V, V](s, n)
	if s.b != nil {
		n.valueCodec = s.n.valueCodec
		s.b.needFunc(n, missing)
	}
	return out
}

func addMap[K, V, W any](s Stream[K, V], name string, fn func(*Rec[K, V], *Rec[K, W]) error, missing bool) Stream[K, W] {
	n := &node{kind: kindMap, name: name}
	n.compile = func(c *compiler, n *node, down []any) (any, error) {
		return &mapOp[K, V, W]{operator: newOperator[K, V, W](c, n, down), fn: fn}, nil
	}
	out := addStep[K, V, W](s, n)
	if s.b != nil {
		s.b.needFunc(n, missing)
	}
	return out
}

func (b *Builder) needFunc(n *node, missing bool) {
	if missing {
		b.problem(n.kind, n.name, "the function is nil")
	}
}

type filterOp[K, V any] struct {
	operator[K, V, V]
	pred func(*Rec[K, V]) (bool, error)
}

func (f *filterOp[K, V]) push(b *Batch[K, V]) error { return f.feed(f, b) }

func (f *filterOp[K, V]) run(from int) (int, error) {
	recs := f.in.Recs
	for i := from; i < len(recs); i++ {
		f.guard.at = i
		f.out.start()
		keep, err := f.pred(&recs[i])
		if err != nil {
			return i, err
		}
		if keep {
			*f.out.next() = recs[i]
		}
	}
	return len(recs), nil
}

type mapOp[K, V, W any] struct {
	operator[K, V, W]
	fn func(*Rec[K, V], *Rec[K, W]) error
}

func (m *mapOp[K, V, W]) push(b *Batch[K, V]) error { return m.feed(m, b) }

func (m *mapOp[K, V, W]) run(from int) (int, error) {
	var zero W
	recs := m.in.Recs
	for i := from; i < len(recs); i++ {
		m.guard.at = i
		m.out.start()
		in, out := &recs[i], m.out.next()
		carry(out, in)
		out.Value, out.rawValue, out.Tombstone = zero, nil, false
		if err := m.fn(in, out); err != nil {
			return i, err
		}
		out.keep(in.Key, in.RawKey, in.Offset)
	}
	return len(recs), nil
}

// keep puts back what a step may not change: the key of a record decides where its state is.
func (r *Rec[K, V]) keep(key K, raw []byte, offset int64) {
	r.Key, r.RawKey, r.Offset = key, raw, offset
	if r.Tombstone {
		var zero V
		r.Value = zero
	}
}
