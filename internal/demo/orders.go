package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/kafka"
)

// customers is the number of keys; a tenth of them places about half of the orders.
const customers = 4000

// order is one order as it is written. Amount is in cents.
type order struct {
	id       uint64
	customer int
	amount   int64
	status   string
}

// orderStream draws orders; the sequence is a function of the seed.
type orderStream struct {
	rnd  *rand.Rand
	next uint64
}

func newOrderStream(seed uint64) *orderStream {
	return &orderStream{rnd: rand.New(rand.NewPCG(seed, 0x6f7264657273))}
}

func (s *orderStream) draw() order {
	s.next++
	o := order{id: s.next, customer: s.rnd.IntN(customers), amount: int64(100 + s.rnd.IntN(50_000)), status: "paid"}
	if s.rnd.IntN(2) == 0 {
		o.customer /= 10
	}
	switch s.rnd.IntN(20) {
	case 0:
		o.status = "open"
	case 1:
		o.status = "cancelled"
	}
	return o
}

// appendJSON writes the value of the order's record.
func (o order) appendJSON(b []byte, placed time.Time) []byte {
	b = append(b, `{"order_id":"o-`...)
	b = strconv.AppendUint(b, o.id, 10)
	b = append(b, `","customer":"`...)
	b = o.appendCustomer(b)
	b = append(b, `","amount":`...)
	b = strconv.AppendInt(b, o.amount, 10)
	b = append(b, `,"status":"`...)
	b = append(b, o.status...)
	b = append(b, `","placed_at":`...)
	b = strconv.AppendInt(b, placed.UnixMilli(), 10)
	return append(b, '}')
}

func (o order) appendCustomer(b []byte) []byte {
	b = append(b, "customer-"...)
	return strconv.AppendInt(b, int64(o.customer), 10)
}

// tick is how often the producer catches up with its rate.
const tick = 10 * time.Millisecond

// maxOwed bounds how many ticks of orders a stalled producer makes up for.
const maxOwed = 20

// producer writes orders at a rate until its context ends.
type producer struct {
	cfg    kafka.Config
	topic  string
	rate   int
	seed   uint64
	counts func(order) bool // whether the job counts this order

	acked   atomic.Int64 // orders that are in the topic
	counted atomic.Int64 // those of them that must have an output
	failed  atomic.Pointer[error]
}

// run produces, flushes and returns when ctx ends; an order that could not be written is an error.
func (p *producer) run(ctx context.Context) error {
	cl, err := kafka.NewClient(p.cfg, kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(50_000))
	if err != nil {
		return err
	}
	defer cl.Close()
	stream := newOrderStream(p.seed)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	start, sent := time.Now(), 0.0
	// Records outlive ctx: what was handed to the client is written, so that the count of orders is exact.
	lasting := context.WithoutCancel(ctx)
	for ctx.Err() == nil && p.failed.Load() == nil {
		due := time.Since(start).Seconds() * float64(p.rate)
		sent = max(sent, due-maxOwed*tick.Seconds()*float64(p.rate))
		now := time.Now()
		for ; sent < due; sent++ {
			p.produce(lasting, cl, stream.draw(), now)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	flush, cancel := context.WithTimeout(lasting, 30*time.Second)
	defer cancel()
	if err := cl.Flush(flush); err != nil {
		return fmt.Errorf("orders: the last ones were not acknowledged: %w", err)
	}
	if failed := p.failed.Load(); failed != nil {
		return fmt.Errorf("orders: %w", *failed)
	}
	return nil
}

func (p *producer) produce(ctx context.Context, cl *kgo.Client, o order, now time.Time) {
	buf := make([]byte, 0, 160)
	buf = o.appendCustomer(buf)
	n := len(buf)
	buf = o.appendJSON(buf, now)
	counts := p.counts(o)
	cl.Produce(ctx, &kgo.Record{Topic: p.topic, Key: buf[:n:n], Value: buf[n:]}, func(_ *kgo.Record, err error) {
		if err != nil {
			p.failed.CompareAndSwap(nil, &err)
			return
		}
		p.acked.Add(1)
		if counts {
			p.counted.Add(1)
		}
	})
}
