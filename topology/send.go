package topology

import (
	"fmt"

	"github.com/millweir/millweir/element"
)

// sampleRecords is how often a value is encoded to learn how big values are, when their type does not say it.
const sampleRecords = 256

// sender is the sending side of an exchange as its task sees it.
type sender interface {
	// flush sends what has gathered.
	flush() error
}

// sendOp puts records into parcels, one per subtask, and sends them: full ones when the operator hands on its outputs,
// the others when the task flushes.
type sendOp[K, K2, V any] struct {
	guard guard
	x     *exchange[K2, V]
	kind  StageKind
	stage int
	// rekey gives the new key and its bytes, nil for a null key. The bytes never change.
	rekey      func(in *Rec[K, V]) (K2, []byte, error)
	tombstones bool // rekey sees them
	rawValues  bool // value bytes at hand are in the exchange's codec

	groups  int     // number of key groups
	owners  []int32 // subtask by key group
	turn    int     // the subtask that is next in turn
	open    []*parcel[K2, V]
	full    []addressed[K2, V]
	arena   *arena
	in      *Batch[K, V]
	sampled sampler[K2, V]
}

// addressed is a parcel for a subtask.
type addressed[K, V any] struct {
	subtask int
	p       *parcel[K, V]
}

func newSendOp[K, K2, V any](c *compiler, n *node, x *exchange[K2, V]) (*sendOp[K, K2, V], error) {
	groups, parallelism := c.env.MaxParallelism(), c.env.Parallelism(n.stageIndex)
	if parallelism < 1 || parallelism > groups {
		return nil, fmt.Errorf("exchange %s: parallelism %d: allowed is 1 to %d, the number of key groups", n.name, parallelism, groups)
	}
	s := &sendOp[K, K2, V]{
		guard: c.guard(n), x: x, kind: n.kind.stage(), stage: n.stageIndex, arena: &c.task.arena,
		rawValues: n.passesValue(), groups: groups,
		turn: int(uint32(c.task.id.Partition) % uint32(parallelism)),
		open: make([]*parcel[K2, V], parallelism),
	}
	s.owners = make([]int32, groups)
	for g := range s.owners {
		s.owners[g] = int32(element.SubtaskOf(g, parallelism, groups))
	}
	s.sampled.x = x
	c.task.senders = append(c.task.senders, s)
	return s, nil
}

func (s *sendOp[K, K2, V]) push(b *Batch[K, V]) error {
	s.in = b
	return s.guard.loop(s, b.From, len(b.Recs))
}

func (s *sendOp[K, K2, V]) run(from int) (int, error) {
	recs := s.in.Recs
	for i := from; i < len(recs); i++ {
		s.guard.at = i
		in := &recs[i]
		if in.Tombstone && !s.tombstones {
			s.guard.env.Skipped(s.guard.step, ErrTombstone)
			continue
		}
		key, raw, err := s.rekey(in)
		if err == ErrTombstone {
			s.guard.env.Skipped(s.guard.step, ErrTombstone)
			continue
		}
		if err != nil {
			return i, err
		}
		switch {
		case s.kind == BroadcastStage:
			for subtask := range s.open {
				s.put(subtask, in, key, raw)
			}
		case s.kind == RebalanceStage || raw == nil:
			s.put(s.turn, in, key, raw)
		default:
			s.put(int(s.owners[element.KeyGroup(raw, s.groups)]), in, key, raw)
		}
	}
	return len(recs), nil
}

// put copies a record into the parcel of a subtask.
func (s *sendOp[K, K2, V]) put(subtask int, in *Rec[K, V], key K2, raw []byte) {
	p := s.open[subtask]
	if p == nil {
		p = s.x.get()
		if s.kind.keyed() {
			p.groups = s.groups
		}
		s.open[subtask] = p
	}
	out := p.add(s.in.From, raw, in.Headers)
	out.Key, out.Value, out.Tombstone = key, in.Value, in.Tombstone
	out.Timestamp, out.Offset = in.Timestamp, in.Offset
	if s.rawValues {
		out.rawValue = in.rawValue
	}
	switch {
	case out.Tombstone:
	case out.rawValue != nil:
		p.size += len(out.rawValue)
	case s.x.valueBytes != nil:
		p.size += s.x.valueBytes(&out.Value)
	default:
		p.size += s.sampled.bytes(&out.Value)
	}
	if len(p.recs) >= parcelRecords {
		s.finish(subtask)
	}
}

// finish ends a parcel: the next record of its subtask begins another one.
func (s *sendOp[K, K2, V]) finish(subtask int) {
	s.full = append(s.full, addressed[K2, V]{subtask, s.open[subtask]})
	s.open[subtask] = nil
	if subtask == s.turn {
		s.turn = (s.turn + 1) % len(s.open)
	}
}

func (s *sendOp[K, K2, V]) offset(i int) int64 { return s.in.Recs[i].Offset }

func (s *sendOp[K, K2, V]) recordRef(i int) *TimerRef {
	return refOf(s.in.Recs[i].RawKey, s.in.Recs[i].Timestamp)
}

// undo has nothing to take back: a record is put into parcels when nothing can fail any more.
func (s *sendOp[K, K2, V]) undo() {}

func (s *sendOp[K, K2, V]) drain() error {
	for i, a := range s.full {
		s.full[i] = addressed[K2, V]{}
		if err := s.guard.env.Send(s.stage, a.subtask, a.p); err != nil {
			return err
		}
	}
	s.full = s.full[:0]
	return nil
}

func (s *sendOp[K, K2, V]) flush() error {
	for subtask, p := range s.open {
		if p != nil {
			s.finish(subtask)
		}
	}
	return s.drain()
}

func (s *sendOp[K, K2, V]) release() { s.in = nil }

func (s *sendOp[K, K2, V]) close() error { return nil }

// sampler estimates how big values are by encoding one now and then.
type sampler[K, V any] struct {
	x       *exchange[K, V]
	count   int
	average int
	scratch []byte
}

func (s *sampler[K, V]) bytes(v *V) int {
	if s.count%sampleRecords == 0 {
		if n, ok := s.encode(v); ok && s.count == 0 {
			s.average = n
		} else if ok {
			s.average = (3*s.average + n) / 4
		}
	}
	s.count++
	return s.average
}

// encode gives the length of an encoding. What goes wrong here is no matter: nobody asked for it.
func (s *sampler[K, V]) encode(v *V) (n int, ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	b, err := s.x.value.Append(s.scratch[:0], *v)
	if err != nil {
		return 0, false
	}
	s.scratch = b[:0]
	return len(b), true
}
