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
	size      int64 // key, value and headers
	alone     int64 // the smallest limits.of its topic with which the client makes a batch of it
	keyed     bool
	origin    string // which input it came from; empty when not known
	err       error
}

// firstFailure keeps the first failure of the records of a client. A broker refuses whole batches: of the records that it refused
// for their size or time, or for having no key, the one that is the likeliest reason is kept.
type firstFailure struct {
	is    atomic.Pointer[failure]
	there chan struct{} // closed when there is one
}

// reset forgets it. No promise may be called meanwhile.
func (ff *firstFailure) reset() {
	ff.is.Store(nil)
	ff.there = make(chan struct{})
}

// get gives it, nil when there is none.
func (ff *firstFailure) get() *failure { return ff.is.Load() }

func (ff *firstFailure) note(r *kgo.Record, err error) {
	f := ff.is.Load()
	if f != nil && !f.lessLikely(r, err) {
		return
	}
	if ff.is.CompareAndSwap(f, newFailure(r, err)) && f == nil {
		close(ff.there)
	}
}

func newFailure(r *kgo.Record, err error) *failure {
	f := &failure{topic: r.Topic, partition: r.Partition, time: r.Timestamp, size: Payload(r), alone: aloneFor(r), keyed: r.Key != nil, err: err}
	if o, ok := r.Context.(interface{ Origin(*kgo.Record) string }); ok {
		f.origin = o.Origin(r)
	}
	return f
}

// lessLikely says that r is rather the reason of the refusal that f is one of.
func (f *failure) lessLikely(r *kgo.Record, err error) bool {
	same := func(e *kerr.Error) bool { return errors.Is(f.err, e) && errors.Is(err, e) }
	switch {
	case f.topic != r.Topic || f.partition != r.Partition:
		return false
	case isTooLarge(f.err) && isTooLarge(err):
		return aloneFor(r) > f.alone
	case same(kerr.InvalidTimestamp):
		return time.Since(r.Timestamp).Abs() > time.Since(f.time).Abs()
	case same(kerr.InvalidRecord):
		return f.keyed && r.Key == nil
	}
	return false
}

func isTooLarge(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

// answer is what the Machine decides on.
func (f *failure) answer(l *limits) Answer {
	a := answerOf(f.err)
	a.Fits = isTooLarge(f.err) && l.hope(f)
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
	case errors.Is(f.err, kerr.InvalidRecord) && !f.keyed:
		return s + ": null key"
	case errors.Is(f.err, kerr.InvalidRecord):
		return s + ": this record, or another one of its batch"
	case isTooLarge(f.err):
		most := l.of(f.topic)
		s = fmt.Sprintf("%s: %d bytes before compression, the largest batch is %d", s, f.size, most)
		switch {
		case l.hope(f) && f.alone <= most:
			s += ", or was when the attempt began: the topic's limit, which must have been lowered, is read anew, and where it cannot be read, or allows this, batches become smaller"
		case l.hope(f):
			s += ", as the topic's limit is not known: batches become larger"
		}
		return s
	}
	return s
}
