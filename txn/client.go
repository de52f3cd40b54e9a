package txn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/fault"
)

// client is one slot's kgo client with the count of the promises of its open transaction. The counters are reset at
// each begin: by then every promise of the transaction before has been called, or the client has been replaced.
type client struct {
	slot int
	id   string
	cl   *kgo.Client
	// promise is the one function that all records share; a method value made at each Produce would be an allocation.
	promise func(*kgo.Record, error)
	limits  *limits

	aborting atomic.Bool // producers stop at the next record
	produced atomic.Int64
	failed   atomic.Int64
	first    firstFailure
	acked    atomic.Pointer[producer] // of the first record that was acknowledged
	mixed    atomic.Bool              // another one was acknowledged as another
	drained  chan struct{}            // closed when pending reaches 0
	held     bool                     // the token is out; only control calls use it

	_ [64]byte // the promise goroutine and the producers write pending; keep what they only read off its line
	// pending is the number of records without an answer, plus one token while the transaction takes records. So it
	// reaches 0 exactly once, after the last promise of a sealed transaction.
	pending atomic.Int64
}

// producer is what a record was produced as. It does not change within a transaction, unless the broker has forgotten it: then kgo
// may take a new epoch without failing a record, and what was acknowledged in the old one is aborted. Another broker may be slow to
// acknowledge that, and the new one comes first.
type producer struct {
	id    int64
	epoch int16
}

func newClient(slot int, id string, cl *kgo.Client, l *limits) *client {
	c := &client{slot: slot, id: id, cl: cl, limits: l}
	c.first.reset()
	c.promise = c.answered
	return c
}

// reset prepares the counters for a new transaction.
func (c *client) reset() {
	c.aborting.Store(false)
	c.produced.Store(0)
	c.failed.Store(0)
	c.first.reset()
	c.acked.Store(nil)
	c.mixed.Store(false)
	c.hold()
}

// hold takes the token: the transaction takes records.
func (c *client) hold() {
	c.drained = make(chan struct{})
	c.held = true
	c.pending.Add(1)
}

// letGo gives the token back, if it is out. No producer may be inside any more.
func (c *client) letGo() {
	if c.held {
		c.held = false
		c.release()
	}
}

// answered is the promise of every record.
func (c *client) answered(r *kgo.Record, err error) {
	if err != nil {
		c.failed.Add(1)
		c.first.note(r, err)
	} else if was := c.acked.Load(); was == nil {
		c.acked.Store(&producer{r.ProducerID, r.ProducerEpoch})
	} else if was.id != r.ProducerID || was.epoch != r.ProducerEpoch {
		c.mixed.Store(true)
	}
	c.release()
}

// release gives back one unit of pending: a record's, or the token.
func (c *client) release() {
	if c.pending.Add(-1) == 0 {
		close(c.drained)
	}
}

// untilFailed gives ctx an end soon after the first record that failed. What it returns ends the goroutine that looks for it.
func (c *client) untilFailed(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		select {
		case <-c.first.there:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(batchGrace):
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(); looking.Wait() }
}

// wait waits until every promise was called. The token must have been given back.
func (c *client) wait(ctx context.Context) error {
	select {
	case <-c.drained:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settle waits until the client has noted every partition that it produced to. It must come between the last promise
// and EndTransaction.
//
// When a topic's partitions are first learnt, kgo (1.22.3) sends the records that waited for them before it stores the
// partitions where EndTransaction looks. An EndTransaction(commit) in between sees no partition, decides that no
// produce succeeded, sends an abort and returns nil: the checkpoint would pass for committed while its output and its
// offsets are gone. Sending and storing happen under one lock, and AbortBufferedRecords, which has nothing to abort
// here since every promise was called, is the public call that takes it.
func (c *client) settle(ctx context.Context) error { return c.cl.AbortBufferedRecords(ctx) }

// produceBatch hands records over. The caller keeps the transaction open meanwhile.
func (c *client) produceBatch(ctx context.Context, recs []kgo.Record) error {
	if err := c.failure(); err != nil {
		return err
	}
	n := int64(len(recs))
	c.pending.Add(n)
	c.produced.Add(n)
	for i := range recs {
		if c.aborting.Load() {
			rest := n - int64(i)
			c.produced.Add(-rest)
			c.pending.Add(-rest) // never 0 here: the token is out
			return ErrAborted
		}
		c.cl.Produce(ctx, &recs[i], c.promise)
	}
	return nil
}

// produceOne is produceBatch for one record with a promise of the caller's own, which may be nil.
func (c *client) produceOne(ctx context.Context, rec *kgo.Record, promise func(*kgo.Record, error)) error {
	if err := c.failure(); err != nil {
		return err
	}
	if c.aborting.Load() {
		return ErrAborted
	}
	c.pending.Add(1)
	c.produced.Add(1)
	if promise == nil {
		c.cl.Produce(ctx, rec, c.promise)
		return nil
	}
	c.cl.Produce(ctx, rec, func(r *kgo.Record, err error) {
		promise(r, err)
		c.answered(r, err)
	})
	return nil
}

// failure gives the error of the first promise that failed, classed, or nil.
func (c *client) failure() error {
	if err := c.limits.cuts.err(); err != nil {
		return err
	}
	f := c.first.get()
	if f == nil {
		return nil
	}
	rec, code := verdict(StepProduce, f.answer(c.limits))
	return fault.New(rec, code, "%s: %w", f.where(c.limits), explain(f.err))
}

// answerOf reduces an error to what the Machine decides on.
func answerOf(err error) Answer {
	if err == nil {
		return Answer{}
	}
	var ke *kerr.Error
	if errors.As(err, &ke) && ke.Code != kerr.UnknownServerError.Code {
		return Answer{Code: ke.Code}
	}
	return Answer{Lost: true}
}

// explain adds what a person can do about the errors that come from the outside.
func explain(err error) error {
	switch {
	case isTooLarge(err):
		return fmt.Errorf("the record, or the batch that it is in, is larger than the topic's max.message.bytes or the largest batch: %w", err)
	case errors.Is(err, kerr.InvalidTimestamp):
		return fmt.Errorf("the topic takes no record of this time: its message.timestamp.before.max.ms and message.timestamp.after.max.ms (or the brokers' log.message.timestamp settings) say how far it may be from the broker's clock: %w", err)
	case errors.Is(err, kerr.InvalidRecord):
		return fmt.Errorf("the broker refuses it (a compacted topic takes no null key): %w", err)
	case errors.Is(err, kerr.PolicyViolation):
		return fmt.Errorf("a policy of the cluster refuses the record: %w", err)
	case errors.Is(err, kerr.InvalidTopicException):
		return fmt.Errorf("the brokers take no records for a topic of this name: %w", err)
	case errors.Is(err, kerr.ProducerFenced), errors.Is(err, kerr.InvalidProducerEpoch):
		return fmt.Errorf("another process uses the same instance id, or the transaction timed out: %w", err)
	case errors.Is(err, kerr.UnsupportedVersion):
		return fmt.Errorf("the brokers do not take the request in this form: the cluster's transaction.version was lowered below 2 while this ran, or a broker is older than Kafka 4.0 (kafka-features.sh upgrade --feature transaction.version=2): %w", err)
	case errors.Is(err, kerr.TransactionAbortable):
		return fmt.Errorf("%w: %w", fault.ErrAsked, err)
	}
	return err
}
