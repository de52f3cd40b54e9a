package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/kafka"
)

// tailWait bounds the resolution of the measured recovery times.
const tailWait = 25 * time.Millisecond

// tail counts the committed totals as any read_committed consumer sees them.
type tail struct {
	cl *kgo.Client

	mu       sync.Mutex
	count    int64
	lastNew  time.Time
	floor    map[int32]int64 // records at or above are new
	onNew    chan time.Time  // gets the time of the first new one; nil = nobody waits
	lastFail error
}

func newTail(cfg kafka.Config, topic string) (*tail, error) {
	cl, err := kafka.NewClient(cfg, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(tailWait), kgo.FetchMinBytes(1))
	if err != nil {
		return nil, err
	}
	return &tail{cl: cl, lastNew: time.Now()}, nil
}

// run reads until ctx ends. Fetch errors are kept for a message and retried by the client.
func (t *tail) run(ctx context.Context) {
	defer t.cl.Close()
	for ctx.Err() == nil {
		fetches := t.cl.PollFetches(ctx)
		now := time.Now()
		t.mu.Lock()
		fetches.EachError(func(_ string, _ int32, err error) {
			if !errors.Is(err, context.Canceled) {
				t.lastFail = err
			}
		})
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			n := len(p.Records)
			if n == 0 {
				return
			}
			t.count += int64(n)
			t.lastNew = now
			if t.onNew != nil && p.Records[n-1].Offset >= t.floor[p.Partition] {
				t.onNew <- now
				t.onNew = nil
			}
		})
		t.mu.Unlock()
	}
}

// read gives the number of totals so far and when the last one came.
func (t *tail) read() (int64, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count, t.lastNew
}

func (t *tail) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lastFail
}

// expect gives a channel that gets the time of the first committed record at or above the topic's present end,
// records of open transactions included. Nothing that was written before, committed or not, lies there.
func (t *tail) expect(ctx context.Context, cl *kgo.Client, topic string) (<-chan time.Time, error) {
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return nil, fmt.Errorf("end of topic %s: %w", topic, err)
	}
	floor := map[int32]int64{}
	for p, o := range ends[topic] {
		floor[p] = o.Offset
	}
	ch := make(chan time.Time, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.floor, t.onNew = floor, ch
	return ch, nil
}
