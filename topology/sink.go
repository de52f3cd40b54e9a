package topology

import (
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
)

// sinkOp encodes and hands the records to the engine.
type sinkOp[K, V any] struct {
	guard guard
	index int
	key   serde.Serde[K]
	value serde.Serde[V]
	// rawKeys and rawValues say that the bytes carried beside the records are in this sink's codec already.
	rawKeys, rawValues bool
	dropHeaders        bool

	arena *arena
	in    *Batch[K, V]
	out   []element.Record
	mark  int
	high  int
}

func newSinkOp[K, V any](c *compiler, n *node, k serde.Serde[K], v serde.Serde[V]) *sinkOp[K, V] {
	return &sinkOp[K, V]{
		guard: c.guard(n), index: n.sinkIndex, key: k, value: v,
		rawKeys:     n.passesKey(),
		rawValues:   n.passesValue(),
		dropHeaders: n.dropHeaders,
		arena:       &c.task.arena,
	}
}

// passesKey says that the key bytes at hand in the parent's output are what this sink writes.
func (n *node) passesKey() bool { return n.keyCodec == n.parent().keyCodec }

// passesValue says that value bytes at hand in the parent's output are what this sink writes.
func (n *node) passesValue() bool { return n.valueCodec == n.parent().valueCodec }

func (s *sinkOp[K, V]) push(b *Batch[K, V]) error {
	s.in = b
	return s.guard.loop(s, b.From, len(b.Recs))
}

func (s *sinkOp[K, V]) run(from int) (int, error) {
	recs := s.in.Recs
	for i := from; i < len(recs); i++ {
		s.guard.at = i
		s.mark = len(s.out)
		in := &recs[i]
		key, err := s.encodeKey(in)
		if err != nil {
			return i, err
		}
		value, err := s.encodeValue(in)
		if err != nil {
			return i, err
		}
		out := s.next()
		out.Key, out.Value, out.Headers = key, value, in.Headers
		out.Timestamp, out.Offset = in.Timestamp, in.Offset
		if s.dropHeaders {
			out.Headers = nil
		}
	}
	return len(recs), nil
}

func (s *sinkOp[K, V]) encodeKey(in *Rec[K, V]) ([]byte, error) {
	if s.rawKeys || in.RawKey == nil {
		return in.RawKey, nil
	}
	b, err := s.key.Append(s.arena.begin(), in.Key)
	if err != nil {
		return nil, codecError("encode key as "+s.key.Name(), err)
	}
	return s.arena.end(b), nil
}

func (s *sinkOp[K, V]) encodeValue(in *Rec[K, V]) ([]byte, error) {
	if in.Tombstone {
		return nil, nil
	}
	if s.rawValues && in.rawValue != nil {
		return in.rawValue, nil
	}
	b, err := s.value.Append(s.arena.begin(), in.Value)
	if err != nil {
		return nil, codecError("encode value as "+s.value.Name(), err)
	}
	return s.arena.end(b), nil
}

func (s *sinkOp[K, V]) next() *element.Record {
	n := len(s.out)
	if n < cap(s.out) {
		s.out = s.out[:n+1]
	} else {
		s.out = append(s.out, element.Record{})
	}
	return &s.out[n]
}

func (s *sinkOp[K, V]) offset(i int) int64 { return s.in.Recs[i].Offset }

func (s *sinkOp[K, V]) recordRef(i int) *TimerRef {
	return refOf(s.in.Recs[i].RawKey, s.in.Recs[i].Timestamp)
}

func (s *sinkOp[K, V]) undo() { s.out = s.out[:s.mark] }

func (s *sinkOp[K, V]) drain() error {
	if len(s.out) == 0 {
		return nil
	}
	s.high = max(s.high, len(s.out))
	err := s.guard.env.Emit(s.index, s.out)
	s.out = s.out[:0]
	return err
}

func (s *sinkOp[K, V]) release() {
	s.in = nil
	clear(s.out[:s.high])
	s.high = 0
}

func (s *sinkOp[K, V]) close() error { return nil }
