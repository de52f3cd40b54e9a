package kafkasrc

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

// firstFatal looks through the errors of a poll. What kgo retries by itself is logged; the first other one is classed
// and returned: its partition would not be fetched again.
func (f *Fetcher) firstFatal(ctx context.Context, fetches kgo.Fetches) error {
	var fatal error
	fetches.EachError(func(topic string, partition int32, err error) {
		if fatal != nil {
			return
		}
		tp := element.TopicPartition{Topic: topic, Partition: partition}
		if !f.concerns(tp) {
			f.log.Debug("error of a partition that is not read any more", "partition", tp.String(), "err", err)
			return
		}
		if s := f.open[tp]; s != nil && errors.Is(err, kerr.OffsetOutOfRange) {
			if fatal = f.offsetGone(ctx, s, err); s.ctx.Err() != nil {
				fatal = nil // removed while the broker was asked for more about it
			}
			return
		}
		if fatal = f.classify(tp, err); fatal == nil {
			f.log.Warn("fetch failed, trying again", "partition", tp.String(), "err", err)
		}
	})
	return fatal
}

// concerns says whether an error is about what is read now. The client keeps an error until the next poll, also when
// the partition has been removed in between. It reports those of a topic as of partition -1, those of an answer
// without a topic.
func (f *Fetcher) concerns(tp element.TopicPartition) bool {
	switch {
	case tp.Topic == "":
		return true
	case tp.Partition >= 0:
		s := f.open[tp]
		return s != nil && s.ctx.Err() == nil && !s.ended
	}
	for _, s := range f.waiting {
		if s.Topic == tp.Topic {
			return true
		}
	}
	for open, s := range f.open {
		if open.Topic == tp.Topic && !s.ended {
			return true
		}
	}
	return false
}

// asked is the position that a partition was asked at.
func (f *Fetcher) asked(tp element.TopicPartition) int64 {
	if s := f.open[tp]; s != nil {
		return s.next
	}
	return -1
}

func (f *Fetcher) classify(tp element.TopicPartition, err error) error {
	var loss *kgo.ErrDataLoss
	var large *kgo.ErrDecompressTooLarge
	switch {
	case errors.As(err, &loss):
		return fault.Stopf(fault.OffsetGone,
			"%v: the position is %d but the log was cut back to %d (records that were read and committed are lost on the broker): start from a savepoint with an earlier position, or begin anew, after a reset or under another application name: %w",
			tp, loss.ConsumedTo, loss.ResetTo, err)
	case errors.As(err, &large):
		return fault.Stopf(fault.BadRecord, "%v offset %d: the batch is larger than the limit when unpacked: %w", tp, large.Offset, err)
	case errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.InconsistentTopicID):
		return fault.Restartf(fault.UnknownTopic, "topic %s was deleted, or deleted and created again, while it was read: %w", tp.Topic, err)
	case kafka.IsDenied(err):
		return kafka.Classify(err, "read %v", tp)
	case kafka.IsRetriable(err) && !kafka.IsUndialled(err): // the client has tried all brokers when it tells of those
		return nil
	}
	return kafka.Classify(err, "read %v from offset %d", tp, f.asked(tp))
}
