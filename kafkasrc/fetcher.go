package kafkasrc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

// Defaults of a Fetcher.
const (
	DefaultFetchMaxBytes          = 16 << 20
	DefaultFetchMaxPartitionBytes = 2 << 20
	DefaultMaxPollRecords         = 10_000
	DefaultFetchMaxWait           = 500 * time.Millisecond

	minPartitionBytes = 64 << 10
	largestBatch      = 1 << 20 // a broker's default message.max.bytes, about
)

// ErrFetcherClosed is what Run returns when Close ended it.
var ErrFetcherClosed = errors.New("fetcher is closed")

// FetcherConfig says what to read from where.
type FetcherConfig struct {
	Kafka kafka.Config
	// Positions are the partitions and the offsets of their first records. A TopicID that is not zero is checked
	// before the first fetch.
	Positions []element.Position
	// MaxBytes bounds one answer of one broker, MaxPartitionBytes one partition in it; a single batch that is larger
	// is still fetched. One answer per broker is held ahead of what is delivered. 0 means 16 MiB, and 2 MiB or the
	// partition's share of MaxBytes, whichever is less.
	MaxBytes, MaxPartitionBytes int32
	// MaxPollRecords bounds the records taken over at once; 0 means 10,000.
	MaxPollRecords int
	// MostPartitions is how many partitions it may ever have, by Add too; 0 means those of Positions.
	MostPartitions int
	// MaxWait is how long a broker waits for data before it answers with none; 0 means 500 ms.
	MaxWait time.Duration
	// Logger may be nil: slog.Default().
	Logger *slog.Logger
}

// share divides what one answer may hold among the partitions, so that all of them fit: a partition that comes last is
// then never left out of an answer that others have filled, and an answer is bounded by its partitions, never cut by
// its total. (The embedded broker loses the list of aborted transactions when the total cuts an answer, and aborted
// records would be read as committed ones.)
func (c *FetcherConfig) share() {
	n := int32(max(1, len(c.Positions), c.MostPartitions))
	if c.MaxBytes <= 0 {
		c.MaxBytes = max(DefaultFetchMaxBytes, n*minPartitionBytes+largestBatch)
	}
	if c.MaxPartitionBytes <= 0 {
		c.MaxPartitionBytes = min(DefaultFetchMaxPartitionBytes, max(minPartitionBytes, (c.MaxBytes-largestBatch)/n))
	}
}

// Deliver takes one delivery over. It may block; while it does, nothing more is taken from the client, which holds at
// most one answer per broker.
type Deliver = func(ctx context.Context, d element.Delivery) error

// Fetcher reads committed records of fixed partitions from given positions. One per attempt.
type Fetcher struct {
	cfg FetcherConfig
	log *slog.Logger
	cl  *kgo.Client

	next map[element.TopicPartition]int64 // the position that comes next; Run's goroutine only

	mu   sync.Mutex
	todo []change                         // what Add and Remove asked for and Run has not done yet
	ends map[element.TopicPartition]int64 // high watermarks, as of the last answer that had something

	running   sync.Mutex // held by Run, so that Close can wait for it
	closeOnce sync.Once
}

// NewFetcher builds the client; it does not connect. The error is that of a wrong configuration.
func NewFetcher(cfg FetcherConfig) (*Fetcher, error) {
	cfg.share()
	if cfg.MaxPollRecords <= 0 {
		cfg.MaxPollRecords = DefaultMaxPollRecords
	}
	cfg.MaxWait = orDefault(cfg.MaxWait, DefaultFetchMaxWait)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	f := &Fetcher{
		cfg: cfg, log: cfg.Logger,
		next: make(map[element.TopicPartition]int64, len(cfg.Positions)),
		ends: make(map[element.TopicPartition]int64, len(cfg.Positions)),
	}
	at := make(map[string]map[int32]kgo.Offset)
	for _, p := range cfg.Positions {
		if p.Offset < 0 {
			return nil, fmt.Errorf("%v: position %d is negative", p.TopicPartition, p.Offset)
		}
		if _, twice := f.next[p.TopicPartition]; twice {
			return nil, fmt.Errorf("%v is named twice", p.TopicPartition)
		}
		f.next[p.TopicPartition] = p.Offset
		if at[p.Topic] == nil {
			at[p.Topic] = make(map[int32]kgo.Offset)
		}
		at[p.Topic][p.Partition] = kgo.NewOffset().At(p.Offset).WithEpoch(p.LeaderEpoch)
	}
	opts := []kgo.Opt{
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxBytes(cfg.MaxBytes),
		kgo.FetchMaxPartitionBytes(cfg.MaxPartitionBytes),
		kgo.FetchMaxWait(cfg.MaxWait),
	}
	if len(at) > 0 {
		opts = append(opts, kgo.ConsumePartitions(at))
	}
	cl, err := kafka.NewClient(cfg.Kafka, opts...)
	if err != nil {
		return nil, fmt.Errorf("client of the fetcher: %w", err)
	}
	f.cl = cl
	return f, nil
}

// Run fetches and delivers until ctx ends, deliver fails, or an error comes that kgo does not retry by itself. It
// returns the error of ctx or of deliver as it is, ErrFetcherClosed after Close, else a classed one; never nil. It
// may be called once.
func (f *Fetcher) Run(ctx context.Context, deliver Deliver) error {
	f.running.Lock()
	defer f.running.Unlock()
	if err := f.checkTopics(ctx); errors.Is(err, kgo.ErrClientClosed) {
		return ErrFetcherClosed
	} else if err != nil {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		f.change()
		fetches := f.cl.PollRecords(ctx, f.cfg.MaxPollRecords)
		if err := ctx.Err(); err != nil {
			return err
		}
		if fetches.IsClientClosed() {
			return ErrFetcherClosed
		}
		if err := f.firstFatal(ctx, fetches); err != nil {
			return err
		}
		if err := f.deliverAll(ctx, fetches, deliver); err != nil {
			return err
		}
	}
}

// deliverAll hands over one Delivery for each partition that has something.
func (f *Fetcher) deliverAll(ctx context.Context, fetches kgo.Fetches, deliver Deliver) error {
	for i := range fetches {
		for j := range fetches[i].Topics {
			t := &fetches[i].Topics[j]
			for k := range t.Partitions {
				p := &t.Partitions[k]
				if len(p.Records) == 0 {
					continue
				}
				tp := element.TopicPartition{Topic: t.Topic, Partition: p.Partition}
				from, ours := f.next[tp]
				if !ours {
					continue
				}
				d := convert(tp, from, p.Records)
				f.noteEnd(tp, p.HighWatermark)
				if d.Next <= from {
					continue
				}
				if err := deliver(ctx, d); err != nil {
					return err
				}
				f.next[tp] = d.Next
			}
		}
	}
	return nil
}

// checkTopics compares the ids of the topics with those that the positions were taken of.
func (f *Fetcher) checkTopics(ctx context.Context) error {
	ids := make(map[string]element.TopicID)
	var names []string
	for _, p := range f.cfg.Positions {
		if _, seen := ids[p.Topic]; !seen && !p.TopicID.IsZero() {
			ids[p.Topic] = p.TopicID
			names = append(names, p.Topic)
		}
	}
	known, err := kafka.DescribeTopics(ctx, f.cl, names)
	if err != nil {
		return err
	}
	for _, name := range names {
		if got := known[name].ID; got != ids[name] {
			return fault.Stopf(fault.HandleMismatch, "topic %s was deleted and created again since the position was taken: its id is %v, not %v", name, got, ids[name])
		}
	}
	return nil
}

// change is one call of Add or Remove.
type change struct {
	add    []element.Position
	remove []element.TopicPartition
}

// Add begins to deliver further partitions.
func (f *Fetcher) Add(positions ...element.Position) error {
	for _, p := range positions {
		if p.Offset < 0 {
			return fmt.Errorf("%v: position %d is negative", p.TopicPartition, p.Offset)
		}
	}
	f.ask(change{add: positions})
	return nil
}

// Remove ends the delivery of partitions.
func (f *Fetcher) Remove(tps ...element.TopicPartition) { f.ask(change{remove: tps}) }

func (f *Fetcher) ask(c change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.todo = append(f.todo, c)
}

// change does what was asked for, between two polls: so nothing that was polled before a Remove is delivered after it.
func (f *Fetcher) change() {
	f.mu.Lock()
	todo := f.todo
	f.todo = nil
	f.mu.Unlock()
	for _, c := range todo {
		f.cl.RemoveConsumePartitions(byTopic(c.remove))
		for _, tp := range c.remove {
			delete(f.next, tp)
		}
		at := make(map[string]map[int32]kgo.Offset)
		for _, p := range c.add {
			f.next[p.TopicPartition] = p.Offset
			if at[p.Topic] == nil {
				at[p.Topic] = make(map[int32]kgo.Offset)
			}
			at[p.Topic][p.Partition] = kgo.NewOffset().At(p.Offset).WithEpoch(p.LeaderEpoch)
		}
		f.cl.AddConsumePartitions(at)
	}
}

// Pause stops fetching partitions; what the client already holds of them is dropped and fetched again after Resume,
// nothing is skipped. It may be called from any goroutine.
func (f *Fetcher) Pause(tps ...element.TopicPartition) {
	if len(tps) > 0 {
		f.cl.PauseFetchPartitions(byTopic(tps))
	}
}

// Resume takes Pause back.
func (f *Fetcher) Resume(tps ...element.TopicPartition) {
	if len(tps) > 0 {
		f.cl.ResumeFetchPartitions(byTopic(tps))
	}
}

// End gives the high watermark of a partition as the last answer with data had it; ok is false before the first one.
func (f *Fetcher) End(tp element.TopicPartition) (end int64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	end, ok = f.ends[tp]
	return end, ok
}

func (f *Fetcher) noteEnd(tp element.TopicPartition, end int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ends[tp] = end
}

// Close ends the client and waits for Run, which must not be blocked in deliver for longer than its ctx. It may be
// called more than once.
func (f *Fetcher) Close() {
	f.closeOnce.Do(f.cl.Close)
	f.running.Lock() // Run holds it
	defer f.running.Unlock()
}

func byTopic(tps []element.TopicPartition) map[string][]int32 {
	m := make(map[string][]int32)
	for _, tp := range tps {
		m[tp.Topic] = append(m[tp.Topic], tp.Partition)
	}
	return m
}
