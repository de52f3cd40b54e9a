package snapshot

import (
	"context"
	"encoding/binary"
	"errors"
	"iter"

	"github.com/millweir/millweir/element"
)

// A run of records in flight is a run as any other, with one state of a name of its own. Its keys number the records, so
// that they come back in order, and hold their key groups. Its interval is empty, which that of no run of a chain is: the
// one cannot be taken for the other.

// inFlightStates are the states of such a run. The codec is that of docs/format/inflight.md; it has a version of its own.
var inFlightStates = []StateInfo{{Name: "in-flight", Codec: "records"}}

// inFlightKey is the length of a key: number (8 bytes) and key group + 1 (4 bytes).
const inFlightKey = 12

func inFlightHeader(name element.CheckpointName, task element.TaskID) runHeader {
	return runHeader{Name: name, Task: task, From: name.ID, To: name.ID, States: inFlightStates}
}

var errNoMore = errors.New("no more records wanted")

// inFlightEntries turns records into the entries of a run. The second function tells why they ended early.
func inFlightEntries(each func(func(int, []byte) error) error) (iter.Seq[Entry], func() error) {
	var failed error
	seq := func(yield func(Entry) bool) {
		key := make([]byte, inFlightKey)
		n := uint64(0)
		err := each(func(group int, data []byte) error {
			if group < -1 || group >= maxGroups {
				return formatf("key group %d", group)
			}
			binary.BigEndian.PutUint64(key, n)
			binary.BigEndian.PutUint32(key[8:], uint32(group+1))
			n++
			if data == nil {
				data = []byte{}
			}
			if !yield(Entry{Key: key, Value: data}) {
				return errNoMore
			}
			return nil
		})
		if !errors.Is(err, errNoMore) {
			failed = err
		}
	}
	return seq, func() error { return failed }
}

// RestoreInFlight gives the records that were on the way to a task to apply, in their order; keep says which key groups,
// nil all of them. A record without a key group has -1. data is valid during the call only. It gives the number of records
// applied. Verification and errors are those of Restore.
func (r *Repository) RestoreInFlight(ctx context.Context, entry TaskEntry, keep func(group int) bool, apply func(group int, data []byte) error) (int64, error) {
	var applied int64
	for _, ref := range entry.InFlight {
		o, err := r.openRun(ctx, ref)
		if err != nil {
			return applied, r.scanError(ctx, ref, err)
		}
		err = r.readInFlight(ctx, entry, ref, o, func(group int, data []byte) error {
			if keep != nil && !keep(group) {
				return nil
			}
			applied++
			return apply(group, data)
		})
		o.Close()
		if err != nil {
			return applied, err
		}
	}
	return applied, nil
}

func (r *Repository) readInFlight(ctx context.Context, entry TaskEntry, ref RunRef, o Object, fn func(int, []byte) error) error {
	if ref.From != ref.To || ref.Full {
		return r.scanError(ctx, ref, formatf("it is not a run of records in flight"))
	}
	entry.States = inFlightStates
	n, top := uint64(0), maxGroups
	if entry.MaxParallelism > 0 {
		top = entry.MaxParallelism
	}
	_, err := r.scanObject(ctx, entry, ref, o, func(_ []int, e *Entry) error {
		bad := len(e.Key) != inFlightKey || e.Deleted || binary.BigEndian.Uint64(e.Key) != n
		if bad || binary.BigEndian.Uint32(e.Key[8:]) > uint32(top) {
			return r.scanError(ctx, ref, formatf("record %d in flight is not valid", n))
		}
		n++
		return fn(int(binary.BigEndian.Uint32(e.Key[8:]))-1, e.Value)
	})
	return err
}
