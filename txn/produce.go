package txn

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ErrSealed says that the open transaction takes no more records: they belong to the one after it.
var ErrSealed = errors.New("the transaction is sealed")

// ErrAborted says that the transaction was aborted while records were being handed over.
var ErrAborted = errors.New("the transaction was aborted")

// ErrClosed says that the Manager was closed.
var ErrClosed = errors.New("the transaction manager is closed")

// ProduceBatch hands records to the open transaction and begins one if none is open. Topic and Partition must be set.
// The records and all they point to must stay as they are until the transaction has ended. It blocks while the
// client's buffers are full, as long as ctx lives. An error means that the transaction cannot be committed any more;
// nil does not mean that the records are acknowledged: Seal waits for that. Safe for concurrent use.
func (m *Manager) ProduceBatch(ctx context.Context, recs []kgo.Record) error {
	if len(recs) == 0 {
		return nil
	}
	for {
		m.gate.RLock()
		if c := m.open; c != nil {
			err := c.produceBatch(ctx, recs)
			m.gate.RUnlock()
			return err
		}
		m.gate.RUnlock()
		if err := m.begin(ctx); err != nil {
			return err
		}
	}
}

// Produce is ProduceBatch for one record. promise, if not nil, is called with the record's own result; it must not
// call the Manager. It is not called when an error is returned.
func (m *Manager) Produce(ctx context.Context, rec *kgo.Record, promise func(*kgo.Record, error)) error {
	for {
		m.gate.RLock()
		if c := m.open; c != nil {
			err := c.produceOne(ctx, rec, promise)
			m.gate.RUnlock()
			return err
		}
		m.gate.RUnlock()
		if err := m.begin(ctx); err != nil {
			return err
		}
	}
}

// begin opens the transaction of the next slot, unless another producer was quicker.
func (m *Manager) begin(ctx context.Context) error {
	if m.sealed.Load() {
		return ErrSealed // without waiting for a commit that may take long
	}
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.unlock()
	if m.sealed.Load() {
		return ErrSealed
	}
	return m.drive(ctx, Event{Kind: EvProduce}, nil)
}
