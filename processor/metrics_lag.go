package processor

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/element"
)

const (
	// lagAge is how long an answer of the brokers serves further scrapes.
	lagAge = time.Second
	// lagTimeout bounds the questions to the brokers in one scrape.
	lagTimeout = 3 * time.Second
)

// lagReader asks the brokers how far the committed positions of the owned partitions are behind. It does so also between
// attempts, when the lag matters most.
type lagReader struct {
	s *service

	mu     sync.Mutex
	at     time.Time
	epoch  uint64 // of the assignment that offsets are of
	last   map[element.TopicPartition]lagOffsets
	errors int64
}

type lagOffsets struct {
	committed, stable, end int64
	started                bool // there is a committed offset
}

// collect gives the series of the partitions that are owned now.
func (l *lagReader) collect(ctx context.Context, out chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asg := l.s.group.Current()
	if l.last == nil || l.epoch != asg.Epoch || time.Since(l.at) > lagAge {
		ctx, cancel := context.WithTimeout(ctx, lagTimeout)
		defer cancel()
		last, err := l.read(ctx, asg.Partitions)
		if err != nil {
			l.errors++
			l.s.log.Debug("the lag is not known", "error", err)
		}
		l.last, l.epoch, l.at = last, asg.Epoch, time.Now()
	}
	counter(out, descLagErrors, float64(l.errors))
	// What was lost while the brokers answered is not shown.
	owned := l.s.group.Current()
	for tp, o := range l.last {
		if owned.Since[tp] == 0 || owned.Since[tp] != asg.Since[tp] {
			continue
		}
		labels := []string{tp.Topic, strconv.Itoa(int(tp.Partition))}
		gauge(out, descOpen, float64(max(0, o.end-o.stable)), labels...)
		if o.started {
			gauge(out, descCommitted, float64(o.committed), labels...)
			gauge(out, descLag, float64(max(0, o.stable-o.committed)), labels...)
		}
	}
}

// read asks for the committed positions first: a position that is committed meanwhile makes the lag too large for a scrape,
// never negative.
func (l *lagReader) read(ctx context.Context, tps []element.TopicPartition) (map[element.TopicPartition]lagOffsets, error) {
	out := map[element.TopicPartition]lagOffsets{}
	if len(tps) == 0 {
		return out, nil
	}
	var topics []string
	for _, tp := range tps {
		if !slices.Contains(topics, tp.Topic) {
			topics = append(topics, tp.Topic)
		}
	}
	adm := kadm.NewClient(l.s.reads.cl)
	committed, err := adm.FetchOffsetsForTopics(ctx, l.s.plan.Application, topics...)
	if err != nil {
		return nil, err
	}
	stable, err := adm.ListCommittedOffsets(ctx, topics...)
	if err != nil {
		return nil, err
	}
	ends, err := adm.ListEndOffsets(ctx, topics...)
	if err != nil {
		return nil, err
	}
	for _, tp := range tps {
		s, ok := stable.Lookup(tp.Topic, tp.Partition)
		e, eok := ends.Lookup(tp.Topic, tp.Partition)
		if !ok || !eok || s.Err != nil || e.Err != nil {
			continue
		}
		o := lagOffsets{stable: s.Offset, end: e.Offset}
		if c, ok := committed.Lookup(tp.Topic, tp.Partition); ok && c.Err == nil && c.At >= 0 {
			o.committed, o.started = c.At, true
		}
		out[tp] = o
	}
	return out, nil
}
