package kafkasink

import (
	"context"
	"fmt"
	"slices"

	"github.com/millweir/millweir/element"
)

// span is a range of checkpoints, both ends included.
type span struct{ first, last element.CheckpointID }

// Resume takes back the barriers of the checkpoints from first to last, which were given up before their commit began and
// are the newest ones: what the writers hold behind them follows what lies before them. When an older checkpoint is in
// flight, that is the queue behind its barrier; when there is none, it is the transaction which is still open, reopened
// if it was sealed for one of them. Their barriers that are still under way mean nothing from here on.
//
// Writes and newer barriers may go on meanwhile; each task's order stays. A Seal that runs is waited for, and must not
// be ended for this: one that fails takes the transaction with it, and then Resume fails as well. An error means that the
// attempt cannot go on. It blocks while the client's buffers are full, as long as ctx lives.
func (s *Sink) Resume(ctx context.Context, first, last element.CheckpointID) error {
	if err := s.lockDrain(ctx); err != nil {
		return err
	}
	defer s.unlockDrain()
	s.takeBack(span{first, last})
	older := s.sealed != 0 && s.sealed < first
	writers := s.sorted()
	for _, w := range writers {
		w.merge(first, last)
	}
	if older {
		return nil // that one's Release sends on what is held
	}
	if s.broken != nil && !s.cfg.NoHoldBack { // without transactions it is for them to say what cannot be gone on with
		return fmt.Errorf("checkpoint %d is taken back, but its transaction is lost: %w", first, s.broken)
	}
	// What is handed to the client is sent only as long as its context lives, so that must outlive this call.
	sending, giveUp := context.WithCancel(s.over)
	defer context.AfterFunc(ctx, giveUp)()
	if s.sealed != 0 {
		if err := s.cfg.Transactions.Reopen(sending); err != nil {
			giveUp()
			if s.over.Err() != nil {
				return ErrDiscarded
			}
			return fmt.Errorf("take back checkpoint %d: %w", s.sealed, err)
		}
		s.sealed = 0
	}
	for _, w := range writers {
		if err := w.drain(sending, first); err != nil {
			giveUp()
			return err
		}
	}
	return nil
}

// takenBack says that a checkpoint was given up.
func (s *Sink) takenBack(id element.CheckpointID) bool {
	back := s.back.Load()
	return back != nil && slices.ContainsFunc(*back, func(b span) bool { return b.first <= id && id <= b.last })
}

// takeBack notes a span. It must come before the writers are looked at: a Barrier under a writer's lock either sees it,
// or has left a queue for merge to find.
func (s *Sink) takeBack(b span) {
	var spans []span
	if old := s.back.Load(); old != nil {
		spans = slices.Clone(*old)
	}
	if n := len(spans); n > 0 && spans[n-1].last+1 >= b.first && spans[n-1].first <= b.first {
		spans[n-1].last = max(spans[n-1].last, b.last)
	} else {
		spans = append(spans, b)
	}
	s.back.Store(&spans)
}

// forgetBack drops the spans before a checkpoint whose barrier every writer has passed: nothing older can come.
func (s *Sink) forgetBack(id element.CheckpointID) {
	if old := s.back.Load(); old != nil {
		spans := slices.DeleteFunc(slices.Clone(*old), func(b span) bool { return b.last < id })
		s.back.Store(&spans)
	}
}

// merge joins the queues of barriers from first to last with the one before them. Without one they become a queue of
// their own, named first, for drain: its order with the Writes that go on is that of a release.
func (w *Writer) merge(first, last element.CheckpointID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	from := 0
	for from < len(w.queues) && w.queues[from].after < first {
		from++
	}
	to := from
	for to < len(w.queues) && w.queues[to].after <= last {
		to++
	}
	if from == to {
		return
	}
	into := max(0, from-1)
	for i := into + 1; i < to; i++ {
		w.queues[into].batches = append(w.queues[into].batches, w.queues[i].batches...)
	}
	if from == 0 {
		w.queues[0].after = first
	}
	w.queues = slices.Delete(w.queues, into+1, to)
}
