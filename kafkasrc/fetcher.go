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
	"github.com/millweir/millweir/internal/kafka"
)

// Defaults of a Fetcher.
const (
	DefaultFetchMaxBytes          = 16 << 20
	DefaultFetchMaxPartitionBytes = 2 << 20
	DefaultMaxPollRecords         = 10_000
	DefaultFetchMaxWait           = 500 * time.Millisecond

	minPartitionBytes = 64 << 10
	largestBatch      = 1 << 20  // a broker's default message.max.bytes, about
	mostBytes         = 64 << 20 // of one answer, unless MaxBytes says otherwise: the client reads none above kafka.MaxReadBytes
)

// ErrFetcherClosed is what Run returns when Close ended it.
var ErrFetcherClosed = errors.New("fetcher is closed")

// FetcherConfig says what to read from where.
type FetcherConfig struct {
	Kafka kafka.Config
	// Positions are the partitions to begin with and the offsets of their first records; there may be none. See Add.
	Positions []element.Position
	// MaxBytes bounds one answer of one broker, MaxPartitionBytes one partition in it; a single batch that is larger
	// is still fetched. One answer per broker is held ahead of what is delivered. 0 means 16 MiB, or 64 KiB for each
	// partition, but at most 64 MiB; and 2 MiB or the partition's share of MaxBytes, whichever is less. MaxBytes is at most
	// kafka.MaxReadBytes.
	MaxBytes, MaxPartitionBytes int32
	// MaxPollRecords bounds the records taken over at once; 0 means 10,000.
	MaxPollRecords int
	// MostPartitions is how many partitions are expected at most, those of later Adds included: MaxBytes is shared among
	// so many from the start. 0 means those of Positions. When more come after all, the shares are made anew.
	MostPartitions int
	// MaxWait is how long a broker waits for data before it answers with none; 0 means 500 ms.
	MaxWait time.Duration
	// Ends are the offsets before which partitions end; see SetEnds.
	Ends map[element.TopicPartition]int64
	// OnMissing says, by topic, what is done when a position is below the first offset of the log.
	OnMissing map[string]Missing
	// OnLost, when set, is called when a position goes on behind such a gap: what lies from one offset up to another will
	// not be read. It runs in Run's goroutine and must not block.
	OnLost func(tp element.TopicPartition, from, to int64)
	// Logger may be nil: slog.Default().
	Logger *slog.Logger
}

// share divides what one answer may hold among n partitions, so that all of them fit: a partition that comes last is
// then never left out of an answer that others have filled, and an answer is bounded by its partitions, never cut by
// its total. (The embedded broker loses the list of aborted transactions when the total cuts an answer, and aborted
// records would be read as committed ones.)
func (c *FetcherConfig) share(partitions int) (maxBytes, maxPartitionBytes int32) {
	n := int64(max(1, partitions))
	maxBytes, maxPartitionBytes = min(c.MaxBytes, kafka.MaxReadBytes), c.MaxPartitionBytes
	if maxBytes <= 0 {
		maxBytes = int32(min(mostBytes, max(DefaultFetchMaxBytes, n*minPartitionBytes+largestBatch)))
	}
	if maxPartitionBytes <= 0 {
		each := max(1, (int64(maxBytes)-largestBatch)/n)
		if c.MaxBytes > 0 {
			each = max(minPartitionBytes, each)
		}
		maxPartitionBytes = int32(min(DefaultFetchMaxPartitionBytes, each))
	}
	return maxBytes, maxPartitionBytes
}

// Deliver takes one delivery over. It may block; while it does, nothing more is taken from the client, which holds at
// most one answer per broker. ctx ends with that of Run and when the partition is removed: a Deliver that returns the
// error of ctx then is done with, and Run goes on.
type Deliver = func(ctx context.Context, d element.Delivery) error

// Fetcher reads committed records of partitions that come and go, each from a given position. One per attempt.
type Fetcher struct {
	cfg FetcherConfig
	log *slog.Logger
	cl  *kgo.Client

	// Run's goroutine only:
	open    map[element.TopicPartition]*stream // what the client fetches
	waiting []*stream                          // what is to be opened, in the order of Add
	told    map[string]bool                    // topics that the client knows of
	learnt  time.Time                          // when the client was made to ask for metadata last
	checked map[string]element.TopicID         // ids that were found right
	polling context.Context                    // of the polls until one is ended by wake
	notices []notice                           // what is to be delivered before the next poll
	stale   bool                               // the client may still hold errors of partitions that were removed

	mu     sync.Mutex
	live   map[element.TopicPartition]*stream // by Add and Remove, whether Run has come to it or not
	adds   []*stream                          // not yet seen by Run
	gone   []*stream                          // removed after Run saw them
	most   int                                // the number of partitions that an answer is shared among
	wake   context.CancelFunc                 // ends polling; nil before the first poll
	ends   map[element.TopicPartition]int64   // high watermarks, as of the last answer that had something
	lost   map[element.TopicPartition]int64   // see Lost
	until  map[element.TopicPartition]int64   // see SetEnds
	closed bool

	running   sync.Mutex // held by Run, so that Close can wait for it
	closeOnce sync.Once
}

// NewFetcher builds the client; it does not connect. The error is that of a wrong configuration.
func NewFetcher(cfg FetcherConfig) (*Fetcher, error) {
	if cfg.MaxPollRecords <= 0 {
		cfg.MaxPollRecords = DefaultMaxPollRecords
	}
	cfg.MaxWait = orDefault(cfg.MaxWait, DefaultFetchMaxWait)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	f := &Fetcher{
		cfg: cfg, log: cfg.Logger,
		open:    make(map[element.TopicPartition]*stream),
		told:    make(map[string]bool),
		checked: make(map[string]element.TopicID),
		live:    make(map[element.TopicPartition]*stream),
		most:    max(1, cfg.MostPartitions, len(cfg.Positions)),
		ends:    make(map[element.TopicPartition]int64),
		lost:    make(map[element.TopicPartition]int64),
		until:   make(map[element.TopicPartition]int64),
	}
	maxBytes, maxPartitionBytes := cfg.share(f.most)
	cl, err := kafka.NewClient(cfg.Kafka,
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxBytes(maxBytes),
		kgo.FetchMaxPartitionBytes(maxPartitionBytes),
		kgo.FetchMaxWait(cfg.MaxWait),
	)
	if err != nil {
		return nil, fmt.Errorf("client of the fetcher: %w", err)
	}
	f.cl = cl
	f.SetEnds(cfg.Ends)
	if err := f.Add(cfg.Positions...); err != nil {
		cl.Close()
		return nil, err
	}
	return f, nil
}

// Run fetches and delivers until ctx ends, deliver fails, or an error comes that kgo does not retry by itself. It
// returns the error of ctx or of deliver as it is, ErrFetcherClosed after Close, else a classed one; never nil. It
// may be called once.
func (f *Fetcher) Run(parent context.Context, deliver Deliver) error {
	f.running.Lock()
	defer f.running.Unlock()
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	for {
		if err := parent.Err(); err != nil {
			return err
		}
		f.take()
		if err := f.settle(ctx); errors.Is(err, kgo.ErrClientClosed) {
			return ErrFetcherClosed
		} else if err != nil {
			return err
		}
		if err := f.deliverNotices(ctx, deliver); err != nil {
			return err
		}
		fetches, ended := f.poll(ctx)
		if err := parent.Err(); err != nil {
			return err
		}
		if fetches.IsClientClosed() {
			return ErrFetcherClosed
		}
		if ended {
			continue
		}
		if err := f.firstFatal(ctx, fetches); err != nil {
			return err
		}
		if err := f.deliverAll(ctx, fetches, deliver); err != nil {
			return err
		}
	}
}

// deliverAll hands over one Delivery for each partition that has something. What was polled of a partition that has
// been removed meanwhile is dropped.
func (f *Fetcher) deliverAll(ctx context.Context, fetches kgo.Fetches, deliver Deliver) error {
	for i := range fetches {
		for j := range fetches[i].Topics {
			t := &fetches[i].Topics[j]
			for k := range t.Partitions {
				p := &t.Partitions[k]
				s := f.open[element.TopicPartition{Topic: t.Topic, Partition: p.Partition}]
				if len(p.Records) == 0 || s == nil || s.ctx.Err() != nil || s.ended {
					continue
				}
				d := convert(s.TopicPartition, s.next, s.end, p.Records)
				f.noteEnd(s, p.HighWatermark)
				if d.Next <= s.next && !d.Ended {
					continue
				}
				if d.Ended {
					f.finish(s)
				}
				if err := hand(ctx, s, d, deliver); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// hand delivers something of a stream. That the stream is removed meanwhile is no error.
func hand(ctx context.Context, s *stream, d element.Delivery, deliver Deliver) error {
	err := deliver(s.ctx, d)
	switch {
	case err == nil:
		s.next, s.again = d.Next, 0
	case ctx.Err() == nil && s.ctx.Err() != nil && errors.Is(err, context.Canceled):
	default:
		return err
	}
	return nil
}

// notice is a delivery that does not come from a fetch.
type notice struct {
	s *stream
	d element.Delivery
}

func (f *Fetcher) deliverNotices(ctx context.Context, deliver Deliver) error {
	notices := f.notices
	f.notices = nil
	for _, n := range notices {
		if n.s.ctx.Err() != nil {
			continue
		}
		if err := hand(ctx, n.s, n.d, deliver); err != nil {
			return err
		}
	}
	return nil
}

// End gives the high watermark of a partition as the last answer with data had it; ok is false before the first one.
func (f *Fetcher) End(tp element.TopicPartition) (end int64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	end, ok = f.ends[tp]
	return end, ok
}

func (f *Fetcher) noteEnd(s *stream, end int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.live[s.TopicPartition] == s {
		f.ends[s.TopicPartition] = end
	}
}

// Close ends the client and waits for Run, which must not be blocked in deliver for longer than its ctx. It may be
// called more than once.
func (f *Fetcher) Close() {
	f.closeOnce.Do(func() {
		f.mu.Lock()
		f.closed = true
		f.mu.Unlock()
		f.cl.Close()
	})
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
