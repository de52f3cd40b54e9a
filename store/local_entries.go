package store

import (
	"iter"

	"github.com/millweir/millweir/element"
)

// Changes collects changes of one task, the last one of each key, deletions included, so that they can be given to
// Local.Apply once all of them were read and verified. One goroutine may use it.
type Changes struct {
	pending *pendingChanges
	tables  []TableInfo
	err     error
}

// NewChanges makes an empty collection.
func NewChanges() *Changes { return &Changes{pending: newPending()} }

// Table finds or adds a table by its name. It reports false when the name is known with another codec or there are too
// many tables.
func (c *Changes) Table(info TableInfo) (int, bool) {
	t := localTask{tables: c.tables}
	n, ok := t.table(info)
	c.tables = t.tables
	return n, ok
}

// Tables lists the tables in the order of their numbers.
func (c *Changes) Tables() []TableInfo { return c.tables }

// Add takes a copy of a change. An error says that it did not fit; the collection is of no use then.
func (c *Changes) Add(e Entry) error {
	if c.err == nil {
		c.err = c.pending.add(e.Table, e)
	}
	return c.err
}

// Bytes is the size of the changes: keys, values and 33 bytes each.
func (c *Changes) Bytes() int64 { return c.pending.bytes() }

// Len is the number of keys.
func (c *Changes) Len() int { return c.pending.len() }

// Take ends the collection and gives its changes, in no particular order, once.
func (c *Changes) Take() iter.Seq[Entry] {
	f := c.pending.store.Freeze(1)
	return func(yield func(Entry) bool) {
		for e := range f.Entries() {
			if !yield(pendingEntry(e)) {
				return
			}
		}
	}
}

// PendingBytes is the size of what was collected and not yet written.
func (l *Local) PendingBytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pendingBytes()
}

// Tasks lists the tasks that have a copy, current or not, in no particular order.
func (l *Local) Tasks() []element.TaskID {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]element.TaskID, 0, len(l.tasks))
	for id := range l.tasks {
		out = append(out, id)
	}
	return out
}
