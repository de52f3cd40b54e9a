package store

import (
	"fmt"
)

// pendingChanges collects the committed changes of one task between two flushes, the last value of each key. It is a
// store of its own, whose values carry a leading byte: deletions must be kept, too.
type pendingChanges struct {
	store  *Store
	tables []*Table // by the number of the table in the local copy
}

const (
	pendingDeleted = 0
	pendingValue   = 1
)

func newPending() *pendingChanges {
	return &pendingChanges{store: New(Config{})}
}

func (p *pendingChanges) bytes() int64 { return p.store.UncommittedBytes() }

func (p *pendingChanges) len() int { return p.store.DirtyLen() }

// add takes a copy of an entry; table is its number in the local copy. What the copy cannot take is refused.
func (p *pendingChanges) add(table int, e Entry) error {
	if len(e.Key) > localMaxKey || len(e.Value) > localMaxValue {
		return fmt.Errorf("%w for the local copy: %d and %d bytes", ErrTooLarge, len(e.Key), len(e.Value))
	}
	for len(p.tables) <= table {
		t, err := p.store.Table(fmt.Sprint(len(p.tables)), "")
		if err != nil {
			return err
		}
		p.tables = append(p.tables, t)
	}
	t := p.tables[table]
	if e.Deleted {
		b, _ := t.Upsert(e.Key, 1)
		b[0] = pendingDeleted
	} else {
		b, _ := t.Upsert(e.Key, 1+len(e.Value))
		b[0] = pendingValue
		copy(b[1:], e.Value)
	}
	return p.store.Err()
}

// freeze ends the collection and gives its entries by table, then key.
func (p *pendingChanges) freeze() func(yield func(Entry) bool) {
	f := p.store.Freeze(1)
	return func(yield func(Entry) bool) {
		for e := range f.Sorted() {
			if !yield(pendingEntry(e)) {
				return
			}
		}
	}
}

// pendingEntry takes the leading byte off again.
func pendingEntry(e Entry) Entry {
	if e.Value[0] == pendingDeleted {
		e.Value, e.Deleted = nil, true
	} else {
		e.Value = e.Value[1:]
	}
	return e
}
