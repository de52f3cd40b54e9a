package topology

import (
	"github.com/millweir/millweir/serde"
)

const (
	kindAggregate kind = "aggregate"
	// aggregateState is the name of the state of an aggregate within its step.
	aggregateState = "aggregate"
)

// Aggregate keeps one accumulator per key of the source and passes on its new value after every record: one output per
// input. The zero A is where a key starts. acc is the codec of the accumulator; a step keeps its state as long as its
// name and that codec's name stay.
//
// A tombstone is ignored, as in Kafka Streams: fn is not called, nothing changes, nothing is passed on, and
// Env.Skipped hears ErrTombstone. A null key goes to the source's OnError policy as ErrNullKey. AggregateRec sees
// tombstones and can fail.
//
// fn must not change the value it receives. It may change the accumulator it receives and return it. An accumulator
// without pointers whose codec has a fixed size (serde.Fixed) is updated in place; keeping several aggregates in one
// struct costs one look-up for all.
func Aggregate[K, V, A any](s Stream[K, V], name string, acc serde.Serde[A], fn func(A, V) A) Stream[K, A] {
	fold := func(a A, _ bool, r *Rec[K, V]) (A, error) { return fn(a, r.Value), nil }
	return addAggregate(s, name, kindAggregate, acc, fold, fn == nil, false)
}

// AggregateRec is Aggregate with whole records, tombstones included: fn decides what they do to the accumulator. There
// is one output per input. An error goes to the source's OnError policy and leaves the accumulator as it was.
func AggregateRec[K, V, A any](s Stream[K, V], name string, acc serde.Serde[A], fn func(acc A, r *Rec[K, V]) (A, error)) Stream[K, A] {
	fold := func(a A, _ bool, r *Rec[K, V]) (A, error) { return fn(a, r) }
	return addAggregate(s, name, kindAggregate, acc, fold, fn == nil, true)
}

// fold gives the new accumulator. existed is false for the first record of a key; acc is then the zero A.
type fold[K, V, A any] func(acc A, existed bool, r *Rec[K, V]) (A, error)

func addAggregate[K, V, A any](s Stream[K, V], name string, k kind, acc serde.Serde[A], fn fold[K, V, A], missing, tombstones bool) Stream[K, A] {
	if s.b == nil {
		return Stream[K, A]{}
	}
	n := &node{kind: k, name: name}
	codec := codecName(s.b, n, "accumulator", acc)
	n.states = []state{{name: aggregateState, codec: codec}}
	n.compile = func(c *compiler, n *node, down []any) (any, error) {
		table, err := c.state(n, n.states[0])
		if err != nil {
			return nil, err
		}
		base := aggregateOp[K, V, A]{
			operator: newOperator[K, V, A](c, n, down), table: table, acc: acc, fold: fn,
			tombstones: tombstones, aliases: !isPlain[A](), arena: &c.task.arena, keepRaw: n.feedsRaw(map[*node]bool{}),
		}
		if size, ok := inPlace(acc); ok {
			return &fixedAggregateOp[K, V, A]{aggregateOp: base, size: size}, nil
		}
		return &base, nil
	}
	out := addStep[K, V, A](s, n)
	if _, ok := inPlace(acc); !ok {
		n.valueCodec = codec
	}
	s.b.needFunc(n, missing)
	return out
}

// inPlace says whether the state of a codec can be updated where it is: the encoding has one size, and a decoded value
// cannot alias the bytes that the next record of the key overwrites.
func inPlace[A any](acc serde.Serde[A]) (int, bool) {
	if acc == nil || !isPlain[A]() {
		return 0, false
	}
	return serde.FixedSize(acc)
}

// feedsRaw says that some sink or exchange can use the value bytes that this step has at hand. seen are the nodes that
// were asked before.
func (n *node) feedsRaw(seen map[*node]bool) bool {
	for _, kid := range n.kids {
		if seen[kid] {
			continue
		}
		seen[kid] = true
		switch {
		case kid.kind == kindSink:
			if kid.passesValue() {
				return true
			}
		case kid.kind == kindFilter, (kid.kind == kindMerge || kid.kind.isExchange()) && kid.passesValue():
			if kid.feedsRaw(seen) {
				return true
			}
		}
	}
	return false
}
