package kafkasrc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

// Until the client has the metadata of a topic it is asked again after so long, at first and at most.
const (
	metadataPollFirst = 2 * time.Millisecond
	metadataPollMost  = 50 * time.Millisecond
	metadataAgain     = time.Second     // then the cluster is asked again
	metadataLate      = 5 * time.Second // then it is logged that a partition is waited for
)

// noWait makes the client give what it has.
var noWait context.Context

// stream is one partition from one Add until its Remove. A partition that comes back is another stream.
type stream struct {
	element.Position
	next    int64              // the position that comes next; Run's goroutine only
	ctx     context.Context    // of its deliveries; nil until Run opens it
	cancel  context.CancelFunc // ends ctx; under the Fetcher's mu
	end     int64              // what lies there or behind is not read; noEnd for none
	ended   bool               // it was reached; written by Run's goroutine under the Fetcher's mu
	jump    bool               // Offset is behind a gap, which the receiver is to be told; Run's goroutine only
	again   int                // times that the broker did not have this position and then did; Run's goroutine only
	removed bool               // under the Fetcher's mu
	taken   bool               // Run knows it; under the Fetcher's mu
	since   time.Time          // waiting since; Run's goroutine only
	late    bool               // that was logged
}

// Add begins to deliver partitions, each from its position. It may be called from any goroutine, before and while Run
// runs, and does not wait: Run does it between two polls, after everything that was asked for before. The Deliver that
// is at work has returned by then, so nothing that an earlier stay of the partition had is delivered after the first
// delivery of the new one. The first records come when the broker has answered what was asked before, MaxWait at most.
//
// A TopicID that is not zero is checked before the first fetch; Run returns what is wrong with it, as with an offset
// that the log does not have. The error here is that of a wrong call (a partition that is there already, a negative
// offset), and then none of the positions is taken, or ErrFetcherClosed.
func (f *Fetcher) Add(positions ...element.Position) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return ErrFetcherClosed
	}
	added := make(map[element.TopicPartition]*stream, len(positions))
	for _, p := range positions {
		switch {
		case p.Topic == "" || p.Partition < 0:
			return fmt.Errorf("%v is no partition", p.TopicPartition)
		case p.Offset < 0:
			return fmt.Errorf("%v: position %d is negative", p.TopicPartition, p.Offset)
		case added[p.TopicPartition] != nil:
			return fmt.Errorf("%v is named twice", p.TopicPartition)
		case f.live[p.TopicPartition] != nil:
			return fmt.Errorf("%v is read already", p.TopicPartition)
		}
		added[p.TopicPartition] = f.newStream(p)
	}
	for _, p := range positions {
		f.live[p.TopicPartition] = added[p.TopicPartition]
		f.adds = append(f.adds, added[p.TopicPartition])
	}
	if len(f.live) > f.most {
		f.most = 2 * len(f.live)
		f.cl.UpdateFetchMaxBytes(f.cfg.share(f.most))
	}
	f.interrupt()
	return nil
}

// Remove ends the delivery of partitions; one that is not there is left out. It may be called from any goroutine and
// does not wait: no Deliver of them begins after Remove has returned, except one that Run has just decided on, and
// the ctx of that one has ended. Whether they were paused is forgotten.
func (f *Fetcher) Remove(tps ...element.TopicPartition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var paused []element.TopicPartition
	for _, tp := range tps {
		s := f.live[tp]
		if s == nil {
			continue
		}
		delete(f.live, tp)
		delete(f.ends, tp)
		paused = append(paused, tp)
		s.removed = true
		if s.cancel != nil {
			s.cancel()
		}
		if s.taken {
			f.gone = append(f.gone, s)
		}
	}
	if len(paused) == 0 {
		return
	}
	f.adds = keep(f.adds)
	f.cl.ResumeFetchPartitions(byTopic(paused)) // kgo keeps the mark of a partition that is not consumed
	f.interrupt()
}

// Pause stops fetching partitions; what the client already holds of them is dropped and fetched again after Resume,
// nothing is skipped. One that is not there is left out. It may be called from any goroutine.
func (f *Fetcher) Pause(tps ...element.TopicPartition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var there []element.TopicPartition
	for _, tp := range tps {
		if f.live[tp] != nil {
			there = append(there, tp)
		}
	}
	if len(there) > 0 { // kgo takes an empty call for a question
		f.cl.PauseFetchPartitions(byTopic(there))
	}
}

// Resume takes Pause back. What has reached its end stays as it is.
func (f *Fetcher) Resume(tps ...element.TopicPartition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var there []element.TopicPartition
	for _, tp := range tps {
		if s := f.live[tp]; s == nil || !s.ended {
			there = append(there, tp)
		}
	}
	if len(there) > 0 {
		f.cl.ResumeFetchPartitions(byTopic(there))
	}
}

// interrupt ends a poll that waits. It needs mu.
func (f *Fetcher) interrupt() {
	if f.wake != nil {
		f.wake()
	}
}

// keep gives the streams that have not been removed, in their order. It needs mu.
func keep(all []*stream) []*stream {
	kept := all[:0]
	for _, s := range all {
		if !s.removed {
			kept = append(kept, s)
		}
	}
	clear(all[len(kept):])
	return kept
}

// take does what Remove asked for and takes note of what Add did. All removals are done before anything is opened, so
// a partition that comes back is opened after its earlier stay has ended.
func (f *Fetcher) take() {
	f.mu.Lock()
	adds, gone := f.adds, f.gone
	f.adds, f.gone = nil, nil
	for _, s := range adds {
		s.taken = true
	}
	f.waiting = keep(append(f.waiting, adds...))
	f.mu.Unlock()
	var closing []element.TopicPartition
	for _, s := range gone {
		if f.open[s.TopicPartition] == s {
			delete(f.open, s.TopicPartition)
			closing = append(closing, s.TopicPartition)
		}
	}
	if len(closing) > 0 {
		// This drops what the client has of them, and what it has of the others is fetched again.
		f.cl.RemoveConsumePartitions(byTopic(closing))
		f.stale = true
	}
	for _, s := range adds {
		s.since = time.Now()
	}
}

// settle opens what waits and can be opened.
func (f *Fetcher) settle(ctx context.Context) error {
	if len(f.waiting) == 0 {
		return nil
	}
	f.introduce()
	if err := f.checkTopics(ctx); err != nil {
		return err
	}
	if f.stale { // an error of an earlier stay would be taken for one of the new
		return nil
	}
	var ready, rest []*stream
	for _, s := range f.waiting {
		if f.known(s.TopicPartition) {
			ready = append(ready, s)
		} else {
			f.tellLate(s)
			rest = append(rest, s)
		}
	}
	if len(rest) > 0 && time.Since(f.learnt) >= metadataAgain {
		f.learnt = time.Now()
		f.cl.ForceMetadataRefresh() // by itself it looks seldom for partitions that were added to a topic
	}
	if len(f.open) == 0 {
		if len(rest) > 0 && time.Since(f.waiting[0].since) < earlyWait {
			return nil
		}
		if err := f.lookEarly(ctx, ready); err != nil {
			return err
		}
	}
	f.waiting = rest
	at := make(map[string]map[int32]kgo.Offset)
	for _, s := range ready {
		if !f.begin(ctx, s) {
			continue
		}
		f.open[s.TopicPartition] = s
		reached := s.Offset >= s.end
		if s.jump || reached {
			s.jump = false
			f.notices = append(f.notices, notice{s, element.Delivery{From: s.TopicPartition, Next: s.Offset, LeaderEpoch: -1, Ended: reached}})
		}
		if reached { // there is nothing to fetch
			f.finish(s)
			continue
		}
		if at[s.Topic] == nil {
			at[s.Topic] = make(map[int32]kgo.Offset)
		}
		at[s.Topic][s.Partition] = kgo.NewOffset().At(s.Offset).WithEpoch(s.LeaderEpoch)
	}
	f.cl.AddConsumePartitions(at)
	return nil
}

// begin gives a stream the context of its deliveries. It is false when the stream was removed meanwhile.
func (f *Fetcher) begin(ctx context.Context, s *stream) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.removed {
		return false
	}
	if s.ctx == nil { // else it goes on behind a gap
		s.ctx, s.cancel = context.WithCancel(ctx)
	}
	return true
}

// introduce makes the client load the metadata of topics that are new to it. There is no call for that alone, so a
// partition is added and removed again at once; the offset does not matter, its epoch keeps the client from listing
// offsets.
func (f *Fetcher) introduce() {
	for _, s := range f.waiting {
		if f.told[s.Topic] {
			continue
		}
		f.told[s.Topic] = true
		f.learnt = time.Now()
		f.cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{s.Topic: {s.Partition: kgo.NewOffset().At(0).WithEpoch(0)}})
		f.cl.RemoveConsumePartitions(map[string][]int32{s.Topic: {s.Partition}})
		f.stale = true
	}
}

// checkTopics compares the ids of topics with those that the positions were taken of, once for each topic and id. Later
// the client sees to it: it never takes a topic of another id for one that it knows.
func (f *Fetcher) checkTopics(ctx context.Context) error {
	ids := make(map[string]element.TopicID)
	var names []string
	for _, s := range f.waiting {
		if s.TopicID.IsZero() || s.TopicID == f.checked[s.Topic] {
			continue
		}
		if id, seen := ids[s.Topic]; seen && id != s.TopicID {
			return fault.Stopf(fault.HandleMismatch, "topic %s was deleted and created again between two positions: one is of id %v, another of %v", s.Topic, id, s.TopicID)
		} else if !seen {
			ids[s.Topic] = s.TopicID
			names = append(names, s.Topic)
		}
	}
	if len(names) == 0 {
		return nil
	}
	known, err := kafka.DescribeTopics(ctx, f.cl, names)
	if err != nil {
		return err
	}
	for _, name := range names {
		if got := known[name].ID; got != ids[name] {
			return fault.Stopf(fault.HandleMismatch, "topic %s was deleted and created again since the position was taken: its id is %v, not %v", name, got, ids[name])
		}
		f.checked[name] = ids[name]
	}
	return nil
}

// known says that the client has the metadata of a partition. One that is added before is not read from the offset
// that was asked for but, should that be outside of the log, from the nearest end of it, without an error.
func (f *Fetcher) known(tp element.TopicPartition) bool {
	leader, _, _ := f.cl.PartitionLeader(tp.Topic, tp.Partition)
	return leader != -1
}

func (f *Fetcher) tellLate(s *stream) {
	if !s.late && time.Since(s.since) > metadataLate {
		s.late = true
		f.log.Warn("waiting for the metadata of a partition", "partition", s.TopicPartition.String())
	}
}

// poll waits for records. It is ended, with nothing taken, when Add or Remove ask for something, or when it is time to
// look for metadata again.
func (f *Fetcher) poll(ctx context.Context) (fetches kgo.Fetches, ended bool) {
	if f.stale {
		f.stale = false
		return f.cl.PollRecords(noWait, f.cfg.MaxPollRecords), false
	}
	f.mu.Lock()
	if len(f.adds)+len(f.gone) > 0 {
		f.mu.Unlock()
		return nil, true
	}
	if f.polling == nil || f.polling.Err() != nil {
		f.polling, f.wake = context.WithCancel(ctx)
	}
	wait := f.polling
	f.mu.Unlock()
	if len(f.waiting) > 0 {
		tick := min(metadataPollMost, max(metadataPollFirst, time.Since(f.waiting[0].since)/4))
		bounded, cancel := context.WithTimeout(wait, tick)
		defer cancel()
		wait = bounded
	}
	fetches = f.cl.PollRecords(wait, f.cfg.MaxPollRecords)
	err := fetches.Err0()
	return fetches, wait.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}
