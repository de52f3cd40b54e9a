package element

// Header is one Kafka record header. Keys may repeat; the order is part of the record. A nil Value is null.
type Header struct {
	Key   string
	Value []byte
}

// Record is one record on the wire side of a topology: what a source delivers and what a sink hands out.
//
// Key and Value may alias a buffer that belongs to the client which fetched them. They are never changed; what keeps
// them longer than the batch lives copies them or keeps the whole buffer alive.
type Record struct {
	Key     []byte // nil = null
	Value   []byte // nil = null (tombstone)
	Headers []Header
	// Timestamp is in milliseconds since the Unix epoch.
	Timestamp int64
	// Offset is the record's offset in its source partition; for output records, that of the input record which
	// caused them.
	Offset int64
}

// Size is an estimate of the bytes that the record holds in memory, used for limits.
func (r *Record) Size() int {
	n := 64 + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += 40 + len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}
