package verify

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

const (
	readers        = 4        // partitions read at once
	fetchBytes     = 4 << 20  // of one answer; the partition's limit
	answerBytes    = 64 << 20 // the whole answer's limit: never the one that cuts, see fetch
	fetchWait      = 500      // ms; data below the end is there, so this only paces a wait for a lagging replica
	batchItems     = 2048
	maxRetryDelay  = time.Second
	defaultStalled = 30 * time.Second
)

// span is one partition between two offsets.
type span struct {
	partition  int32
	start, end int64 // end: the next offset after the last one to read
}

// batch is a run of decoded records of one partition.
type batch struct {
	items    []item
	read     int64 // records below the end, filtered ones included
	filtered int64
}

// scanner reads one topic between fixed offsets. It asks with fetch requests of its own instead of a consumer: only
// the answer itself tells how far it reaches when the last offsets are markers, aborted or compacted away.
type scanner struct {
	cl      *kgo.Client
	topic   string
	id      [16]byte
	spans   []span
	stalled time.Duration // without progress for so long, the read fails

	mu      sync.Mutex
	leaders map[int32]int32
	pool    sync.Pool
}

// newScanner fixes the ends of a topic at its last stable offsets. It refuses a topic whose beginning is gone.
func newScanner(ctx context.Context, cl *kgo.Client, topic string, id [16]byte, stalled time.Duration) (*scanner, error) {
	s := &scanner{cl: cl, topic: topic, id: id, stalled: stalled, leaders: map[int32]int32{}}
	s.pool.New = func() any { return &batch{items: make([]item, 0, batchItems)} }
	adm := kadm.NewClient(cl)
	ends, err := listed(ctx, cl, adm.ListCommittedOffsets, topic)
	if err != nil {
		return nil, kafka.Classify(err, "read the end of topic %s", topic)
	}
	starts, err := listed(ctx, cl, adm.ListStartOffsets, topic)
	if err != nil {
		return nil, kafka.Classify(err, "read the start of topic %s", topic)
	}
	for p, end := range ends[topic] {
		start := starts[topic][p].Offset
		if start > 0 {
			return nil, fault.Stopf(fault.OffsetGone, "topic %s/%d starts at offset %d: its beginning is gone, so counts from 1 cannot be checked", topic, p, start)
		}
		if end.Offset > start {
			s.spans = append(s.spans, span{partition: p, start: start, end: end.Offset})
		}
	}
	return s, s.refresh(ctx)
}

// listed asks for an offset of every partition of a topic. A leader that has died is waited for until another one has its place.
func listed(ctx context.Context, cl *kgo.Client, list func(context.Context, ...string) (kadm.ListedOffsets, error), topic string) (out kadm.ListedOffsets, err error) {
	err = kafka.Again(ctx, cl, func(ctx context.Context) (err error) {
		if out, err = list(ctx, topic); err == nil {
			err = out.Error()
		}
		return err
	})
	return out, err
}

// open gives the number of offsets past the ends now: what transactions not finished keep back, and what is new.
func (s *scanner) open(ctx context.Context) (int64, error) {
	high, err := listed(ctx, s.cl, kadm.NewClient(s.cl).ListEndOffsets, s.topic)
	if err != nil {
		return 0, kafka.Classify(err, "read the end of topic %s", s.topic)
	}
	stable := map[int32]int64{}
	for _, sp := range s.spans {
		stable[sp.partition] = sp.end
	}
	var n int64
	for p, o := range high[s.topic] {
		n += o.Offset - stable[p]
	}
	return n, nil
}

// refresh asks who leads the partitions.
func (s *scanner) refresh(ctx context.Context) error {
	details, err := kadm.NewClient(s.cl).ListTopics(ctx, s.topic)
	if err == nil {
		err = details[s.topic].Err
	}
	if err != nil {
		return kafka.Classify(err, "read the leaders of topic %s", s.topic)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, d := range details[s.topic].Partitions {
		s.leaders[p] = d.Leader
	}
	return nil
}

func (s *scanner) leader(partition int32) int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaders[partition]
}

// scan reads everything, decodes in the readers' goroutines and hands the batches to deliver in the caller's, those
// of one partition in offset order. The batch is valid during the call.
func (s *scanner) scan(ctx context.Context, newDecoder func() decoder, deliver func(*batch) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := make(chan *batch, 2*readers)
	var group errgroup.Group
	group.SetLimit(readers)
	done := make(chan error, 1)
	go func() {
		defer close(out)
		for _, sp := range s.spans {
			group.Go(func() error {
				err := s.readSpan(ctx, sp, newDecoder(), out)
				if err != nil {
					cancel()
				}
				return err
			})
		}
		done <- group.Wait()
	}()
	var failed error
	for b := range out {
		if failed == nil {
			if failed = deliver(b); failed != nil {
				cancel()
			}
		}
		b.items, b.read, b.filtered = b.items[:0], 0, 0
		s.pool.Put(b)
	}
	if err := <-done; failed == nil {
		failed = err
	}
	return failed
}

// readSpan reads one partition until the next offset is at its end.
func (s *scanner) readSpan(ctx context.Context, sp span, dec decoder, out chan<- *batch) error {
	next, lastMove := sp.start, time.Now()
	delay := 10 * time.Millisecond
	for next < sp.end {
		part, err := s.fetch(ctx, sp.partition, next)
		if err == nil {
			fp, after := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
				Offset: next, IsolationLevel: kgo.ReadCommitted(), Topic: s.topic, Partition: sp.partition,
			}, part, kgo.DefaultDecompressor(), nil)
			if fp.Err != nil {
				return fmt.Errorf("read %s/%d at offset %d: %w", s.topic, sp.partition, next, fp.Err)
			}
			if err := s.send(ctx, fp.Records, sp, dec, out); err != nil {
				return err
			}
			if after > next {
				next, lastMove, delay = after, time.Now(), 10*time.Millisecond
				continue
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if fatal := fatalFetch(err); fatal || time.Since(lastMove) > s.stalled {
			if err == nil {
				err = fmt.Errorf("no data for %v", s.stalled)
			}
			return s.fetchError(err, sp, next)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delay):
		}
		delay = min(2*delay, maxRetryDelay)
		_ = s.refresh(ctx) // a failure shows in the next fetch, and ends with the stall
	}
	return nil
}

// send decodes records below the end into batches.
func (s *scanner) send(ctx context.Context, recs []*kgo.Record, sp span, dec decoder, out chan<- *batch) error {
	for len(recs) > 0 {
		n := min(len(recs), batchItems)
		b := s.pool.Get().(*batch)
		for _, r := range recs[:n] {
			if r.Offset >= sp.end {
				continue
			}
			b.read++
			it := item{offset: r.Offset, partition: sp.partition}
			if !dec.decode(r, &it) {
				b.filtered++
				continue
			}
			if it.err != nil {
				it.rec = r
			}
			b.items = append(b.items, it)
		}
		select {
		case out <- b:
		case <-ctx.Done():
			return ctx.Err()
		}
		recs = recs[n:]
	}
	return nil
}

// fetch asks the leader once for the records from an offset on. Of the two limits the partition's must be the one that
// cuts the answer: kfake leaves out the list of aborted transactions when the other one does, and aborted records then
// pass for committed ones.
func (s *scanner) fetch(ctx context.Context, partition int32, offset int64) (*kmsg.FetchResponseTopicPartition, error) {
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = partition, offset, fetchBytes
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = s.topic, s.id
	t.Partitions = append(t.Partitions, p)
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.IsolationLevel = fetchWait, 1, answerBytes, 1
	req.SessionEpoch = -1
	req.Topics = append(req.Topics, t)
	kresp, err := s.cl.Broker(int(s.leader(partition))).RetriableRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := kresp.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, errors.New("the broker answered for another partition")
	}
	part := &resp.Topics[0].Partitions[0]
	return part, kerr.ErrorForCode(part.ErrorCode)
}

// fatalFetch tells errors of the broker that another try cannot cure. A lost connection can be cured.
func fatalFetch(err error) bool {
	var code *kerr.Error
	return errors.As(err, &code) && !code.Retriable
}

func (s *scanner) fetchError(err error, sp span, next int64) error {
	if errors.Is(err, kerr.OffsetOutOfRange) {
		return fault.Stopf(fault.OffsetGone, "topic %s/%d: records at offset %d were deleted while they were read", s.topic, sp.partition, next)
	}
	return kafka.Classify(err, "read %s/%d at offset %d of %d", s.topic, sp.partition, next, sp.end)
}
