package topology

import (
	"hash/crc32"
	"sync"

	"github.com/millweir/millweir/serde"
)

const (
	kindGroupBy   kind = "group-by"
	kindRebalance kind = "rebalance"
	kindBroadcast kind = "broadcast"
	kindFeedback  kind = "feedback"

	// ParallelismMax is the most subtasks that an exchange may ask for. The engine's number of key groups is a lower bound.
	ParallelismMax = 1 << 15
)

// isExchange says that nodes of a kind are the end of one stage and the beginning of another.
func (k kind) isExchange() bool { return k.stage() != SourceStage }

// stage gives the kind of stage that a node of this kind is the root of.
func (k kind) stage() StageKind {
	switch k {
	case kindGroupBy:
		return HashStage
	case kindRebalance:
		return RebalanceStage
	case kindBroadcast:
		return BroadcastStage
	case kindFeedback:
		return FeedbackStage
	}
	return SourceStage
}

// ExchangeOption changes an exchange.
type ExchangeOption func(*exchangeConfig)

type exchangeConfig struct{ parallelism int }

// Parallelism sets the number of subtasks behind an exchange, from 1 to the number of key groups. 0, the default, leaves
// it to the engine.
func Parallelism(n int) ExchangeOption { return func(c *exchangeConfig) { c.parallelism = n } }

// GroupBy gives records another key and brings all records of one key together: those with the same key are processed by
// one subtask of the stage that begins here, in the order in which each task of the stages before it sent them. Steps
// behind it keep state by the new key. k encodes it: RawKey is that encoding. v encodes values for snapshots that contain
// records in flight, and for a receiver that is slow: whatever the checkpoints are, its parcels are cut into smaller ones by
// way of their encoding. So k and v must round-trip: a step behind the exchange may see a record as they decode it, without
// what they leave out. Where the type does not say how big values are, v also encodes one now and then to learn it.
//
// key is called with the zero K for a null key. A tombstone has no value to take a key from: it is left out, and
// Env.Skipped hears ErrTombstone. GroupByRec sees tombstones and can fail.
//
// Keys and values go to another goroutine as they are. Like everywhere, they must not be changed once they are passed on,
// so key must not return memory that it uses again.
func GroupBy[K, V, K2 any](s Stream[K, V], name string, k serde.Serde[K2], v serde.Serde[V], key func(K, V) K2, opts ...ExchangeOption) Stream[K2, V] {
	fn := func(in *Rec[K, V]) (K2, bool, error) { return key(in.Key, in.Value), false, nil }
	return addGroupBy(s, name, k, v, fn, key == nil, false, opts)
}

// GroupByRec is GroupBy with whole records, tombstones and null keys included. When key says that the new key is null,
// the record goes to the source's OnError policy as ErrNullKey, and so do its errors. With ErrTombstone as its error the
// record is left out under every policy, as GroupBy leaves out tombstones.
func GroupByRec[K, V, K2 any](s Stream[K, V], name string, k serde.Serde[K2], v serde.Serde[V], key func(*Rec[K, V]) (key K2, null bool, err error), opts ...ExchangeOption) Stream[K2, V] {
	return addGroupBy(s, name, k, v, key, key == nil, true, opts)
}

func addGroupBy[K, V, K2 any](s Stream[K, V], name string, k serde.Serde[K2], v serde.Serde[V], key func(*Rec[K, V]) (K2, bool, error), missing, tombstones bool, opts []ExchangeOption) Stream[K2, V] {
	if s.b == nil {
		return Stream[K2, V]{}
	}
	n := &node{kind: kindGroupBy, name: name}
	x := addExchange(s.b, n, k, v, opts)
	s.b.needFunc(n, missing)
	n.compile = func(c *compiler, n *node, _ []any) (any, error) {
		op, err := newSendOp[K](c, n, x)
		if err != nil {
			return nil, err
		}
		op.tombstones = tombstones
		op.rekey = func(in *Rec[K, V]) (K2, []byte, error) {
			key, null, err := key(in)
			if err == nil && null {
				err = ErrNullKey
			}
			if err != nil {
				return key, nil, err
			}
			raw, err := x.encodeKey(op.arena, key)
			return key, raw, err
		}
		return op, nil
	}
	s.b.attach(n, s.n)
	return Stream[K2, V]{b: s.b, n: n}
}

// Rebalance spreads records over the subtasks of the stage that begins here, in turn, a parcel of records at a time.
// Records of one key go to several of them, so no keyed state may stand behind it without a GroupBy. For k and v see
// GroupBy; a key whose bytes are not in the codec k is encoded by it.
func Rebalance[K, V any](s Stream[K, V], name string, k serde.Serde[K], v serde.Serde[V], opts ...ExchangeOption) Stream[K, V] {
	return addSameKey(s, &node{kind: kindRebalance, name: name}, k, v, opts)
}

// Broadcast gives every record to every subtask of the stage that begins here. No keyed state may stand behind it without
// a GroupBy. For k and v see Rebalance.
func Broadcast[K, V any](s Stream[K, V], name string, k serde.Serde[K], v serde.Serde[V], opts ...ExchangeOption) Stream[K, V] {
	return addSameKey(s, &node{kind: kindBroadcast, name: name}, k, v, opts)
}

func addSameKey[K, V any](s Stream[K, V], n *node, k serde.Serde[K], v serde.Serde[V], opts []ExchangeOption) Stream[K, V] {
	if s.b == nil {
		return Stream[K, V]{}
	}
	x := addExchange(s.b, n, k, v, opts)
	n.compile = compileSameKey(x)
	s.b.attach(n, s.n)
	return Stream[K, V]{b: s.b, n: n}
}

// compileSameKey compiles the sending side of an exchange that leaves the key as it is.
func compileSameKey[K, V any](x *exchange[K, V]) func(*compiler, *node, []any) (any, error) {
	return func(c *compiler, n *node, _ []any) (any, error) {
		op, err := newSendOp[K](c, n, x)
		if err != nil {
			return nil, err
		}
		op.tombstones = true
		op.rekey = func(in *Rec[K, V]) (K, []byte, error) { return in.Key, in.RawKey, nil }
		if n.keyCodec != n.parent().keyCodec {
			op.rekey = func(in *Rec[K, V]) (K, []byte, error) {
				if in.RawKey == nil {
					return in.Key, nil, nil
				}
				raw, err := x.encodeKey(op.arena, in.Key)
				return in.Key, raw, err
			}
		}
		return op, nil
	}
}

// exchange is what the sending and the receiving tasks of an exchange share.
type exchange[K, V any] struct {
	name  string
	key   serde.Serde[K]
	value serde.Serde[V]
	// codecs is a checksum of the codecs' names. It stands in every encoded record.
	codecs uint32
	// valueBytes gives what a value takes beside the record, nil when that is not known from its type.
	valueBytes func(*V) int
	pool       sync.Pool // of *parcel[K, V]
}

// addExchange notes what exchanges have in common.
func addExchange[K, V any](b *Builder, n *node, k serde.Serde[K], v serde.Serde[V], opts []ExchangeOption) *exchange[K, V] {
	for _, o := range opts {
		o(&n.exchangeConfig)
	}
	n.keySerde = k
	n.keyCodec = codecName(b, n, "key", k)
	n.valueCodec = codecName(b, n, "value", v)
	x := &exchange[K, V]{name: n.name, key: k, value: v, valueBytes: bytesOf[V]()}
	x.codecs = crc32.Checksum([]byte(n.keyCodec+"\x00"+n.valueCodec), castagnoli)
	n.compileRoot = func(c *compiler, n *node, down []any) (any, error) {
		r := &receiveOp[K, V]{task: c.task, x: x, down: joinPorts[K, V](down)}
		if n.kind.stage().keyed() {
			r.groups = c.env.MaxParallelism()
		}
		return r, nil
	}
	return x
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// bytesOf says how many bytes a value refers to, for the types that tell it at no cost.
func bytesOf[V any]() func(*V) int {
	var zero V
	switch any(&zero).(type) {
	case *string:
		return func(v *V) int { return len(*any(v).(*string)) }
	case *[]byte:
		return func(v *V) int { return len(*any(v).(*[]byte)) }
	}
	if isPlain[V]() {
		return func(*V) int { return 0 }
	}
	return nil
}

// Feedback is an edge that leads records back to a place further up the graph, within the process.
type Feedback[K, V any] struct {
	b *Builder
	n *node
	s Stream[K, V]
}

// NewFeedback begins a stage that gets the records of a stream which From names later: one that may depend on this very
// stage. Records go to the subtask that owns the group of their key; those with a null key go to the subtasks in turn.
// For k and v see Rebalance.
//
//	again := topology.NewFeedback(b, "again", serde.String(), json.Of[Job]())
//	tries := topology.Process(topology.GroupBy(topology.Merge("all", jobs, again.Stream()), …), "try", newTry)
//	again.From(topology.Filter(tries, "failed", failed))
func NewFeedback[K, V any](b *Builder, name string, k serde.Serde[K], v serde.Serde[V], opts ...ExchangeOption) *Feedback[K, V] {
	n := &node{kind: kindFeedback, name: name}
	n.root = n
	x := addExchange(b, n, k, v, opts)
	n.compile = compileSameKey(x)
	b.nodes = append(b.nodes, n)
	return &Feedback[K, V]{b: b, n: n, s: Stream[K, V]{b: b, n: n}}
}

// Stream gives the records that come back.
func (f *Feedback[K, V]) Stream() Stream[K, V] { return f.s }

// From says which stream is led back. It is called once.
func (f *Feedback[K, V]) From(s Stream[K, V]) {
	switch {
	case s.b == nil: // Plan misses the call
	case s.b != f.b:
		f.b.problem(f.n.kind, f.n.name, "stream %q belongs to another topology", s.n.name)
	case len(f.n.parents) > 0:
		f.b.problem(f.n.kind, f.n.name, "From was called twice, with %q and with %q", f.n.parents[0].name, s.n.name)
	default:
		f.n.parents = append(f.n.parents, s.n)
		s.n.kids = append(s.n.kids, f.n)
	}
}
