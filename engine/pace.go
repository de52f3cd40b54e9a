package engine

import (
	"slices"
	"time"

	"github.com/millweir/millweir/topology"
)

const (
	// turnTime is how long a task with exchanges before or behind it should work on records before it looks for barriers
	// that overtake. Where a record takes long, a parcel of them takes longer than a checkpoint may.
	turnTime = 50 * time.Millisecond
	// firstTurn is how many records it takes while it is not known how long one takes.
	firstTurn = 16
)

// pace is how long a record, or a timer, takes in one task. It belongs to the task's goroutine.
type pace struct {
	known bool
	each  time.Duration // a moving average
}

// most is how many records a turn may have.
func (p *pace) most() int {
	switch {
	case !p.known:
		return firstTurn
	case p.each <= 0:
		return int(turnTime)
	}
	return max(1, int(turnTime/p.each))
}

// note learns from a turn of n records.
func (p *pace) note(n int, took time.Duration) {
	if n == 0 {
		return
	}
	each := took / time.Duration(n)
	if !p.known {
		p.known, p.each = true, each
		return
	}
	p.each += (each - p.each) / 4
}

// pieces cuts a parcel into smaller ones, by way of what they are in a snapshot: that costs little beside records that are
// so slow. It gives nil when that is not possible.
func (in *input) pieces(t *task, p topology.Parcel, most int) []topology.Parcel {
	var all []topology.Parcel
	var some [][]byte
	flush := func() error {
		if len(some) == 0 {
			return nil
		}
		piece, err := t.chain.Restore(some)
		all, some = append(all, piece), some[:0]
		return err
	}
	err := p.Encode(func(_ int, data []byte) error {
		if some = append(some, slices.Clone(data)); len(some) < most {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	if err != nil {
		return nil
	}
	return all
}
