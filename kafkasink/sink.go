package kafkasink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/txn"
)

// ErrTakenBack says that a checkpoint was given up before it was sealed.
var ErrTakenBack = errors.New("the checkpoint was given up")

// ErrDiscarded says that the attempt which the sink belongs to is over.
var ErrDiscarded = errors.New("the attempt is over, its output is discarded")

// DefaultHoldBackLimit bounds the bytes that an instance holds back.
const DefaultHoldBackLimit = 64 << 20

// Transactions is where records go. *txn.Manager is one.
type Transactions interface {
	// ProduceBatch hands records to the open transaction, beginning one if none is open.
	ProduceBatch(ctx context.Context, recs []kgo.Record) error
	// Seal ends the open transaction's content and returns nil when all of it is acknowledged.
	Seal(ctx context.Context, id element.CheckpointID) error
	// Reopen takes back a Seal that succeeded and whose commit has not begun: the transaction takes records again.
	Reopen(ctx context.Context) error
	// Unanswered gives the bytes of keys, values and headers that are handed over and not answered by a broker. After a Seal
	// that failed it is what was still missing then.
	Unanswered() int64
}

// Target is one sink of the plan; its index in Config.Targets is the sink's index there.
type Target struct {
	Name  string // of the step, for messages
	Topic string
	// Partitions is how many the topic has, at least 1.
	Partitions int32
	// MaxBytes is the largest batch for the topic, before compression; 0 when it is not known.
	MaxBytes int32
	// TopicID is the topic's id when the attempt began; zero when not known.
	TopicID element.TopicID
}

// Config says what a Sink writes to.
type Config struct {
	Transactions Transactions
	Targets      []Target
	// NoHoldBack lets everything through at once, for at-least-once: barriers hold nothing back, and Seal waits for all that
	// was written so far, which may be more than what lies before the barrier. Transactions must take records at any time.
	NoHoldBack bool
	// HoldBackLimit is in bytes over all writers; 0 = 64 MiB.
	HoldBackLimit int64
	// Outflow bounds what is unflushed to what can be flushed in time; nil = nothing does. It is the process's, of which one
	// attempt runs at a time.
	Outflow *Outflow
	// OnHoldBackFull, if not nil, is called on a task's goroutine each time that its Write starts to wait for room.
	OnHoldBackFull func(task element.TaskID, held int64)
	// Logger, nil = slog.Default().
	Logger *slog.Logger
}

// Sink is the output side of one attempt.
type Sink struct {
	cfg Config
	log *slog.Logger

	held atomic.Int64 // bytes held back by all writers

	// over ends with Discard; released records are produced under it.
	over context.Context
	end  context.CancelFunc

	// draining is a lock that a context can give up waiting for: it is held while released records are produced, so
	// that a Seal comes after them. It holds one value while it is free.
	draining chan struct{}
	sealed   element.CheckpointID // under draining: sealed and not released; 0 = none
	broken   error                // under draining: a seal that failed, and took the transaction with it

	back atomic.Pointer[[]span] // checkpoints that were taken back; changed under draining

	mu      sync.Mutex
	writers map[element.TaskID]*Writer // under mu
	room    chan struct{}              // under mu: closed when held bytes went down, then replaced
	waiting atomic.Int32               // writers that wait for room
	warned  bool                       // under mu: the hold-back was full in this attempt already
}

// New makes the sink of one attempt.
func New(cfg Config) (*Sink, error) {
	if cfg.Transactions == nil {
		return nil, errors.New("kafkasink: no transactions are given")
	}
	for i, t := range cfg.Targets {
		if t.Topic == "" || t.Partitions < 1 {
			return nil, fmt.Errorf("kafkasink: target %d (%s): topic %q with %d partitions", i, t.Name, t.Topic, t.Partitions)
		}
	}
	if cfg.HoldBackLimit < 0 {
		return nil, fmt.Errorf("kafkasink: hold-back limit %d is negative", cfg.HoldBackLimit)
	}
	cfg.HoldBackLimit = cmp.Or(cfg.HoldBackLimit, DefaultHoldBackLimit)
	cfg.Targets = slices.Clone(cfg.Targets)
	s := &Sink{
		cfg:      cfg,
		log:      cmp.Or(cfg.Logger, slog.Default()).With("component", "kafkasink"),
		draining: make(chan struct{}, 1),
		writers:  make(map[element.TaskID]*Writer),
		room:     make(chan struct{}),
	}
	s.over, s.end = context.WithCancel(context.Background())
	s.draining <- struct{}{}
	if cfg.Outflow != nil {
		cfg.Outflow.begin()
	}
	return s, nil
}

// Writer gives the writer of a task, the same one each time.
func (s *Sink) Writer(task element.TaskID) *Writer { return s.WriterBehind(task) }

// WriterBehind is Writer; when it makes the writer, that one has passed the barriers behind already, which grow: its task
// comes while those checkpoints are in flight. A Seal that runs meanwhile never sees a writer that has not.
func (s *Sink) WriterBehind(task element.TaskID, behind ...element.CheckpointID) *Writer {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.writers[task]
	if w == nil {
		w = &Writer{sink: s, task: task}
		for _, id := range behind {
			w.Barrier(id)
		}
		s.writers[task] = w
	}
	return w
}

// HeldBack gives the bytes that are held back at the moment.
func (s *Sink) HeldBack() int64 { return s.held.Load() }

// Seal ends the transaction's content for checkpoint id. Every writer must have passed Barrier(id). nil means that all
// of it is acknowledged by the broker. A refused record gives an error with topic and reason, classed: too large or
// malformed = Stop/BadRecord, no access = Stop/Denied. A checkpoint that was taken back gives ErrTakenBack, and nothing
// is sealed.
func (s *Sink) Seal(ctx context.Context, id element.CheckpointID) error {
	if err := s.lockDrain(ctx); err != nil {
		return err
	}
	defer s.unlockDrain()
	if s.takenBack(id) {
		return ErrTakenBack
	}
	for _, w := range s.sorted() {
		if err := w.sealable(id); err != nil {
			return err
		}
	}
	if err := s.flush(ctx, id); err != nil {
		s.broken = err
		return err
	}
	s.sealed = id
	return nil
}

func (s *Sink) flush(ctx context.Context, id element.CheckpointID) error {
	seal := func() error { return s.cfg.Transactions.Seal(ctx, id) }
	if s.cfg.Outflow == nil {
		return seal()
	}
	return s.cfg.Outflow.flush(s.cfg.Transactions, seal)
}

// send hands records to the transactions, when the client has room for them: in pieces where all of them are much beside
// that room, so that what is unflushed stays near its bound whatever the size of records and batches.
func (s *Sink) send(ctx context.Context, b batch) error {
	o := s.cfg.Outflow
	if o == nil {
		return s.cfg.Transactions.ProduceBatch(ctx, b.recs)
	}
	for recs := b.recs; len(recs) > 0; {
		n, size := len(recs), b.payload
		if most := o.piece(); size > most {
			n, size = cut(recs, most)
		}
		if err := o.room(ctx, s.over, s.cfg.Transactions); err != nil {
			return err
		}
		o.hand(size)
		if err := s.cfg.Transactions.ProduceBatch(ctx, recs[:n]); err != nil {
			return err
		}
		recs, b.payload = recs[n:], b.payload-size
	}
	return nil
}

// cut tells how many records, at least one, have at most so many bytes, and how many those are.
func cut(recs []kgo.Record, most int64) (n int, size int64) {
	for i := range recs {
		one := txn.Payload(&recs[i])
		if i > 0 && size+one > most {
			return i, size
		}
		size += one
	}
	return len(recs), size
}

// holdBackLimit is what may be held back at the moment.
func (s *Sink) holdBackLimit() int64 {
	if s.cfg.Outflow == nil {
		return s.cfg.HoldBackLimit
	}
	return min(s.cfg.HoldBackLimit, s.cfg.Outflow.held.Load())
}

// Release ends the hold-back of barrier id after its commit: what the writers hold since then goes into the next
// transaction, up to the next barrier they passed. It blocks while the client's buffers are full.
func (s *Sink) Release(id element.CheckpointID) error {
	if err := s.lockDrain(s.over); err != nil {
		return err
	}
	defer s.unlockDrain()
	s.sealed = 0
	s.forgetBack(id)
	for _, w := range s.sorted() {
		if err := w.drain(s.over, id); err != nil {
			return err
		}
	}
	return nil
}

// Drop forgets the writer of a task that has left the instance: what it holds back is dropped, its later calls return
// ErrDiscarded. The task must not write any more; it does not wait. No Release may be under way for a barrier that the
// writer still holds for: its output would be half in the transaction.
func (s *Sink) Drop(task element.TaskID) {
	s.mu.Lock()
	w := s.writers[task]
	delete(s.writers, task)
	s.mu.Unlock()
	if w == nil {
		return
	}
	w.gone.Store(true)
	w.drop()
	s.wake() // others may wait for the room that it held
}

// Discard ends the attempt: what is held back is dropped, writers that wait return ErrDiscarded, as does every later
// call. It does not touch the transaction, and does not wait.
func (s *Sink) Discard() {
	s.end()
	for _, w := range s.sorted() {
		w.drop()
	}
}

func (s *Sink) lockDrain(ctx context.Context) error {
	if s.over.Err() != nil {
		return ErrDiscarded
	}
	select {
	case <-s.draining:
		return nil
	case <-ctx.Done():
		if s.over.Err() != nil {
			return ErrDiscarded
		}
		return ctx.Err()
	case <-s.over.Done():
		return ErrDiscarded
	}
}

func (s *Sink) unlockDrain() { s.draining <- struct{}{} }

// sorted gives the writers in the order of their tasks, so that runs can be compared.
func (s *Sink) sorted() []*Writer {
	s.mu.Lock()
	defer s.mu.Unlock()
	ws := make([]*Writer, 0, len(s.writers))
	for _, w := range s.writers {
		ws = append(ws, w)
	}
	slices.SortFunc(ws, func(a, b *Writer) int { return a.task.Compare(b.task) })
	return ws
}

// wake lets writers that wait for room look again: after held went down, and after a writer became direct.
func (s *Sink) wake() {
	if s.waiting.Load() == 0 {
		return // one that starts to wait now looks after it has counted itself, and sees what was changed before
	}
	s.mu.Lock()
	close(s.room)
	s.room = make(chan struct{})
	s.mu.Unlock()
}

// waitForRoom blocks while w holds and the limit is reached. The order matters: count oneself, take the channel, look.
// Whoever changes something after that look sees the waiter and closes that channel.
//
// It must look at w as well as at the bytes. A writer whose queue was released while it slept has to go on although
// others, that passed the next barrier already, hold up to the limit again: it is the one whose barrier they wait for.
func (s *Sink) waitForRoom(ctx context.Context, w *Writer) error {
	if s.held.Load() < s.holdBackLimit() {
		return nil
	}
	s.noteFull(w.task)
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	for {
		s.mu.Lock()
		room := s.room
		s.mu.Unlock()
		if s.held.Load() < s.holdBackLimit() || !w.holding() {
			return nil
		}
		select {
		case <-room:
		case <-s.over.Done():
			return ErrDiscarded
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Sink) noteFull(task element.TaskID) {
	s.mu.Lock()
	first := !s.warned
	s.warned = true
	s.mu.Unlock()
	if first {
		s.log.Warn("the hold-back of output is full: tasks wait for the checkpoint's commit", "task", task.String(), "limit_bytes", s.holdBackLimit())
	}
	if s.cfg.OnHoldBackFull != nil {
		s.cfg.OnHoldBackFull(task, s.held.Load())
	}
}
