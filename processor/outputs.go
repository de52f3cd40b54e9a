package processor

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/kafkasink"
	"github.com/millweir/millweir/txn"
)

// outputs is what the output topics were at the beginning of the attempt. They may be made anew while the service runs,
// with other partitions and other limits.
type outputs struct {
	mu      sync.Mutex
	topics  map[string]kafka.Topic
	most    map[string]int32 // the largest batch, of those topics that tell it
	request int32            // the largest request of the brokers; 0 when nothing is known
	warned  bool
}

// lookAtOutputs reads them. A topic that is gone may come back: the attempt fails and another one looks again. Of another
// cluster none is looked at.
func (s *service) lookAtOutputs(ctx context.Context) error {
	if err := kafka.RefuseOtherCluster(ctx, s.reads.cl, s.cluster.ID); err != nil {
		return err
	}
	names := outputTopics(s.plan)
	if len(names) == 0 {
		return nil
	}
	topics, err := kafka.DescribeTopics(ctx, s.reads.cl, names)
	if fault.CodeOf(err) == fault.UnknownTopic {
		return fault.Restartf(fault.UnknownTopic, "output: %w", err)
	}
	if err != nil {
		return fmt.Errorf("output: %w", err)
	}
	limits, err := kafka.ReadLimits(ctx, s.reads.cl, names) // it may not be allowed, and is not needed
	most := limits.Batch
	o := &s.outputs
	o.mu.Lock()
	defer o.mu.Unlock()
	o.topics = topics
	if err == nil {
		o.request = limits.Request
	}
	switch {
	case err == nil && (len(most) == len(topics) || o.warned):
		o.most = most
	case err == nil:
		o.most, o.warned = most, true
		s.log.Warn("the largest message of some output topics is not known, their brokers have to refuse it", "known", most)
	case ctx.Err() == nil && !o.warned:
		o.warned = true
		s.log.Warn("the largest message of the output topics is not known, their brokers have to refuse it", "error", err)
	}
	return ctx.Err()
}

// maxBytes gives the largest batch that a topic takes, if it is known.
func (o *outputs) maxBytes(topic string) (int32, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	most, known := o.most[topic]
	return most, known
}

// maxRequest gives the largest request of the brokers, 0 when it is not known.
func (o *outputs) maxRequest() int32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.request
}

// newOutflow makes what keeps output that is not flushed so small that a checkpoint can flush it in time.
func newOutflow(c Config, log *slog.Logger) (*kafkasink.Outflow, error) {
	timeout := c.CheckpointTimeout
	if c.DisabledCheckpoints {
		timeout = offsetsTimeout
	}
	return kafkasink.NewOutflow(kafkasink.OutflowConfig{Timeout: timeout, Most: max(c.HoldBackLimit, txn.DefaultMaxBufferedBytes), Logger: log})
}

func (s *service) newSink() (engine.Sink, error) {
	o := &s.outputs
	o.mu.Lock()
	targets := make([]kafkasink.Target, len(s.plan.Sinks))
	for i, out := range s.plan.Sinks {
		topic := o.topics[out.Topic]
		targets[i] = kafkasink.Target{Name: out.Name, Topic: out.Topic, TopicID: topic.ID, Partitions: topic.Partitions, MaxBytes: o.most[out.Topic]}
	}
	o.mu.Unlock()
	k, err := kafkasink.New(kafkasink.Config{Transactions: s.manager, Targets: targets, HoldBackLimit: s.cfg.HoldBackLimit, Outflow: s.outflow, NoHoldBack: s.cfg.loose(), Logger: s.log})
	if err != nil {
		return nil, err
	}
	return sink{k}, nil
}
