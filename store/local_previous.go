package store

import (
	"bytes"
	"errors"

	"github.com/dgraph-io/badger/v4"
)

const (
	// previousDense is how many entries the copy may have for each that is written so that walking along is cheaper
	// than looking up.
	previousDense = 8
	// previousWalk is how far it walks before it looks up all the same.
	previousWalk = 32
)

// previous finds what the database held before a flush, for keys in ascending order.
type previous struct {
	txn *badger.Txn
	it  *badger.Iterator // walks along, nil for look-ups
	at  bool             // it stands somewhere
}

func newPrevious(db *badger.DB, version uint64, prefix []byte, dense bool) *previous {
	p := &previous{txn: db.NewTransactionAt(version, false)}
	if dense {
		p.it = p.txn.NewIterator(badger.IteratorOptions{Prefix: prefix})
	}
	return p
}

func (p *previous) close() {
	if p.it != nil {
		p.it.Close()
	}
	p.txn.Discard()
}

// value gives the value of a key to fn and says whether there is one.
func (p *previous) value(key []byte, fn func([]byte) error) (bool, error) {
	if p.it == nil {
		item, err := p.txn.Get(key)
		if errors.Is(err, badger.ErrKeyNotFound) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		return true, item.Value(fn)
	}
	if !p.at {
		p.it.Seek(key)
		p.at = true
	}
	for n := 0; p.it.Valid(); n++ {
		switch order := bytes.Compare(p.it.Item().Key(), key); {
		case order == 0:
			return true, p.it.Item().Value(fn)
		case order > 0:
			return false, nil
		case n == previousWalk:
			p.it.Seek(key)
		default:
			p.it.Next()
		}
	}
	return false, nil
}
