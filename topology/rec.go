package topology

import (
	"slices"

	"github.com/millweir/millweir/element"
)

// Rec is one record inside a topology.
//
// A *Rec that a function receives belongs to the batch it came in: it may be read during the call only, and must not be
// changed unless the function's documentation hands it over as output. Key and Value may alias memory that is shared
// with other records and branches; their contents must not be changed either.
type Rec[K, V any] struct {
	// Key is the decoded key, the zero K when RawKey is nil.
	Key K
	// Value is the decoded value, the zero V when Tombstone is set.
	Value V
	// RawKey is the key as it stood on the wire; nil is the null key. It is the key of keyed state.
	RawKey []byte
	// Tombstone says that the value is null. It was not decoded, and a sink writes it as null.
	Tombstone bool
	// Headers are those of the input record in their order, with repeats. A nil value is null and not the same as an
	// empty one. The slice is shared: use SetHeader, AddHeader and DeleteHeader to change it.
	Headers []element.Header
	// Timestamp is in milliseconds since the Unix epoch, as the input record carries it, also when negative.
	Timestamp int64
	// Offset is the offset of the input record in its partition.
	Offset int64

	// rawValue is the wire form of Value in the codec that the plan noted for the stream, nil when it is not at hand.
	rawValue []byte
}

// Header gives the value of the last header with that key; ok is false when there is none.
func (r *Rec[K, V]) Header(key string) (value []byte, ok bool) {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		if r.Headers[i].Key == key {
			return r.Headers[i].Value, true
		}
	}
	return nil, false
}

// SetHeader replaces every header of that key by one, which comes last. A nil value is null. The other headers keep
// their order. It copies the headers, so other branches do not see the change.
func (r *Rec[K, V]) SetHeader(key string, value []byte) {
	r.Headers = append(without(r.Headers, key), element.Header{Key: key, Value: value})
}

// AddHeader appends a header, whether or not the key is there already. A nil value is null. It copies the headers.
func (r *Rec[K, V]) AddHeader(key string, value []byte) {
	r.Headers = append(slices.Clip(r.Headers), element.Header{Key: key, Value: value})
}

// DeleteHeader removes every header of that key; the others keep their order. It copies the headers.
func (r *Rec[K, V]) DeleteHeader(key string) { r.Headers = without(r.Headers, key) }

// without copies the headers that have another key and leaves room for one more.
func without(hs []element.Header, key string) []element.Header {
	out := make([]element.Header, 0, len(hs)+1)
	for _, h := range hs {
		if h.Key != key {
			out = append(out, h)
		}
	}
	return out
}

// Batch is a run of records of one partition in offset order. An operator reads the batch that it is handed and never
// changes it: branches share it. It is valid during the call only.
type Batch[K, V any] struct {
	From element.TopicPartition
	Recs []Rec[K, V]
}

// scratch is the output batch of an operator, reused from batch to batch.
type scratch[K, V any] struct {
	Batch[K, V]
	// mark is the length before the record at work, for taking back what a failing record has put out.
	mark int
	// high is the greatest length since the last release: the part that may hold references.
	high int
}

// next gives the slot of one more record. It holds what an earlier batch left there: every field must be set.
func (s *scratch[K, V]) next() *Rec[K, V] {
	n := len(s.Recs)
	if n < cap(s.Recs) {
		s.Recs = s.Recs[:n+1]
	} else {
		s.Recs = append(s.Recs, Rec[K, V]{})
	}
	return &s.Recs[n]
}

// start notes that a new input record begins.
func (s *scratch[K, V]) start() { s.mark = len(s.Recs) }

// undo takes back what was put out since start.
func (s *scratch[K, V]) undo() { s.Recs = s.Recs[:s.mark] }

// drain hands what has gathered to the consumer and empties the batch.
func (s *scratch[K, V]) drain(to port[K, V]) error {
	if len(s.Recs) == 0 {
		return nil
	}
	s.high = max(s.high, len(s.Recs))
	err := to.push(&s.Batch)
	s.Recs = s.Recs[:0]
	return err
}

// release drops the references that the scratch holds, so that an idle task does not pin the buffers of its last batch.
func (s *scratch[K, V]) release() {
	clear(s.Recs[:s.high])
	s.high = 0
}

// carry copies to out what a step passes on whatever it does to the value.
func carry[K, V, W any](out *Rec[K, W], in *Rec[K, V]) {
	out.Key = in.Key
	out.RawKey = in.RawKey
	out.Headers = in.Headers
	out.Timestamp = in.Timestamp
	out.Offset = in.Offset
}
