package topology

import (
	"github.com/millweir/millweir/serde"
)

const (
	kindCount kind = "count"
	kindSum   kind = "sum"
	kindMin   kind = "min"
	kindMax   kind = "max"
	kindLast  kind = "last"
)

// Number is what can be summed up.
type Number interface{ int64 | float64 }

// Ordered is what has a least and a greatest.
type Ordered interface{ int64 | float64 | string }

// Count counts the records of each key, from 1, and passes on the count after each. Tombstones and null keys are treated
// as Aggregate does. A count that leaves the range of int64 is ErrOverflow, never a wrong number.
func Count[K, V any](s Stream[K, V], name string) Stream[K, int64] {
	fold := func(n int64, _ bool, _ *Rec[K, V]) (int64, error) { return add(n, 1) }
	return addAggregate(s, name, kindCount, serde.Int64(), fold, false, false)
}

// Sum adds up what fn gives for each record of a key and passes on the sum after each. Tombstones and null keys are
// treated as Aggregate does. An int64 sum that leaves its range is ErrOverflow, never a wrong number; a float64 sum
// follows IEEE 754, infinities and NaN included.
func Sum[K, V any, N Number](s Stream[K, V], name string, fn func(K, V) N) Stream[K, N] {
	fold := func(n N, _ bool, r *Rec[K, V]) (N, error) { return add(n, fn(r.Key, r.Value)) }
	return addAggregate(s, name, kindSum, orderedSerde[N](), fold, fn == nil, false)
}

// Min keeps the least of what fn gives for the records of a key and passes it on after each. Strings are compared by
// their bytes; NaN is ErrNaN. Tombstones and null keys are treated as Aggregate does.
func Min[K, V any, N Ordered](s Stream[K, V], name string, fn func(K, V) N) Stream[K, N] {
	return addExtreme(s, name, kindMin, fn, func(v, best N) bool { return v < best })
}

// Max keeps the greatest of what fn gives for the records of a key and passes it on after each. Strings are compared by
// their bytes; NaN is ErrNaN. Tombstones and null keys are treated as Aggregate does.
func Max[K, V any, N Ordered](s Stream[K, V], name string, fn func(K, V) N) Stream[K, N] {
	return addExtreme(s, name, kindMax, fn, func(v, best N) bool { return v > best })
}

// Last keeps the last value of each key as state and passes every value on. Tombstones and null keys are treated as
// Aggregate does: a tombstone leaves the last value where it is.
func Last[K, V any](s Stream[K, V], name string, value serde.Serde[V]) Stream[K, V] {
	fold := func(_ V, _ bool, r *Rec[K, V]) (V, error) { return r.Value, nil }
	return addAggregate(s, name, kindLast, value, fold, false, false)
}

func addExtreme[K, V any, N Ordered](s Stream[K, V], name string, k kind, fn func(K, V) N, better func(v, best N) bool) Stream[K, N] {
	fold := func(best N, existed bool, r *Rec[K, V]) (N, error) {
		v := fn(r.Key, r.Value)
		if v != v {
			return best, ErrNaN
		}
		if !existed || better(v, best) {
			return v, nil
		}
		return best, nil
	}
	return addAggregate(s, name, k, orderedSerde[N](), fold, fn == nil, false)
}

// orderedSerde gives the codec of a built-in aggregate.
func orderedSerde[N Ordered]() serde.Serde[N] {
	var zero N
	var s any
	switch any(zero).(type) {
	case int64:
		s = serde.Int64()
	case float64:
		s = serde.Double()
	case string:
		s = serde.String()
	}
	return s.(serde.Serde[N])
}

// add adds without wrapping around.
func add[N Number](a, b N) (N, error) {
	sum := a + b
	if isInt64[N]() && (sum > a) != (b > 0) {
		return a, ErrOverflow
	}
	return sum, nil
}

// isInt64 tells the two types of Number apart by what division does to 1.
func isInt64[N Number]() bool {
	var one N = 1
	return one/2 == 0
}
