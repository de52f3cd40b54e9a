package verify

import (
	"errors"
	"math"
	"math/bits"
)

// keyHash is how a key is known: 128 bits, from two seeds.
type keyHash struct{ a, b uint64 }

// Flags of an entry.
const (
	flagSplitIn  uint8 = 1 << iota // inputs of the key in more than one partition
	flagSplitOut                   // outputs of the key in more than one partition
	flagNoSum                      // the sum of the first inputs, of some number of them, leaves int64, or the floats
	flagFloat                      // the sum is a float: an input was one

	flagSplit = flagSplitIn | flagSplitOut
)

// entry is what one pass keeps of a key: 64 bytes, no pointer. An entry with in and out 0 is a free slot.
type entry struct {
	key      keyHash
	in, out  uint32
	sum      int64  // of all inputs so far, modulo 2^64; with flagFloat the bits of a float
	inChain  uint64 // digest of (k, prefix sum) for the inputs k ≤ out
	outChain uint64 // digest of (count, sum) of the outputs
	inPart   int32
	outPart  int32
	flags    uint8
}

// table is an open-addressing hash table with linear probing. It covers the keys whose first hash is in lo…hi and
// narrows that range by itself when there are more keys than the budget; the rest is left to another pass.
type table struct {
	slots  []entry
	used   int
	budget int
	lo, hi uint64
}

const (
	firstSlots = 1 << 12
	// The table is at most 80 % full.
	fillNum, fillDen = 4, 5
)

var (
	errTooManyRecords = errors.New("more than 4294967294 records of one key")
	errHashRange      = errors.New("the key budget is too small: keys of equal hash exceed it")
)

func newTable(budget int, lo, hi uint64) *table {
	return &table{slots: make([]entry, firstSlots), budget: budget, lo: lo, hi: hi}
}

func (t *table) covers(h keyHash) bool { return h.a >= t.lo && h.a <= t.hi }

// slot gives where a key is or belongs. The second hash places it, since the first one splits the passes.
func (t *table) slot(h keyHash) *entry {
	i, _ := bits.Mul64(h.b, uint64(len(t.slots)))
	for {
		e := &t.slots[i]
		if (e.in == 0 && e.out == 0) || e.key == h {
			return e
		}
		if i++; i == uint64(len(t.slots)) {
			i = 0
		}
	}
}

// find gives the entry of a key, nil when there is none.
func (t *table) find(h keyHash) *entry {
	if e := t.slot(h); e.in != 0 || e.out != 0 {
		return e
	}
	return nil
}

// put gives the entry of a key, a free one with the key set if it is new (the caller must count a record in it), nil
// if the key is out of the range, which may have just narrowed.
func (t *table) put(h keyHash) (*entry, error) {
	if !t.covers(h) {
		return nil, nil
	}
	e := t.slot(h)
	if e.in != 0 || e.out != 0 {
		return e, nil
	}
	for t.used >= t.budget {
		if err := t.narrow(); err != nil {
			return nil, err
		}
		if !t.covers(h) {
			return nil, nil
		}
		e = t.slot(h)
	}
	if (t.used+1)*fillDen > len(t.slots)*fillNum {
		most := t.budget*fillDen/fillNum + 8
		t.rebuild(min(2*len(t.slots), max(most, firstSlots)))
		e = t.slot(h)
	}
	t.used++
	e.key = h
	return e, nil
}

// narrow halves the range and forgets the keys of the upper half.
func (t *table) narrow() error {
	if t.lo == t.hi {
		return errHashRange
	}
	t.hi = t.lo + (t.hi-t.lo)/2
	t.rebuild(len(t.slots))
	return nil
}

// next gives the range of the pass after this one, more false after the last pass. It tries twice the width, which
// narrows again where the keys are as dense as here.
func (t *table) next() (lo, hi uint64, more bool) {
	if t.hi == math.MaxUint64 {
		return 0, 0, false
	}
	lo = t.hi + 1
	width := t.hi - t.lo + 1 // 0 is no case: hi would be the greatest
	if width > (math.MaxUint64-lo)/2 {
		return lo, math.MaxUint64, true
	}
	return lo, lo + 2*width - 1, true
}

// rebuild moves the covered entries to a table of n slots.
func (t *table) rebuild(n int) {
	old := t.slots
	t.slots, t.used = make([]entry, n), 0
	for i := range old {
		if e := &old[i]; (e.in != 0 || e.out != 0) && t.covers(e.key) {
			*t.slot(e.key) = *e
			t.used++
		}
	}
}

// addOutput counts one output of a key.
func (t *table) addOutput(h keyHash, partition int32, count int64, sum number) error {
	e, err := t.put(h)
	if e == nil || err != nil {
		return err
	}
	if e.out == math.MaxUint32-1 {
		return errTooManyRecords
	}
	if e.out == 0 {
		e.outPart = partition
	} else if e.outPart != partition {
		e.flags |= flagSplitOut
	}
	e.out++
	e.outChain = chain(e.outChain, count, sum)
	return nil
}

// addInput counts one input of a key. All outputs must have been added before: the digest of the inputs stops at as
// many, so that a job that still runs can be checked as far as it got.
func (t *table) addInput(h keyHash, partition int32, amount number) error {
	e, err := t.put(h)
	if e == nil || err != nil {
		return err
	}
	if e.in == math.MaxUint32-1 {
		return errTooManyRecords
	}
	if e.in == 0 {
		e.inPart = partition
	} else if e.inPart != partition {
		e.flags |= flagSplitIn
	}
	e.in++
	sum, fits := number{e.sum, e.flags&flagFloat != 0}.plus(amount)
	if !fits {
		e.flags |= flagNoSum
	}
	if e.sum = sum.bits; sum.float {
		e.flags |= flagFloat
	}
	if e.in <= e.out {
		e.inChain = chain(e.inChain, int64(e.in), sum.plain())
	}
	return nil
}

// exactPrefix says that the outputs are what the first inputs must give, all inputs or fewer.
func (e *entry) exactPrefix() bool {
	return e.flags&(flagSplit|flagNoSum) == 0 && e.out <= e.in && e.inChain == e.outChain
}

// chain is one step of an order-sensitive digest.
func chain(d uint64, count int64, sum number) uint64 {
	if sum.float {
		d = mix(^d) // its bits are those of an integer, too
	}
	return mix(mix(d+uint64(count)*0x9E3779B97F4A7C15) ^ uint64(sum.bits))
}

// mix is the finisher of splitmix64, a bijection.
func mix(z uint64) uint64 {
	z += 0x9E3779B97F4A7C15
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB
	return z ^ (z >> 31)
}
