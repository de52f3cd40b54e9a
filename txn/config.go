package txn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/kafka"
)

// The defaults of Config.
const (
	DefaultSlots              = 3
	DefaultTimeout            = time.Minute
	DefaultEndTimeout         = 20 * time.Second
	DefaultLinger             = 2 * time.Millisecond
	DefaultMaxBufferedRecords = 200_000
	DefaultMaxBufferedBytes   = 64 << 20
	DefaultBatchMaxBytes      = 1 << 20
	maxSlots                  = 64
)

// The pauses between two sends of the offsets, when the broker asks for a little patience.
const (
	retryFirst = 2 * time.Millisecond
	retryMost  = 20 * time.Millisecond
)

// FenceFunc reads member id, generation and static instance id of the consumer group's member, under the check that
// every partition of the offsets is still owned since its ownership epoch. It is called right before each send of
// offsets; an error means that the positions may belong to another member by now.
type FenceFunc func(offsets []checkpoint.OffsetCommit) (member string, generation int32, instanceID string, err error)

// Config says whose transactions a Manager makes and how.
type Config struct {
	Kafka kafka.Config
	// Application and Instance make the transactional ids, <application>-<instance>-<slot>. Two processes must never
	// use the same pair: they fence each other.
	Application string
	Instance    string
	// Group is the consumer group whose offsets are committed.
	Group string
	// Incarnation goes into the marker records, beside the checkpoint's id.
	Incarnation element.Incarnation
	// Fence reads the group's fence; required.
	Fence FenceFunc

	// Timeout is the transaction timeout, 0 = one minute. Above the broker's transaction.max.timeout.ms, Init fails.
	Timeout time.Duration
	// EndTimeout bounds EndTransaction, which no other context ends; 0 = 20 s.
	EndTimeout time.Duration
	// Patience, when it ends, ends every wait for the broker in Seal, Commit and Abort, EndTransaction included: a process
	// that is being stopped must not wait for a broker that gives no answer. What was open is left to the next Init. nil =
	// it never ends.
	Patience context.Context
	// Slots is the number of transactional ids to rotate over, 0 = 3, at most 64.
	Slots int
	// MarkerTopic takes a record for each checkpoint without output; empty = <application>-checkpoints. Init creates it
	// (one partition, compacted) unless it is there.
	MarkerTopic     string
	MarkerPartition int32

	// Compression of the produced batches, by preference; empty = none.
	Compression []kgo.CompressionCodec
	// Linger is how long a batch waits for more records, 0 = 2 ms.
	Linger time.Duration
	// MaxBufferedRecords and MaxBufferedBytes bound what a client holds unacknowledged; Produce blocks above. 0 =
	// 200,000 and 64 MiB.
	MaxBufferedRecords int
	MaxBufferedBytes   int
	// BatchMaxBytes is the largest batch for topics that TopicMaxBytes does not know, until their brokers refuse one or a larger
	// record comes; 0 = 1 MiB.
	BatchMaxBytes int32
	// TopicMaxBytes gives the largest batch that a topic takes, in bytes before compression, where it is known. It may be
	// nil, and is called from any goroutine. Nothing is larger than MaxBufferedBytes.
	TopicMaxBytes func(topic string) (most int32, known bool)

	// RequestMaxBytes gives the largest request in bytes that the brokers take, 0 where that is not known. It may be nil, and
	// is called from any goroutine. What it and TopicMaxBytes say at an Init holds until the next one.
	RequestMaxBytes func() int32

	// Logger, nil = slog.Default().
	Logger *slog.Logger
	Hooks  Hooks

	refusals *refusals // of the Manager or Plain that it belongs to
}

// Hooks are called with the control calls' lock held: they must be quick and must not call the Manager.
type Hooks struct {
	// Ended is called at the end of every transaction.
	Ended func(Stats)
	// Retried is called before offsets are sent again.
	Retried func(slot int)
	// Initialised is called when a slot got a new client.
	Initialised func(slot int)
}

// Stats describes one transaction that has ended.
type Stats struct {
	Slot       int
	Checkpoint element.CheckpointID // 0 when it was never sealed, or for start positions
	// State is Committed, Aborted, Unconfirmed or Fenced.
	State State
	// Records is the number of records produced, the marker included.
	Records int64
	Marker  bool
	// Flush, Offsets and End are how long the steps took.
	Flush, Offsets, End time.Duration
	// Retries is how often the offsets were sent again.
	Retries int
}

// TransactionalID gives the id of a slot.
func TransactionalID(application, instance string, slot int) string {
	return application + "-" + instance + "-" + strconv.Itoa(slot)
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Application == "" || c.Instance == "" || c.Group == "":
		return c, errors.New("txn: application, instance and group must be named")
	case c.Fence == nil:
		return c, errors.New("txn: no fence is given")
	case c.Slots < 0 || c.Slots > maxSlots:
		return c, fmt.Errorf("txn: %d slots, 1 to %d are possible", c.Slots, maxSlots)
	case c.Timeout < 0 || c.EndTimeout < 0 || c.Linger < 0 || c.MaxBufferedRecords < 0 || c.MaxBufferedBytes < 0 || c.BatchMaxBytes < 0:
		return c, errors.New("txn: a limit is negative")
	}
	orDefault(&c.Slots, DefaultSlots)
	orDefault(&c.Timeout, DefaultTimeout)
	orDefault(&c.EndTimeout, DefaultEndTimeout)
	orDefault(&c.Linger, DefaultLinger)
	orDefault(&c.MaxBufferedRecords, DefaultMaxBufferedRecords)
	orDefault(&c.MaxBufferedBytes, DefaultMaxBufferedBytes)
	orDefault(&c.BatchMaxBytes, DefaultBatchMaxBytes)
	orDefault(&c.MarkerTopic, c.Application+"-checkpoints")
	c.refusals = new(refusals)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Patience == nil {
		c.Patience = context.Background()
	}
	if len(c.Compression) == 0 {
		c.Compression = []kgo.CompressionCodec{kgo.NoCompression()}
	}
	return c, nil
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (c Config) clientOpts(id string, l *limits) []kgo.Opt {
	return append(c.produceOpts(l), kgo.TransactionalID(id), kgo.TransactionTimeout(c.Timeout))
}

// produceOpts are those of every client that produces.
func (c Config) produceOpts(l *limits) []kgo.Opt {
	return []kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		// kgo changes the slice, and the slots make their clients at the same time.
		kgo.ProducerBatchCompression(slices.Clone(c.Compression)...),
		kgo.ProducerLinger(c.Linger),
		kgo.ProducerBatchMaxBytesFn(l.batch),
		kgo.BrokerMaxWriteBytes(l.request),
		kgo.WithHooks(l.cuts),
		kgo.MaxBufferedRecords(c.MaxBufferedRecords),
		kgo.MaxBufferedBytes(c.MaxBufferedBytes),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		// No RecordDeliveryTimeout: kgo counts it from the record's own timestamp, so old records would fail at once. Seal
		// bounds the wait.
	}
}
