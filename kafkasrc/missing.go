package kafkasrc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

// Missing says what is done when a position is below the first offset that the log still has.
type Missing uint8

// The ways. FailOnMissing is the default.
const (
	// FailOnMissing ends Run with class Stop and code OffsetGone.
	FailOnMissing Missing = iota
	// EarliestOnMissing goes on at the first offset that is there.
	EarliestOnMissing
	// LatestOnMissing goes on at the last stable offset.
	LatestOnMissing
)

const (
	rangeLookup = 5 * time.Second // bound of asking for the range that goes into a message
	// What begins together is looked at together before the first record, for so long at most: it is only a check made
	// early, an answer to a fetch says the same later.
	earlyLookup = 2 * time.Second
	earlyWait   = 2 * time.Second // for the metadata of all partitions that begin together
	maxAgain    = 3
)

// lookEarly finds positions that are gone before anything is fetched: while nothing is open, so that an application which
// is not to go on has written nothing when it ends. It closes no gap for good, retention may come a moment later: see
// offsetGone. ready are what is to be opened.
func (f *Fetcher) lookEarly(ctx context.Context, ready []*stream) error {
	var tps []element.TopicPartition
	for _, s := range ready {
		tps = append(tps, s.TopicPartition)
	}
	bounded, cancel := context.WithTimeout(ctx, earlyLookup)
	defer cancel()
	first, err := kafka.StartOffsets(bounded, f.cl, tps)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f.log.Warn("the first offsets of partitions could not be read in advance", "err", err)
		return nil
	}
	for _, s := range ready {
		if s.Offset >= first[s.TopicPartition].Offset || s.Offset >= s.end { // what has ended misses nothing
			continue
		}
		end, err := kafka.EndOffsets(bounded, f.cl, []element.TopicPartition{s.TopicPartition})
		if err != nil {
			return err
		}
		if err := f.missing(ctx, s, first[s.TopicPartition].Offset, end[s.TopicPartition].Offset, nil); err != nil {
			return err
		}
	}
	return nil
}

// missing goes on behind the gap from a stream's position to first, or gives the error. The new position is told to
// the receiver, so that it is committed also when no record follows. Where the receiver has not been told of a gap before, and
// more is gone by now, the position is behind that one.
func (f *Fetcher) missing(ctx context.Context, s *stream, first, end int64, cause error) error {
	from, to := s.next, first
	if s.jump {
		from = s.Offset
	}
	switch f.cfg.OnMissing[s.Topic] {
	case EarliestOnMissing:
	case LatestOnMissing:
		stable, err := kafka.StableEndOffsets(ctx, f.cl, []element.TopicPartition{s.TopicPartition})
		if err != nil {
			return err
		}
		to = max(first, stable[s.TopicPartition].Offset)
	default:
		return gone(s.TopicPartition, from, fmt.Sprintf("it has offsets %d to %d: %d records were deleted by retention or by hand before they were read; what is gone cannot be processed: "+
			"to accept that, let the source go on at the earliest or latest offset (on-missing), or start under another application name; else put the records back", first, end, first-from), cause)
	}
	to = min(to, s.end) // what lies behind it is none of this run's
	f.log.Warn("the position is not in the log any more, going on behind the gap", "partition", s.TopicPartition.String(),
		"position", from, "first", first, "goes_on_at", to, "lost", min(first, to)-from, "passed_over", max(0, to-first))
	f.mu.Lock()
	f.lost[s.TopicPartition] += to - from
	f.mu.Unlock()
	if f.cfg.OnLost != nil {
		f.cfg.OnLost(s.TopicPartition, from, to)
	}
	s.jump = true
	s.Offset, s.LeaderEpoch = to, -1
	return nil
}

// Lost says how many offsets of a partition were passed over because they were gone, and for LatestOnMissing also those
// that were there behind them, since the Fetcher was made.
func (f *Fetcher) Lost(tp element.TopicPartition) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost[tp]
}

// offsetGone deals with a position that the broker says is not in the log: it goes on behind the gap, or says what was
// asked for, what there is and what to do.
func (f *Fetcher) offsetGone(ctx context.Context, s *stream, cause error) error {
	bounded, cancel := context.WithTimeout(ctx, rangeLookup)
	defer cancel()
	one := []element.TopicPartition{s.TopicPartition}
	start, serr := kafka.StartOffsets(bounded, f.cl, one)
	end, eerr := kafka.EndOffsets(bounded, f.cl, one)
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	if serr != nil || eerr != nil { // whether it is gone is not known: see the default below
		return fmt.Errorf("%v: offset %d is not in the log, says the broker (%v), and what is there could not be read: %w", s.TopicPartition, s.next, cause, errors.Join(serr, eerr))
	}
	first, last := start[s.TopicPartition].Offset, end[s.TopicPartition].Offset
	switch {
	case s.next < first:
		if err := f.missing(ctx, s, first, last, cause); err != nil {
			return err
		}
	case s.next > last:
		return gone(s.TopicPartition, s.next, fmt.Sprintf("it has offsets %d to %d: the log was cut back, or the topic was created again; start from a savepoint with an earlier position, or begin anew, after a reset or under another application name", first, last), cause)
	case s.again == maxAgain:
		return gone(s.TopicPartition, s.next, fmt.Sprintf("says the broker, which also says that it has offsets %d to %d", first, last), cause)
	default: // it is there by now, or again: a new leader may have answered
		s.again++
		f.log.Warn("a position was not in the log and now is, asking again", "partition", s.TopicPartition.String(), "position", s.next, "first", first, "end", last)
		s.Offset, s.LeaderEpoch = s.next, -1
	}
	f.reopen(s)
	return nil
}

func gone(tp element.TopicPartition, asked int64, why string, cause error) error {
	text := fmt.Sprintf("topic %s partition %d: offset %d is not in the log, %s", tp.Topic, tp.Partition, asked, why)
	if cause == nil {
		return fault.Stopf(fault.OffsetGone, "%s", text)
	}
	return fault.Stopf(fault.OffsetGone, "%s: %w", text, cause)
}

// reopen lets a stream whose partition the client does not fetch any more begin anew at its Offset.
func (f *Fetcher) reopen(s *stream) {
	delete(f.open, s.TopicPartition)
	f.cl.RemoveConsumePartitions(byTopic([]element.TopicPartition{s.TopicPartition}))
	f.stale = true
	s.since, s.late = time.Now(), false
	f.waiting = append(f.waiting, s)
}
