package kafkasrc

import (
	"maps"
	"math"

	"github.com/millweir/millweir/element"
)

// noEnd is the end of a partition that has none.
const noEnd = math.MaxInt64

// SetEnds names the offsets before which partitions end, beside those that were named before. It is for partitions that
// are added later. It may be called from any goroutine.
//
// No delivery goes beyond the end of its partition. The one that reaches it has Ended set, and a Next that is the end, or
// the position where that is behind the end already; then the partition is fetched no more, and what happens to
// it does not matter any more. The end is reached when something that lies at it, behind it or right before it has been
// fetched, be it a record or a marker: offsets without either, as compaction and aborted transactions leave them, are
// passed. An end that the log has not come to yet is waited for.
func (f *Fetcher) SetEnds(ends map[element.TopicPartition]int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(f.until, ends)
}

// newStream needs mu.
func (f *Fetcher) newStream(p element.Position) *stream {
	s := &stream{Position: p, next: p.Offset, end: noEnd}
	if end, ok := f.until[p.TopicPartition]; ok {
		s.end = end
	}
	return s
}

// finish stops the fetching of a partition that has reached its end. Removing it from the client would make that fetch
// again what it has of the others.
func (f *Fetcher) finish(s *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.ended = true
	if !s.removed { // else it may be back as another one
		f.cl.PauseFetchPartitions(byTopic([]element.TopicPartition{s.TopicPartition}))
	}
}
