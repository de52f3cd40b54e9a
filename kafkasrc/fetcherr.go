package kafkasrc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

const rangeLookup = 5 * time.Second // bound of asking for the range that goes into a message

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
		if fatal = f.classify(ctx, tp, err); !f.concerns(tp) {
			fatal = nil // removed while the broker was asked for more about it
		} else if fatal == nil {
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
		return s != nil && s.ctx.Err() == nil
	}
	for _, s := range f.waiting {
		if s.Topic == tp.Topic {
			return true
		}
	}
	for open := range f.open {
		if open.Topic == tp.Topic {
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

func (f *Fetcher) classify(ctx context.Context, tp element.TopicPartition, err error) error {
	var loss *kgo.ErrDataLoss
	var large *kgo.ErrDecompressTooLarge
	switch {
	case errors.Is(err, kerr.OffsetOutOfRange):
		return f.offsetGone(ctx, tp, err)
	case errors.As(err, &loss):
		return fault.Stopf(fault.OffsetGone,
			"%v: the position is %d but the log was cut back to %d (records that were read and committed are lost on the broker): restore an older checkpoint, or start the application anew: %w",
			tp, loss.ConsumedTo, loss.ResetTo, err)
	case errors.As(err, &large):
		return fault.Stopf(fault.BadRecord, "%v offset %d: the batch is larger than the limit when unpacked: %w", tp, large.Offset, err)
	case errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.InconsistentTopicID):
		return fault.Restartf(fault.UnknownTopic, "topic %s was deleted, or deleted and created again, while it was read: %w", tp.Topic, err)
	case kafka.IsDenied(err):
		return kafka.Classify(err, "read %v", tp)
	case kafka.IsRetriable(err):
		return nil
	}
	return kafka.Classify(err, "read %v from offset %d", tp, f.asked(tp))
}

// offsetGone says what was asked for, what there is and what to do.
func (f *Fetcher) offsetGone(ctx context.Context, tp element.TopicPartition, err error) error {
	asked := f.asked(tp)
	available := "its offsets could not be read"
	bounded, cancel := context.WithTimeout(ctx, rangeLookup)
	defer cancel()
	one := []element.TopicPartition{tp}
	start, serr := kafka.StartOffsets(bounded, f.cl, one)
	end, eerr := kafka.EndOffsets(bounded, f.cl, one)
	why := ""
	if serr == nil && eerr == nil {
		available = fmt.Sprintf("it has offsets %d to %d", start[tp].Offset, end[tp].Offset)
		switch {
		case asked < start[tp].Offset:
			why = fmt.Sprintf(": %d records were deleted by retention or by hand before they were read", start[tp].Offset-asked)
		case asked > end[tp].Offset:
			why = ": the log was cut back, or the topic was created again"
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return fault.Stopf(fault.OffsetGone,
		"topic %s partition %d: offset %d is not in the log, %s%s; what is gone cannot be processed: to accept that, start under another application name, else put the records back: %w",
		tp.Topic, tp.Partition, asked, available, why, err)
}
