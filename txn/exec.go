package txn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

// drive runs a request through the Machine: actions are executed in order, what came of them is fed back, until the
// Machine reports. turn is held. j may be nil.
func (m *Manager) drive(ctx context.Context, ev Event, j *job) error {
	if j == nil {
		j = &job{}
	}
	j.ctx = ctx
	slot := m.machine.Current()
	c := m.clients[slot]
	var rep Report
	acts := m.machine.Step(ev)
	for len(acts) > 0 {
		a := acts[0]
		if a.Kind == ActInit {
			n := leadingInits(acts)
			for _, e := range m.initSlots(j, acts[:n]) {
				acts = append(acts, m.machine.Step(e)...)
			}
			acts = acts[n:]
			continue
		}
		acts = acts[1:]
		if a.Kind == ActReport {
			rep = a.Report
			continue
		}
		if e, answered := m.exec(j, a); answered {
			acts = append(acts, m.machine.Step(e)...)
		}
	}
	m.settle()
	m.tell(slot, c, rep, j)
	return m.errorOf(slot, rep, j)
}

func leadingInits(acts []Action) int {
	n := 0
	for n < len(acts) && acts[n].Kind == ActInit {
		n++
	}
	return n
}

// settle makes the gate agree with the Machine after a request.
func (m *Manager) settle() {
	slot := m.machine.Current()
	switch m.machine.State(slot) {
	case Open:
		c := m.clients[slot]
		if !c.held {
			c.hold() // reopened
		}
		m.sealed.Store(false)
		m.setGate(c)
	case Sealed:
		m.sealed.Store(true)
	default:
		m.sealed.Store(false)
		m.setGate(nil)
	}
}

// exec runs one action; answered says that it gives an event.
func (m *Manager) exec(j *job, a Action) (ev Event, answered bool) {
	c := m.clients[a.Slot]
	if a.Kind == ActClose {
		m.closeClient(a.Slot)
		return Event{}, false
	}
	if c == nil { // the Machine asks for nothing of a slot without a client
		j.noteCause(errors.New("the slot has no client"))
		return Event{Kind: EvEnded, Answer: Answer{Lost: true}}, true
	}
	switch a.Kind {
	case ActBegin:
		c.reset()
		m.stats = Stats{Slot: a.Slot}
		m.flow.through(c.cl)
		return Event{Kind: EvBegun, Answer: j.answer(c.cl.BeginTransaction())}, true
	case ActMarker:
		return Event{}, m.produceMarker(j, c)
	case ActFlush:
		return m.flush(j, c), true
	case ActOffsets:
		j.pause = 0
		return m.sendOffsets(j, c, a.Piece), true
	case ActRetryOffsets:
		return m.resendOffsets(j, c, a.Piece), true
	case ActCut:
		j.pieces = m.sizes.cut(m.cfg.Group, j.commit.Offsets, j.pieces, a.Piece)
		return Event{Kind: EvCut, Pieces: len(j.pieces)}, true
	case ActDrop:
		return m.drop(j, c), true
	case ActCommit:
		failpoint.Hit(failpoint.EndTxnBefore)
		ev = m.end(j, c, kgo.TryCommit)
		failpoint.Hit(failpoint.EndTxnAfter)
		return ev, true
	case ActAbort:
		failpoint.Hit(failpoint.AbortBefore)
		ev = m.end(j, c, kgo.TryAbort)
		failpoint.Hit(failpoint.AbortAfter)
		return ev, true
	}
	return Event{}, false
}

// answer notes an error as the cause and reduces it to what the Machine decides on.
func (j *job) answer(err error) Answer {
	if err != nil {
		j.noteCause(err)
	}
	return answerOf(err)
}

// initSlots makes the clients of several slots at once: each initialisation may wait for the markers of a transaction
// that it aborts.
func (m *Manager) initSlots(j *job, acts []Action) []Event {
	failpoint.Hit(failpoint.InitBefore)
	evs := make([]Event, len(acts))
	errs := make([]error, len(acts))
	var wg sync.WaitGroup
	for i, a := range acts {
		wg.Go(func() { errs[i] = m.initSlot(j.ctx, a.Slot) })
	}
	wg.Wait()
	for i, a := range acts {
		evs[i] = Event{Kind: EvInitialised, Slot: a.Slot, Answer: j.answer(errs[i])}
	}
	if !m.marker && errors.Join(errs...) == nil {
		if err := m.ensureMarkerTopic(j.ctx); err != nil {
			evs[0].Answer = j.answer(err)
			return evs
		}
		m.marker = true
	}
	failpoint.Hit(failpoint.InitAfter)
	return evs
}

// initSlot makes the client of one slot and lets it initialise its id. It writes no field but its own slot's.
func (m *Manager) initSlot(ctx context.Context, slot int) error {
	id := TransactionalID(m.cfg.Application, m.cfg.Instance, slot)
	l := m.cfg.newLimits()
	cl, err := kafka.NewClient(m.cfg.Kafka, m.cfg.clientOpts(id, l)...)
	if err != nil {
		return err
	}
	m.clients[slot] = newClient(slot, id, cl, l)
	l.cuts.watch(cl)
	if _, _, err := cl.ProducerID(ctx); err != nil {
		return kafka.Classify(err, "InitProducerID")
	}
	if m.cfg.Hooks.Initialised != nil {
		m.cfg.Hooks.Initialised(slot)
	}
	return nil
}

func (m *Manager) ensureMarkerTopic(ctx context.Context) error {
	compact := "compact"
	for _, c := range m.clients {
		if c != nil {
			_, err := kafka.EnsureTopic(ctx, c.cl, m.cfg.MarkerTopic, m.cfg.MarkerPartition+1, map[string]*string{"cleanup.policy": &compact})
			if fault.CodeOf(err) == fault.UnknownTopic {
				// It is there, since it was made or found a moment ago; brokers that are busy learn of it late.
				return fault.Restartf(fault.UnknownTopic, "the brokers do not list the topic of the markers yet: %w", err)
			}
			return err
		}
	}
	return nil
}

// closeClient ends a slot's client. Its buffered records fail, which lets producers out that wait for room in it, so
// that the gate can be closed afterwards.
func (m *Manager) closeClient(slot int) {
	c := m.clients[slot]
	if c == nil {
		return
	}
	c.aborting.Store(true)
	m.flow.drops(c.cl)
	c.limits.learn(c.first.get())
	c.limits.cuts.close(c.cl)
	if m.open == c {
		m.setGate(nil)
	}
	m.clients[slot] = nil
}

// produceMarker puts the marker record into the transaction. It gives no event: the flush counts its promise.
func (m *Manager) produceMarker(j *job, c *client) bool {
	value := fmt.Sprintf(`{"checkpoint":"%s"}`, element.CheckpointName{ID: m.machine.checkpoint, Incarnation: m.cfg.Incarnation})
	c.pending.Add(1)
	c.produced.Add(1)
	m.stats.Marker = true
	c.cl.Produce(j.ctx, m.markerRecord(value), c.promise)
	return false
}

// flush waits for every promise of the transaction. When a record has failed, the transaction is aborted whatever becomes of the
// others, which may wait for a broker for long.
func (m *Manager) flush(j *job, c *client) Event {
	start := time.Now()
	m.sealed.Store(true)
	m.setGate(nil)
	failpoint.Hit(failpoint.FlushBefore)
	defer tellStall(j.ctx, m.log, c.cl, c.limits)()
	ctx, end := c.untilFailed(j.ctx)
	defer end()
	err := c.cl.Flush(ctx)
	c.letGo()
	if err == nil {
		// Flush does not count records that failed before they were buffered; their promises may still be on the way.
		err = c.wait(ctx)
	}
	if err == nil {
		err = c.settle(ctx)
	}
	m.stats.Flush += time.Since(start)
	failpoint.Hit(failpoint.FlushAfter)
	failed := c.failed.Load()
	if f := c.first.get(); f != nil {
		if f.topic == m.cfg.MarkerTopic && (errors.Is(f.err, kerr.UnknownTopicOrPartition) || errors.Is(f.err, kerr.UnknownTopicID)) {
			m.marker = false // deleted: the next Init makes it again
		}
		j.noteCause(c.failure())
		if c.limits.cuts.err() != nil {
			f = &failure{err: errCut} // the client was closed
		}
		return Event{Kind: EvFlushed, Failed: failed, Answer: f.answer(c.limits)}
	}
	return Event{Kind: EvFlushed, Acked: c.produced.Load() - failed, Answer: j.answer(err)}
}

// drop empties the client before an abort. The first call lets out producers that wait for room, the second takes what
// they still put in before the gate was closed.
func (m *Manager) drop(j *job, c *client) Event {
	ctx, cancel := m.detached(j.ctx)
	defer cancel()
	c.aborting.Store(true)
	m.flow.drops(c.cl)
	err := c.cl.AbortBufferedRecords(ctx)
	if err == nil {
		m.setGate(nil)
		err = c.cl.AbortBufferedRecords(ctx)
	}
	if err == nil {
		c.letGo()
		err = c.wait(ctx)
	}
	return Event{Kind: EvDropped, Answer: j.answer(err)}
}

func (m *Manager) end(j *job, c *client, how kgo.TransactionEndTry) Event {
	ctx, cancel := m.detached(j.ctx)
	defer cancel()
	start := time.Now()
	err := c.cl.EndTransaction(ctx, how)
	m.stats.End = time.Since(start)
	return Event{Kind: EvEnded, Answer: j.answer(err)}
}

// tell reports the end of a transaction to log and hooks. c is the client that it ran on.
func (m *Manager) tell(slot int, c *client, rep Report, j *job) {
	if rep.Failed && rep.Code == fault.Fenced {
		m.log.Warn("the transactional id was taken over by another process, or its transaction timed out",
			"transactional_id", TransactionalID(m.cfg.Application, m.cfg.Instance, slot), "step", rep.Step, "error", j.cause)
	}
	if !rep.ended || m.cfg.Hooks.Ended == nil {
		return
	}
	s := m.stats
	s.State, s.Checkpoint = rep.State, m.machine.checkpoint
	if c != nil {
		s.Records = c.produced.Load()
	}
	m.cfg.Hooks.Ended(s)
}

// errorOf makes the caller's error of a report.
func (m *Manager) errorOf(slot int, rep Report, j *job) error {
	if !rep.Failed {
		return nil
	}
	if m.machine.closed {
		return ErrClosed
	}
	cause := j.cause
	if cause == nil && rep.Reason == "" {
		cause = j.notYet
	}
	if cause == nil {
		cause = errors.New(rep.Reason)
	} else if rep.Reason != "" {
		cause = fmt.Errorf("%s: %w", rep.Reason, cause)
	}
	rec, code := rep.Recovery, rep.Code
	var classed *fault.Error
	switch {
	case !errors.As(j.cause, &classed):
		cause = explain(cause)
	case rep.Step == StepFence || rep.Step == StepInit:
		rec, code = classed.Recovery, classed.Code // it knows more than the Machine
	}
	id := TransactionalID(m.cfg.Application, m.cfg.Instance, slot)
	if rec == fault.Stop && code == fault.Fenced {
		return fault.New(rec, code, "transaction of %s: %s: another process uses instance id %q: every instance needs its own: %w", id, rep.Step, m.cfg.Instance, cause)
	}
	return fault.New(rec, code, "transaction of %s: %s: %w", id, rep.Step, cause)
}
