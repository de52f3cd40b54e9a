// Command orderproducer writes orders into a topic until SIGINT or SIGTERM: what examples/orders.yaml reads, keyed by
// customer. Amounts are whole cents; nine of ten orders are paid.
//
// With -health FILE it touches the file while the brokers acknowledge orders; with -check 10s besides it only looks at the
// file and exits with 0 when it was touched within that time, else with 1.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// order is the value of a record.
type order struct {
	OrderID  string `json:"order_id"`
	Customer string `json:"customer"`
	Amount   int64  `json:"amount"` // cents
	Status   string `json:"status"`
	PlacedAt int64  `json:"placed_at"` // milliseconds since 1970
}

// options are those of the command line.
type options struct {
	brokers   []string
	topic     string
	rate      int // orders per second
	customers int
	health    string        // file that is touched while orders are acknowledged
	check     time.Duration // only look whether it was touched within this time; 0 = produce
}

// most is what a rate may be: more than a single producer needs to show anything.
const most = 1_000_000

// tick is how often the producer catches up with its rate.
const tick = 10 * time.Millisecond

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:], os.Getenv("KAFKA_BROKERS"))
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	n := 0
	switch {
	case err != nil:
	case o.check > 0:
		err = (&pulse{file: o.health}).check(o.check, time.Now())
	default:
		n, err = produce(ctx, o)
		fmt.Fprintf(os.Stderr, "orderproducer: %d orders written to %s\n", n, o.topic)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "orderproducer:", err)
		os.Exit(1)
	}
}

func parse(args []string, brokers string) (options, error) {
	if brokers == "" {
		brokers = "localhost:9092"
	}
	var o options
	fs := flag.NewFlagSet("orderproducer", flag.ContinueOnError)
	fs.StringVar(&brokers, "brokers", brokers, "host:port of brokers, with commas between; KAFKA_BROKERS is the default")
	fs.StringVar(&o.topic, "topic", "orders", "topic to write to")
	fs.IntVar(&o.rate, "rate", 1000, "orders per second")
	fs.IntVar(&o.customers, "customers", 1000, "number of different customers")
	fs.StringVar(&o.health, "health", "", "file to touch while the brokers acknowledge orders, at most once a second")
	fs.DurationVar(&o.check, "check", 0, "write nothing: exit with 0 when the file of -health was touched within this time, else with 1")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.brokers = strings.Split(brokers, ",")
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case o.rate < 1 || o.rate > most:
		return o, fmt.Errorf("-rate %d: allowed are 1 to %d", o.rate, most)
	case o.customers < 1:
		return o, fmt.Errorf("-customers %d: at least 1", o.customers)
	case o.check < 0 || o.check > 0 && o.check < 2*pulseEvery:
		return o, fmt.Errorf("-check %s: at least %s, since the file is touched once a second", o.check, 2*pulseEvery)
	case o.check > 0 && o.health == "":
		return o, errors.New("-check needs -health: the file to look at")
	}
	return o, nil
}

// produce writes at the rate until ctx ends, and gives the number of orders that are in the topic.
func produce(ctx context.Context, o options) (int, error) {
	alive := &pulse{file: o.health}
	if err := alive.start(); err != nil {
		return 0, err
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(o.brokers...), kgo.DefaultProduceTopic(o.topic), kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	var (
		mu     sync.Mutex
		acked  int
		failed error
	)
	done := func(_ *kgo.Record, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			acked++
		} else if failed == nil {
			failed = err
		}
	}
	result := func() (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return acked, failed
	}
	start, sent := time.Now(), 0
	run := start.UnixMilli() // makes the ids of this run its own
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	// Records outlive ctx: what was handed to the client is written.
	lasting := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		n, err := result()
		if err != nil {
			break
		}
		if err := alive.beat(n, time.Now()); err != nil {
			return n, err
		}
		for due := int(time.Since(start).Seconds() * float64(o.rate)); sent < due; sent++ {
			ord := draw(o.customers, fmt.Sprintf("o-%d-%d", run, sent))
			value, err := json.Marshal(ord)
			if err != nil {
				return 0, err
			}
			cl.Produce(lasting, &kgo.Record{Key: []byte(ord.Customer), Value: value}, done)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	flush, cancel := context.WithTimeout(lasting, 10*time.Second)
	defer cancel()
	if err := cl.Flush(flush); err != nil {
		n, _ := result()
		return n, fmt.Errorf("the last orders were not acknowledged: %w", err)
	}
	return result()
}

// draw makes up an order. A tenth of the customers place half of them.
func draw(customers int, id string) order {
	c := rand.IntN(customers)
	if rand.IntN(2) == 0 {
		c /= 10
	}
	status := "paid"
	if rand.IntN(10) == 0 {
		status = "open"
	}
	return order{OrderID: id, Customer: fmt.Sprintf("customer-%d", c), Amount: 100 + rand.Int64N(50_000), Status: status, PlacedAt: time.Now().UnixMilli()}
}
