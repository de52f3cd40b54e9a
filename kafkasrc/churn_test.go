package kafkasrc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/testbed"
)

// churn is the model of partitions that come and go: after each Add at position p the deliveries are, without a gap and
// without a repeat, what a reader of committed records finds from p on; and none comes while the partition is away.
type churn struct {
	mu      sync.Mutex
	visible map[element.TopicPartition][]int64 // offsets of the records below full that are to be seen
	full    map[element.TopicPartition]int64   // above it every offset is a record
	next    map[element.TopicPartition]int64   // -1 while it is away
	wrong   []string
	count   int
	rnd     *rand.Rand // of deliveries
}

func (c *churn) take(ctx context.Context, d element.Delivery) error {
	c.mu.Lock()
	pause := c.rnd.IntN(20) == 0
	c.mu.Unlock()
	if pause {
		time.Sleep(time.Millisecond)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil { // removed while it was on its way
		return ctx.Err()
	}
	at := c.next[d.From]
	if at < 0 {
		c.wrong = append(c.wrong, fmt.Sprintf("%v is away and has a delivery up to %d", d.From, d.Next))
		return nil
	}
	var got []int64
	for _, r := range d.Records {
		got = append(got, r.Offset)
	}
	if want := c.between(d.From, at, d.Next); !slices.Equal(got, want) {
		c.wrong = append(c.wrong, fmt.Sprintf("%v from %d to %d: %v, not %v", d.From, at, d.Next, got, want))
	}
	c.next[d.From], c.count = d.Next, c.count+1
	return nil
}

func (c *churn) between(tp element.TopicPartition, from, to int64) []int64 {
	var want []int64
	for _, o := range c.visible[tp] {
		if o >= from && o < to {
			want = append(want, o)
		}
	}
	for o := max(from, c.full[tp]); o < to; o++ {
		want = append(want, o)
	}
	return want
}

// act does one thing to one of the partitions, which belong to one goroutine.
func (c *churn) act(t *testing.T, f *Fetcher, rnd *rand.Rand, mine []element.TopicPartition) {
	some := slices.Clone(mine)
	rnd.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	some = some[:1+rnd.IntN(len(some))]
	switch rnd.IntN(8) {
	case 0:
		f.Pause(some...)
	case 1:
		f.Resume(some...)
	case 2:
		time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
	case 3:
		c.remove(f, some)
	default:
		c.remove(f, some)
		c.add(t, f, rnd, some)
	}
	if rnd.IntN(2) == 0 {
		time.Sleep(time.Duration(rnd.IntN(25)) * time.Millisecond)
	}
}

func (c *churn) remove(f *Fetcher, tps []element.TopicPartition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.Remove(tps...)
	for _, tp := range tps {
		c.next[tp] = -1
	}
}

func (c *churn) add(t *testing.T, f *Fetcher, rnd *rand.Rand, tps []element.TopicPartition) {
	var ps []element.Position
	c.mu.Lock()
	for _, tp := range tps {
		p := element.Position{TopicPartition: tp, Offset: rnd.Int64N(c.full[tp] + 1), LeaderEpoch: -1}
		if rnd.IntN(3) == 0 {
			p.LeaderEpoch = 0
		}
		c.next[tp] = p.Offset
		ps = append(ps, p)
	}
	c.mu.Unlock()
	require.NoError(t, f.Add(ps...))
}

func TestPartitionsComeAndGoAtRandom(t *testing.T) {
	testbed.Alongside(t)
	seed := rand.Uint64()
	if s := os.Getenv("REPLAY_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("REPLAY_SEED=%d go test ./kafkasrc -run TestPartitionsComeAndGoAtRandom", seed)
	const partitions, goroutines, steps = 6, 2, 80
	b := newBed(t, partitions)
	cl := client(t, b.cfg)
	c := &churn{
		visible: map[element.TopicPartition][]int64{}, full: map[element.TopicPartition]int64{},
		next: map[element.TopicPartition]int64{}, rnd: rand.New(rand.NewPCG(seed, 0)),
	}
	b.mixed(t, c, cl, partitions)
	f, err := NewFetcher(FetcherConfig{Kafka: b.cfg, MaxPollRecords: 50, MaxWait: 20 * time.Millisecond, Logger: testLog()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, c.take) }()
	var flow, acts sync.WaitGroup
	flow.Go(func() { // records go on flowing
		for ctx.Err() == nil {
			cl.Produce(ctx, b.rec(rand.Int32N(partitions), "k", "live"), nil)
			time.Sleep(200 * time.Microsecond)
		}
	})
	all := make([][]element.TopicPartition, goroutines)
	for p := range int32(partitions) {
		c.next[b.tp(p)] = -1
		all[p%goroutines] = append(all[p%goroutines], b.tp(p))
	}
	for g, mine := range all {
		rnd := rand.New(rand.NewPCG(seed, uint64(g+1)))
		acts.Go(func() {
			for range steps {
				c.act(t, f, rnd, mine)
			}
			f.Resume(mine...)
			c.remove(f, mine)
			c.add(t, f, rnd, mine)
		})
	}
	acts.Wait()
	c.catchesUp(t, done)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	flow.Wait()
	f.Close()
	require.Empty(t, c.wrong)
}

// mixed fills partitions with plain records and with transactions, of which half are aborted.
func (b *bed) mixed(t *testing.T, c *churn, cl *kgo.Client, partitions int32) {
	t.Helper()
	tx := client(t, b.cfg, kgo.TransactionalID(b.Name("t")))
	var tps []element.TopicPartition
	for p := range partitions {
		tps = append(tps, b.tp(p))
	}
	for i := range 6 {
		b.numbered(t, cl, 40, 0, 1, 2, 3, 4, 5)
		require.NoError(t, tx.BeginTransaction())
		for p := range partitions {
			require.NoError(t, tx.ProduceSync(t.Context(), b.rec(p, "t", fmt.Sprint(i)), b.rec(p, "t", fmt.Sprint(i))).FirstErr())
		}
		require.NoError(t, tx.EndTransaction(t.Context(), i%2 == 0))
	}
	for _, tp := range tps {
		r := b.read(t, element.Position{TopicPartition: tp, LeaderEpoch: -1})
		r.reaches(t, tp, 6*(40+2+1))
		for _, rec := range r.records(tp) {
			c.visible[tp] = append(c.visible[tp], rec.Offset)
		}
		require.Len(t, c.visible[tp], 6*40+3*2)
		c.full[tp] = r.next(tp)
		r.Close()
	}
}

// catchesUp waits until everything from the last positions on has come.
func (c *churn) catchesUp(t *testing.T, done <-chan error) {
	t.Helper()
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for tp, next := range c.next {
			if next < c.full[tp] {
				return len(c.wrong) > 0 || len(done) > 0
			}
		}
		return true
	}, 20*time.Second, 5*time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Empty(t, c.wrong)
	require.Empty(t, done, "Run has ended")
	require.Greater(t, c.count, 100, "deliveries")
}
