package engine

import (
	"context"
	"sync"
	"time"

	"github.com/millweir/millweir/element"
)

// stallLimit is how long one full inbox may hold up the others.
const stallLimit = 100 * time.Millisecond

// feeder hands deliveries from the source's goroutine to the tasks' inboxes and decides who waits when one is full.
//
// Pausing a partition makes the client drop what it has buffered of it and fetch it again, so under steady load, when
// every inbox is full, the feeder simply waits: nobody starves. Only when the wait has lasted stallLimit and another task
// has run dry does the full partition step aside: its delivery goes in above the limit and the partition is paused until
// half is worked off. (A partition without traffic is always dry, so without the time limit one busy partition beside
// an idle one would be paused, dropped and fetched again for ever.)
type feeder struct {
	mu      sync.Mutex
	inboxes map[element.TopicPartition]*inbox // guarded by mu: the loop changes it while the source delivers
	popped  chan struct{}                     // capacity 1; a task took a delivery
	// pause and resume are the source's.
	pause, resume func(tps ...element.TopicPartition)
}

func newFeeder(pause func(tps ...element.TopicPartition)) *feeder {
	return &feeder{inboxes: map[element.TopicPartition]*inbox{}, popped: make(chan struct{}, 1), pause: pause}
}

// add lets deliveries of a partition through to a task; remove ends that.
func (f *feeder) add(tp element.TopicPartition, q *inbox) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inboxes[tp] = q
}

func (f *feeder) remove(tp element.TopicPartition) {
	f.mu.Lock()
	delete(f.inboxes, tp)
	f.mu.Unlock()
	f.tookOne() // whoever waits for its inbox looks again
}

// deliver is the function given to Source.Run. It is called from one goroutine.
func (f *feeder) deliver(ctx context.Context, d element.Delivery) error {
	f.mu.Lock()
	q := f.inboxes[d.From]
	f.mu.Unlock()
	if q == nil {
		return nil // its task has left, and the source does not know it yet
	}
	if ctx.Err() != nil {
		// The partition was removed after the source had decided on this delivery. Should it be back already, the inbox
		// is that of its new stay.
		return ctx.Err()
	}
	if !q.full() {
		hand(q, d)
		return nil
	}
	stall := time.NewTimer(stallLimit)
	defer stall.Stop()
	for q.full() {
		select {
		case <-f.popped:
		case <-stall.C:
			if ctx.Err() == nil && f.otherStarves(d.From) {
				hand(q, d)
				f.pause(d.From)
				// Only now may the task resume it: were the mark set first, the task could drain the inbox and resume
				// between the mark and the pause, and nobody would ever resume again.
				q.setPaused()
				if ctx.Err() != nil {
					// The partition was removed meanwhile, and may be back: the pause is not meant for its new stay, whose task
					// does not know of it. That one cannot have been paused itself, for this is who would do it.
					f.resume(d.From)
				}
				return nil
			}
			stall.Reset(stallLimit)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	hand(q, d)
	return nil
}

func (f *feeder) otherStarves(full element.TopicPartition) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for tp, q := range f.inboxes {
		if tp != full && q.empty() {
			return true
		}
	}
	return false
}

// tookOne is called by a task after each delivery that it takes.
func (f *feeder) tookOne() {
	select {
	case f.popped <- struct{}{}:
	default:
	}
}

// hand puts a delivery into an inbox, and the end of its partition behind it.
func hand(q *inbox, d element.Delivery) {
	q.put(d)
	if d.Ended {
		q.end()
	}
}
