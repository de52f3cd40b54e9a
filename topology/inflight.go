package topology

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/millweir/millweir/element"
)

// The format of a record in flight is described in docs/format/inflight.md.
const (
	inflightVersion = 1

	inflightNullKey   = 1 << 0
	inflightTombstone = 1 << 1
	inflightFlags     = inflightNullKey | inflightTombstone

	inflightHead = 6 // version, flags, checksum of the codecs' names
)

// Reasons why a record in flight cannot be restored.
var (
	// ErrInFlightVersion is the reason when a newer program has written the record.
	ErrInFlightVersion = errors.New("unknown version of the in-flight format")
	// ErrInFlightCodecs is the reason when key or value of the exchange had another codec.
	ErrInFlightCodecs = errors.New("it was written with another key or value codec")
	// ErrInFlightDamaged is the reason when the bytes are not what Parcel.Encode gives.
	ErrInFlightDamaged = errors.New("damaged")
)

// encode appends a record to dst. scratch is memory for the value; both come back, to be used again.
func (x *exchange[K, V]) encode(dst, scratch []byte, from element.TopicPartition, r *Rec[K, V]) (out, again []byte, err error) {
	flags := byte(0)
	if r.RawKey == nil {
		flags |= inflightNullKey
	}
	if r.Tombstone {
		flags |= inflightTombstone
	}
	dst = append(dst, inflightVersion, flags)
	dst = binary.BigEndian.AppendUint32(dst, x.codecs)
	if r.RawKey != nil {
		dst = appendBytes(dst, r.RawKey)
	}
	if !r.Tombstone {
		value := r.rawValue
		if value == nil {
			if value, err = x.encodeValue(scratch[:0], r.Value); err != nil {
				return dst, scratch, err
			}
			scratch = value
		}
		dst = appendBytes(dst, value)
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Headers)))
	for _, h := range r.Headers {
		dst = appendBytes(dst, []byte(h.Key))
		if h.Value == nil {
			dst = append(dst, 0)
			continue
		}
		dst = binary.AppendUvarint(dst, uint64(len(h.Value))+1)
		dst = append(dst, h.Value...)
	}
	dst = binary.AppendVarint(dst, r.Timestamp)
	dst = binary.AppendVarint(dst, r.Offset)
	dst = appendBytes(dst, []byte(from.Topic))
	return binary.AppendVarint(dst, int64(from.Partition)), scratch, nil
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// encodeKey gives the bytes of a key in memory that is never written again.
func (x *exchange[K, V]) encodeKey(a *arena, key K) ([]byte, error) {
	b, err := x.key.Append(a.begin(), key)
	if err != nil {
		return nil, codecError("encode key as "+x.key.Name(), err)
	}
	return a.end(b), nil
}

// encodeValue runs a user's serde outside of a guard.
func (x *exchange[K, V]) encodeValue(dst []byte, v V) (b []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = asPanic(p)
		}
	}()
	if b, err = x.value.Append(dst, v); err != nil {
		return nil, codecError("encode value as "+x.value.Name(), err)
	}
	return b, nil
}

// decode adds an encoded record to a parcel. data must never change: the record aliases it. What it allocates is bounded
// by the length of data.
func (x *exchange[K, V]) decode(p *parcel[K, V], data []byte) error {
	d := inflightReader{b: data}
	head := d.take(inflightHead)
	switch {
	case d.bad:
		return ErrInFlightDamaged
	case head[0] != inflightVersion:
		return fmt.Errorf("%w: %d", ErrInFlightVersion, head[0])
	case head[1]&^inflightFlags != 0:
		return ErrInFlightDamaged
	case binary.BigEndian.Uint32(head[2:]) != x.codecs:
		return fmt.Errorf("%w; now it is key %s, value %s", ErrInFlightCodecs, x.key.Name(), x.value.Name())
	}
	var rawKey, rawValue []byte
	if head[1]&inflightNullKey == 0 {
		rawKey = d.bytes()
	}
	if head[1]&inflightTombstone == 0 {
		rawValue = d.bytes()
	}
	headers := d.headers()
	timestamp, offset := d.varint(), d.varint()
	topic, partition := d.bytes(), d.varint()
	if d.bad || len(d.b) > 0 || partition < math.MinInt32 || partition > math.MaxInt32 {
		return ErrInFlightDamaged
	}
	key, value, err := x.decodePair(rawKey, rawValue)
	if err != nil {
		return err
	}
	r := p.add(p.origin(topic, int32(partition)), rawKey, headers)
	r.Key, r.Value, r.rawValue, r.Tombstone = key, value, rawValue, rawValue == nil
	r.Timestamp, r.Offset = timestamp, offset
	p.size += len(rawValue)
	return nil
}

// decodePair runs the user's serdes outside of a guard.
func (x *exchange[K, V]) decodePair(rawKey, rawValue []byte) (key K, value V, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = asPanic(p)
		}
	}()
	if rawKey != nil {
		if key, err = x.key.Decode(rawKey); err != nil {
			return key, value, codecError("decode key as "+x.key.Name(), err)
		}
	}
	if rawValue != nil {
		if value, err = x.value.Decode(rawValue); err != nil {
			return key, value, codecError("decode value as "+x.value.Name(), err)
		}
	}
	return key, value, nil
}

// origin gives the partition of a record, with the topic's name of the record before it when that is the same.
func (p *parcel[K, V]) origin(topic []byte, partition int32) element.TopicPartition {
	if last := len(p.runs) - 1; last >= 0 && p.runs[last].from.Topic == string(topic) {
		return element.TopicPartition{Topic: p.runs[last].from.Topic, Partition: partition}
	}
	return element.TopicPartition{Topic: string(topic), Partition: partition}
}

// inflightReader reads fields; bad is set by the first one that is not as encode writes it.
type inflightReader struct {
	b   []byte
	bad bool
}

// take gives the next n bytes, never nil.
func (d *inflightReader) take(n uint64) []byte {
	if d.bad || n > uint64(len(d.b)) {
		d.bad = true
		return []byte{}
	}
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out
}

// uvarint reads a number in its shortest form.
func (d *inflightReader) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if d.bad || n <= 0 || n > 1 && d.b[n-1] == 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *inflightReader) varint() int64 {
	u := d.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (d *inflightReader) bytes() []byte { return d.take(d.uvarint()) }

func (d *inflightReader) headers() []element.Header {
	n := d.uvarint()
	if n > uint64(len(d.b))/2 { // a header takes two bytes at least
		d.bad = true
	}
	if d.bad || n == 0 {
		return nil
	}
	hs := make([]element.Header, n)
	for i := range hs {
		hs[i].Key = string(d.bytes())
		if size := d.uvarint(); size > 0 {
			hs[i].Value = d.take(size - 1)
		}
		if d.bad {
			return nil
		}
	}
	return hs
}
