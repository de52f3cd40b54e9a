package txn

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

// Plain is what a Manager is without transactions, for at-least-once: an idempotent producer, whose records every reader
// sees at once, and an OffsetCommit when a checkpoint is complete. It has the Manager's methods and takes its Config, of
// which slots and marker topic mean nothing here.
//
//	closed ──Init──> open ──Seal(n): all that was produced so far is acknowledged──> open, n sealed
//	   ^              │ ^                                                               │
//	   └─Abort, Close─┘ └──────────── Commit(n): OffsetCommit ──────────────────────────┘
//
// Records may be produced at any time, between Seal and Commit as well. What Seal vouches for is that nothing produced
// before it is missing; what came later may be out already, and comes again if the attempt ends. So a record may be
// doubled, and never lost. After an Abort, records that were on their way may still arrive, even behind their doubles.
type Plain struct {
	cfg Config
	log *slog.Logger

	turn   chan struct{}        // as the Manager's: control calls exclude each other
	sealed element.CheckpointID // under turn; valid while isSealed
	seal   bool                 // under turn
	older  []*wave              // under turn: waves that a Seal has ended and that were not all acknowledged then
	stats  Stats                // under turn: since the last commit
	sizes  sizes                // of the requests with offsets
	copies copies               // of those, as they are written
	unsure bool                 // under turn: what a commit was refused with does not say that it never happens
	looked bool                 // under turn: own transactions of an earlier time were looked for

	mu     sync.RWMutex // held for a moment only, never while records are handed over
	cl     *plainClient // under mu; nil = closed, or given up
	cur    *wave        // under mu
	closed bool         // under mu
	flow   flow
}

// Unanswered is the Manager's; what an Abort dropped counts until the next Init.
func (p *Plain) Unanswered() int64 { return p.flow.unanswered() }

// plainClient is a client and the first of its records that failed.
type plainClient struct {
	*kgo.Client
	first  firstFailure
	limits *limits
}

func newPlainClient(cl *kgo.Client, l *limits) *plainClient {
	c := &plainClient{Client: cl, limits: l}
	c.first.reset()
	return c
}

// wave is what is produced between two Seals. Each wave has its own promise, so that a Seal can wait for all that came
// before it while records go on coming.
type wave struct {
	cl       *plainClient
	promise  func(*kgo.Record, error)
	produced atomic.Int64
	dropped  atomic.Bool // producers stop at the next record
	done     chan struct{}

	_ [64]byte // keep what is only read off the line that promises write
	// pending is the number of records without an answer, plus one token until the wave ends.
	pending atomic.Int64
}

func newWave(cl *plainClient) *wave {
	w := &wave{cl: cl, done: make(chan struct{})}
	w.promise = w.answered
	w.pending.Store(1)
	return w
}

// answered is the promise of every record of the wave.
func (w *wave) answered(r *kgo.Record, err error) {
	if err != nil {
		w.cl.first.note(r, err)
	}
	w.release(1)
}

func (w *wave) release(n int64) {
	if w.pending.Add(-n) == 0 {
		close(w.done)
	}
}

// NewPlain checks the configuration. It does not connect; Init does.
func NewPlain(cfg Config) (*Plain, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Plain{cfg: cfg, log: cfg.Logger.With("component", "txn"), turn: make(chan struct{}, 1)}
	p.turn <- struct{}{}
	return p, nil
}

func (p *Plain) lock(ctx context.Context) error {
	select {
	case <-p.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.isClosed() {
		p.unlock()
		return ErrClosed
	}
	return nil
}

func (p *Plain) unlock() { p.turn <- struct{}{} }

func (p *Plain) isClosed() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.closed
}

// ownTimeout bounds the search for transactions that this instance has left open. Nothing but time depends on it.
const ownTimeout = 5 * time.Second

// Init gives the attempt a client of its own, with a new producer id. A client that nothing was produced with yet stays.
// The first Init also ends what this instance has left open if it made transactions before: readers and the stable read
// that follows would wait for their timeout.
func (p *Plain) Init(ctx context.Context) error {
	if err := p.lock(ctx); err != nil {
		return err
	}
	defer p.unlock()
	if p.fresh() {
		return nil
	}
	p.drop()
	failpoint.Hit(failpoint.InitBefore)
	l := p.cfg.newLimits()
	cl, err := kafka.NewClient(p.cfg.Kafka, append(p.cfg.plainOpts(l), kgo.WithHooks(&p.copies))...)
	if err != nil {
		return err
	}
	if _, _, err := cl.ProducerID(ctx); err != nil {
		cl.Close()
		return kafka.Classify(err, "InitProducerID")
	}
	p.endOwn(ctx, cl)
	l.cuts.watch(cl)
	failpoint.Hit(failpoint.InitAfter)
	p.mu.Lock()
	p.cl = newPlainClient(cl, l)
	p.cur = newWave(p.cl)
	p.mu.Unlock()
	p.flow.through(cl)
	p.stats = Stats{}
	if p.cfg.Hooks.Initialised != nil {
		p.cfg.Hooks.Initialised(0)
	}
	return nil
}

func (p *Plain) endOwn(ctx context.Context, cl *kgo.Client) {
	if p.looked {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, ownTimeout)
	defer cancel()
	if err := p.cfg.fenceOwn(bounded, cl); err != nil {
		p.log.Warn("could not look for transactions that this instance has left open; readers may wait for their timeout", "error", err)
		return
	}
	p.looked = true
}

// fresh says that the client is as Init made it.
func (p *Plain) fresh() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.cl != nil && !p.seal && len(p.older) == 0 && p.stats.Records == 0 && p.cur.produced.Load() == 0 && p.cl.first.get() == nil && !p.cl.limits.outdated()
}

// plainOpts are the client's. A broker that lost what it had acknowledged makes the producer fail, and so the attempt
// begin again from the last checkpoint: kgo would else go on behind the hole.
func (c Config) plainOpts(l *limits) []kgo.Opt {
	return append(c.produceOpts(l), kgo.StopProducerOnDataLossDetected())
}

// ProduceBatch hands records to the client. Topic and Partition must be set. The records and all they point to must
// stay as they are until a Seal has succeeded. It blocks while the client's buffers are full, as long as ctx lives. An
// error means that no Seal will succeed before the next Init; nil does not mean that the records are acknowledged. Safe
// for concurrent use.
func (p *Plain) ProduceBatch(ctx context.Context, recs []kgo.Record) error {
	if len(recs) == 0 {
		return nil
	}
	n := int64(len(recs))
	w, err := p.enter(n)
	if err != nil {
		return err
	}
	for i := range recs {
		if w.dropped.Load() {
			rest := n - int64(i)
			w.produced.Add(-rest)
			w.release(rest)
			return ErrAborted
		}
		w.cl.Produce(ctx, &recs[i], w.promise)
	}
	return nil
}

// enter counts n records to the present wave: from here on its Seal waits for them.
func (p *Plain) enter(n int64) (*wave, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return nil, ErrClosed
	}
	if p.cl == nil {
		return nil, ErrAborted
	}
	if err := p.cl.failure(); err != nil {
		return nil, err
	}
	p.cur.pending.Add(n)
	p.cur.produced.Add(n)
	return p.cur, nil
}

// failure gives the error of the first record that failed, classed, or nil.
func (c *plainClient) failure() error {
	if err := c.limits.cuts.err(); err != nil {
		return err
	}
	f := c.first.get()
	if f == nil {
		return nil
	}
	rec, code := plainVerdict(StepProduce, f.answer(c.limits))
	return fault.New(rec, code, "%s: %w", f.where(c.limits), explainPlain(f.err))
}

// Seal returns nil when every record that was produced before it is acknowledged. Records that are produced meanwhile do
// not count. A record that failed makes it fail, and every later one until Init; nothing can be left out of a checkpoint.
// One that ctx ended says nothing: the next Seal waits for the same records as well.
func (p *Plain) Seal(ctx context.Context, id element.CheckpointID) error {
	if err := p.lock(ctx); err != nil {
		return err
	}
	defer p.unlock()
	p.seal = false
	start := time.Now()
	p.mu.Lock()
	w := p.cur
	if w == nil {
		p.mu.Unlock()
		return p.outOfOrder("seal checkpoint %d before Init", id)
	}
	p.cur = newWave(w.cl)
	p.mu.Unlock()
	p.older = append(p.older, w)
	p.stats.Records += w.produced.Load()
	w.release(1)

	ctx, cancel := p.patient(ctx)
	defer cancel()
	failpoint.Hit(failpoint.FlushBefore)
	defer tellStall(ctx, p.log, w.cl.Client, w.cl.limits)()
	err := p.await(ctx, w.cl)
	failpoint.Hit(failpoint.FlushAfter)
	p.stats.Flush += time.Since(start)
	if failed := w.cl.failure(); failed != nil {
		return failed
	}
	if err != nil {
		return fault.New(fault.Restart, fault.Failed, "wait for the acknowledgement of what was produced before checkpoint %d: %w", id, err)
	}
	p.seal, p.sealed = true, id
	return nil
}

// batchGrace lets the other records of a refused batch tell of themselves: one of them may be the reason.
const batchGrace = 100 * time.Millisecond

// await waits for the waves that have ended. A record that failed is not waited for any further: the others may have to
// wait for the same broker for ever.
func (p *Plain) await(ctx context.Context, cl *plainClient) error {
	for len(p.older) > 0 && cl.first.get() == nil {
		select {
		case <-p.older[0].done:
			p.older = p.older[1:]
		case <-cl.first.there:
			select {
			case <-p.older[0].done:
			case <-time.After(batchGrace):
			case <-ctx.Done():
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// patient gives ctx an end at the end of the patience.
func (p *Plain) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(p.cfg.Patience, cancel)
	return ctx, func() { stop(); cancel() }
}

// Reopen takes back a Seal whose checkpoint was given up. There is nothing to undo: records were never held up.
func (p *Plain) Reopen(ctx context.Context) error {
	if err := p.lock(ctx); err != nil {
		return err
	}
	defer p.unlock()
	p.seal = false
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.cl == nil {
		return p.outOfOrder("there is no client to go on with")
	}
	return p.cl.failure()
}

// Abort ends the client: records that are not sent yet are dropped. Those on their way may arrive or not. Produce gives
// ErrAborted until the next Init.
func (p *Plain) Abort(ctx context.Context) error {
	if err := p.lock(ctx); err != nil {
		return err
	}
	defer p.unlock()
	p.drop()
	return nil
}

// FenceGone is the Manager's: who is gone may have made transactions.
func (p *Plain) FenceGone(ctx context.Context, instances []string, living func(context.Context) ([]string, error)) ([]string, error) {
	return p.cfg.FenceGone(ctx, instances, living)
}

// Close ends the client for good.
func (p *Plain) Close() {
	<-p.turn
	defer p.unlock()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.drop()
}

// drop ends the present client, if there is one. turn is held.
func (p *Plain) drop() {
	p.mu.Lock()
	cl, w := p.cl, p.cur
	p.cl, p.cur = nil, nil
	p.mu.Unlock()
	waves := p.older
	p.older, p.seal = nil, false
	if cl == nil {
		return
	}
	for _, o := range append(waves, w) {
		o.dropped.Store(true)
	}
	p.flow.drops(cl.Client)
	cl.limits.learn(cl.first.get())
	cl.limits.cuts.close(cl.Client) // lets out producers that wait for room
	w.release(1)
	p.stats.Records += w.produced.Load()
	if p.stats.Records > 0 {
		p.end(Aborted, 0)
	}
}

// end tells the hooks what became of what was produced since the last commit.
func (p *Plain) end(s State, id element.CheckpointID) {
	st := p.stats
	p.stats = Stats{}
	st.State, st.Checkpoint = s, id
	if p.cfg.Hooks.Ended != nil {
		p.cfg.Hooks.Ended(st)
	}
}

func (p *Plain) outOfOrder(format string, args ...any) error {
	return fault.New(fault.Restart, fault.Failed, "%s: %w", StepOrder, fmt.Errorf(format, args...))
}
