package txn

import (
	"maps"
	"math/bits"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/kafka"
)

const (
	// leastBatch is the least limit that kgo takes.
	leastBatch = 512
	// mostRequest is the largest request that is sent, whatever the brokers take: their default socket.request.max.bytes.
	mostRequest = 100 << 20
)

// limits are what one client goes by. kgo asks once for each partition, so that a client whose limits have changed
// meanwhile has to be replaced.
type limits struct {
	cfg     Config
	request int32
	cuts    *cuts

	mu    sync.Mutex
	asked map[string]int32 // under mu: what kgo was told, by topic
}

func (c Config) newLimits() *limits {
	return &limits{cfg: c, request: c.requestMaxBytes(), cuts: newCuts(), asked: make(map[string]int32)}
}

// batch gives the largest batch for a topic, and notes it.
func (l *limits) batch(topic string) int32 {
	most, _ := l.cfg.batchMaxBytes(topic)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked[topic] = most
	return most
}

// topics gives those that were produced to.
func (l *limits) topics() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := make([]string, 0, len(l.asked))
	for topic := range l.asked {
		if topic != "" {
			names = append(names, topic)
		}
	}
	return names
}

// outdated says that other limits hold now, or may.
func (l *limits) outdated() bool {
	if l.request != l.cfg.requestMaxBytes() || l.cuts.err() != nil {
		return true
	}
	l.mu.Lock()
	asked := maps.Clone(l.asked)
	l.mu.Unlock()
	for topic, was := range asked {
		if most, _ := l.cfg.batchMaxBytes(topic); most != was {
			return true
		}
	}
	return false
}

// takes says that the topic is known to have taken the batch that consists of one record only, when its limit was read.
func (l *limits) takes(topic string, size int64) bool {
	most, known := l.cfg.batchMaxBytes(topic)
	return known && size <= int64(most)
}

// requestMaxBytes is the largest request.
func (c Config) requestMaxBytes() int32 {
	if c.RequestMaxBytes != nil {
		if most := c.RequestMaxBytes(); most > 0 {
			return min(mostRequest, max(most, kafka.RequestOverhead+leastBatch))
		}
	}
	return mostRequest
}

// batchMaxBytes is the largest batch for a topic; known says that it is the topic's own limit.
func (c Config) batchMaxBytes(topic string) (most int32, known bool) {
	most = c.BatchMaxBytes
	if c.TopicMaxBytes != nil && topic != "" { // kgo asks for "" to check the option
		if n, ok := c.TopicMaxBytes(topic); ok {
			most, known = int32(min(int64(n), int64(c.MaxBufferedBytes))), n >= leastBatch
		}
	}
	return max(leastBatch, min(most, c.requestMaxBytes()-kafka.RequestOverhead)), known
}

// BatchSize is the size in bytes on the wire of a batch that holds nothing but r, before compression.
func BatchSize(r *kgo.Record) int64 {
	const overhead = 61 + // of the batch
		3 // attributes and the deltas of time and offset, which are 0
	n := varintSize(len(r.Key)) + varintSize(len(r.Value)) + varintSize(len(r.Headers)) + int64(len(r.Key)+len(r.Value))
	for i := range r.Headers {
		h := &r.Headers[i]
		n += varintSize(len(h.Key)) + varintSize(len(h.Value)) + int64(len(h.Key)+len(h.Value))
	}
	return overhead + n + varintSize(int(n)+3)
}

// varintSize is the size of a length that is written as a zigzag varint.
func varintSize(n int) int64 {
	return int64(bits.Len64(uint64(n)<<1|1)+6) / 7
}
