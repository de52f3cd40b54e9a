package txn

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// failure is what is known of a record whose promise failed.
type failure struct {
	topic     string
	partition int32
	time      time.Time
	size      int    // key, value and headers
	alone     int64  // as a batch of its own
	origin    string // which input it came from; empty when not known
	err       error
}

// noteFailure keeps the first failure. A broker refuses whole batches: of the records that it refused for their size or
// time, the one that is the likeliest reason is kept.
func noteFailure(first *atomic.Pointer[failure], r *kgo.Record, err error) {
	f := first.Load()
	if f != nil && !f.lessLikely(r, err) {
		return
	}
	first.CompareAndSwap(f, newFailure(r, err))
}

func newFailure(r *kgo.Record, err error) *failure {
	f := &failure{topic: r.Topic, partition: r.Partition, time: r.Timestamp, size: sizeOf(r), alone: BatchSize(r), err: err}
	if o, ok := r.Context.(interface{ Origin(*kgo.Record) string }); ok {
		f.origin = o.Origin(r)
	}
	return f
}

func sizeOf(r *kgo.Record) int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// lessLikely says that r is rather the reason of the refusal that f is one of.
func (f *failure) lessLikely(r *kgo.Record, err error) bool {
	same := func(e *kerr.Error) bool { return errors.Is(f.err, e) && errors.Is(err, e) }
	switch {
	case f.topic != r.Topic || f.partition != r.Partition:
		return false
	case isTooLarge(f.err) && isTooLarge(err):
		return BatchSize(r) > f.alone
	case same(kerr.InvalidTimestamp):
		return time.Since(r.Timestamp).Abs() > time.Since(f.time).Abs()
	}
	return false
}

func isTooLarge(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

// answer is what the Machine decides on.
func (f *failure) answer(l *limits) Answer {
	a := answerOf(f.err)
	a.Fits = isTooLarge(f.err) && l.takes(f.topic, f.alone)
	return a
}

// where names the record by what matters for the refusal.
func (f *failure) where(l *limits) string {
	s := fmt.Sprintf("produce to %s/%d", f.topic, f.partition)
	if f.origin != "" {
		s = f.origin + ": " + s
	}
	switch {
	case errors.Is(f.err, kerr.InvalidTimestamp):
		return fmt.Sprintf("%s: timestamp %d (%s)", s, f.time.UnixMilli(), f.time.UTC().Format(time.RFC3339Nano))
	case isTooLarge(f.err):
		most, _ := l.cfg.batchMaxBytes(f.topic)
		s = fmt.Sprintf("%s: %d bytes before compression, the largest batch is %d", s, f.size, most)
		if l.takes(f.topic, f.alone) {
			s += ", or was when the attempt began: the topic's limit must have been lowered and is read anew"
		}
		return s
	}
	return s
}
