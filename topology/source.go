package topology

import (
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
)

// batchRecords is how many records travel through the operators at once: enough to make the calls cheap, few enough
// for the scratch batches of a chain to stay in the cache.
const batchRecords = 256

// root is the first operator of a stage as its task sees it, without the types of its records. It is a source or a
// receiver.
type root interface {
	// release begins a round of the task.
	release()
	close() error
}

// source is the root of a source's stage.
type source interface {
	process(from element.TopicPartition, recs []element.Record) error
}

// sourceOp decodes.
type sourceOp[K, V any] struct {
	task  *Task
	guard guard
	key   serde.Serde[K]
	value serde.Serde[V]
	in    []element.Record
	out   scratch[K, V]
	down  port[K, V]
}

func newSourceOp[K, V any](c *compiler, n *node, k serde.Serde[K], v serde.Serde[V], down port[K, V]) *sourceOp[K, V] {
	g := c.guard(n)
	g.policy = n.onDecode
	s := &sourceOp[K, V]{task: c.task, guard: g, key: k, value: v, down: down}
	s.out.Recs = make([]Rec[K, V], 0, batchRecords)
	return s
}

func (s *sourceOp[K, V]) process(from element.TopicPartition, recs []element.Record) error {
	s.out.From = from
	for len(recs) > 0 {
		n := min(len(recs), batchRecords)
		s.in = recs[:n]
		if err := s.guard.loop(s, from, n); err != nil {
			return err
		}
		recs = recs[n:]
	}
	return nil
}

func (s *sourceOp[K, V]) run(from int) (int, error) {
	var zeroK K
	var zeroV V
	for i := from; i < len(s.in); i++ {
		s.guard.at = i
		s.out.start()
		in, out := &s.in[i], s.out.next()
		out.Key, out.RawKey = zeroK, in.Key
		if in.Key != nil {
			k, err := s.key.Decode(in.Key)
			if err != nil {
				return i, codecError("decode key as "+s.key.Name(), err)
			}
			out.Key = k
		}
		out.Value, out.rawValue, out.Tombstone = zeroV, in.Value, in.Value == nil
		if in.Value != nil {
			v, err := s.value.Decode(in.Value)
			if err != nil {
				return i, codecError("decode value as "+s.value.Name(), err)
			}
			out.Value = v
		}
		out.Headers, out.Timestamp, out.Offset = in.Headers, in.Timestamp, in.Offset
	}
	return len(s.in), nil
}

func (s *sourceOp[K, V]) offset(i int) int64 { return s.in[i].Offset }

func (s *sourceOp[K, V]) undo() { s.out.undo() }

func (s *sourceOp[K, V]) drain() error { return s.out.drain(s.down) }

func (s *sourceOp[K, V]) release() {
	s.task.round++
	s.in = nil
	s.out.release()
	s.down.release()
}

func (s *sourceOp[K, V]) close() error { return s.down.close() }
