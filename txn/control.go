package txn

import (
	"context"
	"fmt"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Seal ends the content of the open transaction for checkpoint id: from here until its end Produce gives ErrSealed. It
// returns nil when every record is acknowledged; a transaction without any got a marker record. On an error the
// transaction has been aborted; the error's class says what to do.
func (m *Manager) Seal(ctx context.Context, id element.CheckpointID) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.unlock()
	return m.seal(ctx, id)
}

func (m *Manager) seal(ctx context.Context, id element.CheckpointID) error {
	ev := Event{Kind: EvSeal, Checkpoint: id}
	if c := m.current(); c != nil && m.machine.State(c.slot) == Open {
		m.sealed.Store(true)
		m.setGate(nil) // nobody counts up produced from here
		ev.Produced = c.produced.Load()
	}
	// Records that take longer than this belong to a transaction that the broker has aborted meanwhile.
	ctx, cancel := m.bounded(ctx, m.cfg.Timeout)
	defer cancel()
	return m.drive(ctx, ev, nil)
}

// Reopen takes back a Seal whose checkpoint was declined before its commit began: the transaction goes on and the next
// Seal covers both.
func (m *Manager) Reopen(ctx context.Context) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.unlock()
	return m.drive(ctx, Event{Kind: EvReopen}, nil)
}

// Commit commits the sealed transaction with the offsets and their metadata; the fence function vouches
// for the ownership of each. nil means that the checkpoint is complete. ctx bounds the sending of the offsets only; once
// EndTransaction is called, nothing but EndTimeout and Patience end the wait. An error of class Unconfirmed means that only a stable read after Init can say whether it is committed; after any other the transaction is aborted.
func (m *Manager) Commit(ctx context.Context, c checkpoint.Commit) error {
	if !c.Permit.Allows(c.Name.ID) {
		return fault.Stopf(fault.Failed, "checkpoint %s has no permit to be committed", c.Name)
	}
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.unlock()
	return m.commit(ctx, c)
}

// CommitInitial commits start positions in a transaction of their own, which holds nothing but a marker record. No
// transaction may be open. It needs no permit: there is no snapshot before it.
func (m *Manager) CommitInitial(ctx context.Context, c checkpoint.Commit) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.unlock()
	if s := m.machine.State(m.machine.Current()); !s.usable() {
		return fmt.Errorf("commit start positions: a transaction is %s", s)
	}
	if err := m.seal(ctx, c.Name.ID); err != nil {
		return err
	}
	return m.commit(ctx, c)
}

func (m *Manager) commit(ctx context.Context, c checkpoint.Commit) error {
	j := &job{commit: &c, pieces: m.sizes.begin(m.cfg.Group, c.Offsets)}
	ev := Event{Kind: EvCommit, Checkpoint: c.Name.ID, Partitions: len(c.Offsets), Pieces: len(j.pieces)}
	for i := range c.Offsets {
		ev.HandleBytes = max(ev.HandleBytes, len(c.Offsets[i].Metadata))
	}
	// Later than this the broker has aborted the transaction itself.
	ctx, cancel := m.bounded(ctx, m.cfg.Timeout)
	defer cancel()
	return m.drive(ctx, ev, j)
}

// Abort drops the open transaction; without one it does nothing. It uses ctx only to wait for its turn: the abort itself
// is bounded by EndTimeout. An error means that the transaction may be open until the next Init; it never means that
// it could be committed.
func (m *Manager) Abort(ctx context.Context) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.unlock()
	return m.drive(ctx, Event{Kind: EvAbort}, nil)
}

// current gives the client of the current slot, nil if it has none.
func (m *Manager) current() *client { return m.clients[m.machine.Current()] }
