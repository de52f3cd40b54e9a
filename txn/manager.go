package txn

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/checkpoint"
)

// Manager makes the transactions of one instance, one after the other. It lives as long as the process; every attempt
// starts with Init.
//
// Lock order: turn, then gate. turn is held for whole control calls, I/O included; gate's write side only to change
// open, its read side while records are handed over.
type Manager struct {
	cfg Config
	log *slog.Logger

	turn    chan struct{} // a lock that a context can give up waiting for; holds one value while it is free
	machine *Machine      // under turn
	clients []*client     // under turn, by slot; nil = closed
	marker  bool          // under turn: the marker topic is there
	stats   Stats         // under turn: of the open transaction
	sizes   sizes         // of the requests with offsets

	gate   sync.RWMutex
	open   *client // under gate: the client whose transaction takes records, or nil
	sealed atomic.Bool
	flow   flow
}

// flow is what the bytes without an answer are read from, also while a control call runs.
type flow struct {
	mu   sync.Mutex
	cl   *kgo.Client // under mu: the client of the last transaction that began; nil = it has dropped what it had
	left int64       // under mu: what it had then
}

func (f *flow) unanswered() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cl == nil {
		return f.left
	}
	return f.cl.BufferedProduceBytes()
}

// through says that a client has a new transaction.
func (f *flow) through(cl *kgo.Client) {
	f.mu.Lock()
	f.cl, f.left = cl, 0
	f.mu.Unlock()
}

// drops says that a client is about to drop what it has.
func (f *flow) drops(cl *kgo.Client) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cl == cl {
		f.cl, f.left = nil, cl.BufferedProduceBytes()
	}
}

// Unanswered gives the bytes of keys, values and headers that were handed over and that no broker has answered. After a
// transaction failed it is what was missing when it was dropped, until the next one begins. Safe for concurrent use.
func (m *Manager) Unanswered() int64 { return m.flow.unanswered() }

// NewManager checks the configuration. It does not connect; Init does.
func NewManager(cfg Config) (*Manager, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Manager{
		cfg:     cfg,
		log:     cfg.Logger.With("component", "txn"),
		turn:    make(chan struct{}, 1),
		machine: NewMachine(cfg.Slots),
		clients: make([]*client, cfg.Slots),
	}
	m.turn <- struct{}{}
	return m, nil
}

func (m *Manager) lock(ctx context.Context) error {
	select {
	case <-m.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *Manager) unlock() { m.turn <- struct{}{} }

// Init makes the transactional ids this instance's own: every slot without a usable client gets a new one, which
// aborts what a predecessor of the same name, or an earlier attempt, left open. It must come before the stable read
// that an attempt starts from, and only while the instance is a member of the group: two processes of one name would
// else fence each other for ever. A client that goes by other limits than Config gives now is replaced as well. When all
// slots are usable it does nothing.
func (m *Manager) Init(ctx context.Context) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.unlock()
	ev := Event{Kind: EvInit}
	for _, c := range m.clients {
		if c != nil {
			c.limits.learn(c.first.get())
		}
	}
	for i, c := range m.clients {
		if c != nil && c.limits.outdated() {
			ev.Outdated = append(ev.Outdated, i)
		}
	}
	return m.drive(ctx, ev, nil)
}

// Close ends all clients; what is open stays open until the ids are initialised again or the transaction times out.
// Call Abort first to end it at once.
func (m *Manager) Close() {
	<-m.turn
	defer m.unlock()
	_ = m.drive(context.Background(), Event{Kind: EvClose}, nil) // closing reports no error
}

// job is what one control call works with.
type job struct {
	ctx    context.Context
	commit *checkpoint.Commit
	pieces [][]checkpoint.OffsetCommit // of its offsets
	cause  error                       // of the first action that did not succeed

	pause  time.Duration // before the offsets were sent last
	notYet error         // what they were answered with, which is the cause only if that goes on
}

// noteCause keeps the first error; later ones follow from it.
func (j *job) noteCause(err error) {
	if j.cause == nil {
		j.cause = err
	}
}

// bounded gives ctx an end after d, and at the end of the patience.
func (m *Manager) bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, d)
	stop := context.AfterFunc(m.cfg.Patience, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// detached gives a context for what must not be given up when the caller's is.
func (m *Manager) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return m.bounded(context.WithoutCancel(ctx), m.cfg.EndTimeout)
}

// setGate opens the gate for a client's transaction, or closes it (nil), and waits until no producer is inside.
func (m *Manager) setGate(c *client) {
	m.gate.Lock()
	m.open = c
	m.gate.Unlock()
}

// markerRecord is what a checkpoint without output leaves in the marker topic: the last one of each instance stays. It has
// no timestamp, which brokers always take; the time of a clock that is wrong is refused.
func (m *Manager) markerRecord(value string) *kgo.Record {
	return &kgo.Record{
		Topic:     m.cfg.MarkerTopic,
		Partition: m.cfg.MarkerPartition,
		Key:       []byte(m.cfg.Application + "-" + m.cfg.Instance),
		Value:     []byte(value),
		Timestamp: time.UnixMilli(-1),
	}
}
