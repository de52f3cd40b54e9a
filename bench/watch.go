package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// sample says how many records were visible at a time.
type sample struct {
	at time.Time
	n  int64
}

// watcher counts the committed records of a topic as a read_committed reader sees them, from batch headers alone: it
// costs next to nothing beside the process that is measured.
type watcher struct {
	cl      *kgo.Client
	topic   string
	id      [16]byte
	leaders map[int32]int32

	mu      sync.Mutex
	samples []sample
	total   int64
}

func newWatcher(ctx context.Context, cl *kgo.Client, topic string) (*watcher, error) {
	td, err := kadm.NewClient(cl).ListTopics(ctx, topic)
	if err != nil {
		return nil, err
	}
	w := &watcher{cl: cl, topic: topic, id: td[topic].ID, leaders: map[int32]int32{}}
	for p, d := range td[topic].Partitions {
		w.leaders[p] = d.Leader
	}
	return w, td[topic].Err
}

// run fetches until ctx ends or want records are visible.
func (w *watcher) run(ctx context.Context, want int64) error {
	at := map[int32]int64{}
	for ctx.Err() == nil {
		grew := int64(0)
		for p, leader := range w.leaders {
			n, next, err := w.fetch(ctx, leader, p, at[p])
			if kerr.IsRetriable(err) {
				continue // a topic that was just made has no leader yet
			}
			if err != nil {
				return fmt.Errorf("watch %s/%d at %d: %w", w.topic, p, at[p], err)
			}
			at[p] = next
			grew += n
		}
		if grew > 0 {
			w.mu.Lock()
			w.total += grew
			w.samples = append(w.samples, sample{time.Now(), w.total})
			total := w.total
			w.mu.Unlock()
			if total >= want {
				return nil
			}
			continue
		}
		time.Sleep(10 * time.Millisecond)
	}
	return ctx.Err()
}

// fetch reads one answer of one partition and counts the records in it that are committed.
func (w *watcher) fetch(ctx context.Context, leader, partition int32, from int64) (n, next int64, err error) {
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = partition, from, 16<<20
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = w.topic, w.id
	t.Partitions = append(t.Partitions, p)
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.IsolationLevel, req.SessionEpoch = 0, 0, 64<<20, 1, -1
	req.Topics = append(req.Topics, t)
	kresp, err := w.cl.Broker(int(leader)).RetriableRequest(ctx, req)
	if err != nil {
		return 0, from, err
	}
	resp := kresp.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return 0, from, err
	}
	if len(resp.Topics) == 0 || len(resp.Topics[0].Partitions) == 0 {
		return 0, from, nil
	}
	part := &resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(part.ErrorCode); err != nil {
		return 0, from, err
	}
	n, next = countCommitted(part)
	return n, max(next, from), nil
}

// countCommitted walks the batch headers of an answer, leaving out control batches and aborted ones.
func countCommitted(part *kmsg.FetchResponseTopicPartition) (n, next int64) {
	aborted := map[int64][]int64{} // first offsets by producer
	for _, a := range part.AbortedTransactions {
		aborted[a.ProducerID] = append(aborted[a.ProducerID], a.FirstOffset)
	}
	for b := part.RecordBatches; len(b) >= 61; {
		size := 12 + int(int32(binary.BigEndian.Uint32(b[8:])))
		if size < 61 || size > len(b) {
			break // the last batch of an answer may be cut
		}
		first := int64(binary.BigEndian.Uint64(b))
		attrs := binary.BigEndian.Uint16(b[21:])
		last := first + int64(int32(binary.BigEndian.Uint32(b[23:])))
		producer := int64(binary.BigEndian.Uint64(b[43:]))
		starts := aborted[producer]
		open := len(starts) > 0 && starts[0] <= first
		switch {
		case attrs&0x20 != 0: // a marker: it ends what it aborts
			if open {
				aborted[producer] = starts[1:]
			}
		case attrs&0x10 == 0 || !open:
			n += int64(int32(binary.BigEndian.Uint32(b[57:])))
		}
		next = last + 1
		b = b[size:]
	}
	return n, next
}

// rate gives records per second between two shares of the total, and the time from start to the first record.
func (w *watcher) rate(from, to float64, start time.Time) (perSecond float64, first time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.samples) == 0 {
		return 0, 0
	}
	first = w.samples[0].at.Sub(start)
	var a, b sample
	for _, s := range w.samples {
		if a.n == 0 && float64(s.n) >= from*float64(w.total) {
			a = s
		}
		if float64(s.n) <= to*float64(w.total) || b.n == 0 {
			b = s
		}
	}
	if !b.at.After(a.at) {
		b = w.samples[len(w.samples)-1]
	}
	if d := b.at.Sub(a.at).Seconds(); d > 0 {
		perSecond = float64(b.n-a.n) / d
	}
	return perSecond, first
}
