package topology

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/millweir/millweir/element"
)

// parcelRecords is how many records a parcel holds at most, but for restored ones.
const parcelRecords = 256

// Parcel is a run of records on its way over an exchange, from one task to one subtask of the exchange's stage. Its
// records keep their Go types: nothing is encoded unless Encode is called.
//
// A parcel belongs to whoever holds it: the sending task until Env.Send, the engine after it, the receiving task from
// Task.Receive on, which recycles it. Keep and Encode are for the engine while it holds the parcel.
type Parcel interface {
	// Len is the number of records, above 0.
	Len() int
	// Size is an estimate of the bytes that the records hold in memory. It costs nothing.
	Size() int
	// Keep says that the parcel is also part of a snapshot: it is not recycled when it has been received. It must be
	// called before the parcel is given to Task.Receive.
	Keep()
	// Encode gives every record in encoded form, in order, with its key group, -1 when the record has none. data is
	// valid during the call only. A parcel that is kept may be encoded by any goroutine, beside its being received. An
	// error of fn is returned as it is; a record that cannot be encoded is a *RecordError.
	Encode(fn func(group int, data []byte) error) error
}

// parcel is the Parcel of one exchange. From Env.Send on nothing in it is written until it is recycled.
type parcel[K, V any] struct {
	x *exchange[K, V]
	// groups is the number of key groups, 0 when records have none.
	groups int
	recs   []Rec[K, V]
	runs   []run
	// headers is the memory of the records' headers: those of the input are the sender's again after its call.
	headers []element.Header
	size    int
	kept    atomic.Bool
}

// run says that the records up to index end are of one partition.
type run struct {
	from element.TopicPartition
	end  int
}

// get gives an empty parcel.
func (x *exchange[K, V]) get() *parcel[K, V] {
	if p, ok := x.pool.Get().(*parcel[K, V]); ok {
		return p
	}
	return &parcel[K, V]{x: x}
}

// recycle takes back a parcel that nobody looks at any more.
func (x *exchange[K, V]) recycle(p *parcel[K, V]) {
	if p.kept.Load() || cap(p.recs) > 2*parcelRecords || cap(p.headers) > 16*parcelRecords {
		return
	}
	clear(p.recs)
	clear(p.headers)
	clear(p.runs)
	p.recs, p.headers, p.runs = p.recs[:0], p.headers[:0], p.runs[:0]
	p.size, p.groups = 0, 0
	x.pool.Put(p)
}

// add gives the slot of one more record, with every field but Key, Value and rawValue set.
func (p *parcel[K, V]) add(from element.TopicPartition, raw []byte, headers []element.Header) *Rec[K, V] {
	n := len(p.recs)
	if n == cap(p.recs) {
		p.grow()
	}
	p.recs = p.recs[:n+1]
	if last := len(p.runs) - 1; last >= 0 && p.runs[last].from == from {
		p.runs[last].end++
	} else {
		p.runs = append(p.runs, run{from, n + 1})
	}
	r := &p.recs[n]
	r.RawKey = raw
	p.size += int(unsafe.Sizeof(*r)) + len(raw)
	if len(headers) > 0 {
		at := len(p.headers)
		p.headers = append(p.headers, headers...)
		r.Headers = slices.Clip(p.headers[at:])
		p.size += headerBytes(headers)
	}
	return r
}

// grow makes room: a little first, since a quiet exchange sends parcels of a few records, then for a full parcel.
func (p *parcel[K, V]) grow() {
	room := 16
	if len(p.recs) >= room {
		room = max(parcelRecords, len(p.recs))
	}
	p.recs = slices.Grow(p.recs, room)
}

func headerBytes(hs []element.Header) int {
	n := len(hs) * int(unsafe.Sizeof(element.Header{}))
	for i := range hs {
		n += len(hs[i].Key) + len(hs[i].Value)
	}
	return n
}

// Len implements Parcel.
func (p *parcel[K, V]) Len() int { return len(p.recs) }

// Size implements Parcel.
func (p *parcel[K, V]) Size() int { return p.size }

// Keep implements Parcel.
func (p *parcel[K, V]) Keep() { p.kept.Store(true) }

// Encode implements Parcel.
func (p *parcel[K, V]) Encode(fn func(group int, data []byte) error) error {
	var buf, value []byte
	at := 0
	for _, run := range p.runs {
		for ; at < run.end; at++ {
			r, err := &p.recs[at], error(nil)
			if buf, value, err = p.x.encode(buf[:0], value, run.from, r); err != nil {
				rerr := &RecordError{From: run.from, Offset: r.Offset, Step: p.x.name, Reason: err}
				if run.from == timerOrigin {
					rerr.Timer, rerr.Emitted = refOf(r.RawKey, r.Timestamp), true
				}
				return bad(rerr)
			}
			group := -1
			if p.groups > 0 && r.RawKey != nil {
				group = element.KeyGroup(r.RawKey, p.groups)
			}
			if err := fn(group, buf); err != nil {
				return err
			}
		}
	}
	return nil
}
