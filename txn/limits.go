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
	// clientExtra is how much larger than it is on the wire kgo takes a batch for at most: it counts the length before it.
	clientExtra = 4
	// clientLeast is how much larger than it is on the wire kgo takes a batch for at least. It adds the length of the batch's length
	// before the record that is to be added, as the broker's version has it: one byte for a batch that is empty or has a few bytes,
	// more for larger ones, and four where it has not produced to the broker yet. So with a limit that is larger by one
	// a record that is exactly as large as its topic takes goes out, and no batch is larger than that, which the broker would refuse.
	clientLeast = 1
	// mostRequest is the largest request that is sent, whatever the brokers take: their default socket.request.max.bytes.
	mostRequest = 100 << 20
)

// limits are what one client goes by. kgo asks once for each partition, so that a client whose limits have changed
// meanwhile has to be replaced.
type limits struct {
	cfg     Config
	request int32
	cuts    *cuts

	mu      sync.Mutex
	asked   map[string]int32 // under mu: what kgo was told, by topic
	learned *failure         // under mu: the last one that learn was called for
}

func (c Config) newLimits() *limits {
	return &limits{cfg: c, request: c.requestMaxBytes(), cuts: newCuts(), asked: make(map[string]int32)}
}

// of gives the largest batch that kgo makes for a topic.
func (l *limits) of(topic string) int64 {
	l.mu.Lock()
	most, ok := l.asked[topic]
	l.mu.Unlock()
	if !ok {
		most = l.cfg.batchMaxBytes(topic)
	}
	return int64(most)
}

// hope says of a refusal for the size that a new attempt may be taken: with smaller batches, or, for a record that the client
// itself has refused, larger ones.
func (l *limits) hope(f *failure) bool {
	most := int64(l.cfg.mostBatch())
	if told := l.cfg.told(f.topic); told > 0 {
		most = min(most, told)
		if f.alone > most {
			return false // where batches were made for more, the limit was lowered meanwhile
		}
	}
	return l.cfg.refusals.hope(f.topic, f.alone, l.of(f.topic), most)
}

// learn has what comes after know of a refusal for the size.
func (l *limits) learn(f *failure) {
	if f == nil || !isTooLarge(f.err) || !l.hope(f) {
		return
	}
	l.mu.Lock()
	again := l.learned == f
	l.learned = f
	l.mu.Unlock()
	if !again {
		l.cfg.refusals.learn(f.topic, f.alone, l.of(f.topic))
	}
}

// batch gives what kgo is to go by, so that the largest batch for a topic is what it may be, and notes that.
func (l *limits) batch(topic string) int32 {
	most := l.cfg.batchMaxBytes(topic)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked[topic] = most
	return most + clientLeast
}

// aloneFor gives the smallest limit with which the client makes a batch of a record, whatever the version of its broker.
func aloneFor(r *kgo.Record) int64 { return BatchSize(r) + clientExtra - clientLeast }

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
		if l.cfg.batchMaxBytes(topic) != was {
			return true
		}
	}
	return false
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

// told gives the limit that a topic is known to have, 0 when it is not known.
func (c Config) told(topic string) int64 {
	if c.TopicMaxBytes != nil && topic != "" { // kgo asks for "" to check the option
		if n, ok := c.TopicMaxBytes(topic); ok {
			return int64(max(1, n))
		}
	}
	return 0
}

// mostBatch is what no batch is above, whatever its topic takes.
func (c Config) mostBatch() int32 {
	return int32(min(int64(c.MaxBufferedBytes), int64(c.requestMaxBytes()-kafka.RequestOverhead)))
}

// batchMaxBytes is the largest batch for a topic.
func (c Config) batchMaxBytes(topic string) int32 {
	most := c.refusals.limit(topic, c.told(topic), int64(c.BatchMaxBytes))
	return int32(max(leastBatch, min(most, int64(c.mostBatch()))))
}

// Payload is the bytes of key, value and headers.
func Payload(r *kgo.Record) int64 {
	n := int64(len(r.Key) + len(r.Value))
	for i := range r.Headers {
		n += int64(len(r.Headers[i].Key) + len(r.Headers[i].Value))
	}
	return n
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
