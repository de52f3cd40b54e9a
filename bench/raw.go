package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// raw is the loop that Millweir is compared with: consume, count in a map per partition, produce, commit the offsets in
// the same transaction every interval. It keeps nothing: a restart would forget the counts.
func raw(ctx context.Context, brokers []string, in, out, group string, interval time.Duration) error {
	s, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(brokers...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(in), kgo.TransactionalID(group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DefaultProduceTopic(out), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MaxBufferedRecords(200_000), kgo.ProducerLinger(5*time.Millisecond), kgo.ProducerBatchMaxBytes(1<<20),
		kgo.FetchMaxPartitionBytes(2<<20), kgo.FetchMaxBytes(16<<20), kgo.TransactionTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer s.Close()
	counts := map[int32]*counter{}
	var failed atomic.Value
	promise := func(_ *kgo.Record, err error) {
		if err != nil {
			failed.Store(err)
		}
	}
	for ctx.Err() == nil {
		if err := s.Begin(); err != nil {
			return err
		}
		until, cancel := context.WithTimeout(ctx, interval)
		for until.Err() == nil {
			s.PollFetches(until).EachPartition(func(p kgo.FetchTopicPartition) {
				if counts[p.Partition] == nil {
					counts[p.Partition] = &counter{index: map[string]int32{}}
				}
				counts[p.Partition].process(ctx, s, p, promise)
			})
		}
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		ok, err := s.End(ctx, kgo.TransactionEndTry(failed.Load() == nil))
		if err != nil {
			return err
		}
		if err, bad := failed.Load().(error); bad || !ok {
			return errors.Join(fmt.Errorf("transaction aborted (committed %v)", ok), err)
		}
	}
	return nil
}

// counter is the state of one partition.
type counter struct {
	index  map[string]int32
	totals []total
}

func (c *counter) process(ctx context.Context, s *kgo.GroupTransactSession, p kgo.FetchTopicPartition, promise func(*kgo.Record, error)) {
	outs := make([]kgo.Record, len(p.Records))
	values := make([]byte, 16*len(p.Records))
	for i, r := range p.Records {
		j, ok := c.index[string(r.Key)]
		if !ok {
			j = int32(len(c.totals))
			c.totals = append(c.totals, total{})
			c.index[string(r.Key)] = j
		}
		t := &c.totals[j]
		t.n++
		t.sum += int64(binary.BigEndian.Uint64(r.Value))
		v := values[16*i : 16*i+16 : 16*i+16]
		binary.BigEndian.PutUint64(v, uint64(t.n))
		binary.BigEndian.PutUint64(v[8:], uint64(t.sum))
		o := &outs[i]
		o.Key, o.Value, o.Partition, o.Timestamp = r.Key, v, r.Partition, r.Timestamp
		s.Produce(ctx, o, promise)
	}
}
