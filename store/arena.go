package store

import "math/bits"

// Chunk and slot sizes. References are 32 bits in units of 8 bytes, so one store addresses 32 GiB.
const (
	unitShift       = 3
	chunkShift      = 16 // 64 KiB: small enough for many nearly empty tasks, large enough to be rare
	chunkSize       = 1 << chunkShift
	chunkUnitsShift = chunkShift - unitShift
	chunkUnitsMask  = 1<<chunkUnitsShift - 1
	maxChunks       = 1 << (32 - chunkUnitsShift)

	smallUnits = 16   // up to 128 bytes every multiple of 8 is a class
	slotUnits  = 2048 // up to 16 KiB four classes per doubling; larger values get a chunk of their own
	numClasses = smallUnits + 7*4
	largePage  = 4096 // own chunks are rounded up to this
)

// ref names a slot: chunk number and offset in units. It is no Go pointer, so the collector never follows it.
type ref uint32

// chunks is the list of a store's chunks. It only grows at its end, and a chunk that is in use is never replaced, so a
// copy of the slice header taken at a freeze stays good for every reference that existed then.
type chunks [][]byte

// at gives the n bytes of a slot. The result has no spare capacity.
func (c chunks) at(r ref, n uint32) []byte {
	if n == 0 {
		return []byte{}
	}
	off := uint32(r&chunkUnitsMask) << unitShift
	return c[r>>chunkUnitsShift][off : off+n : off+n]
}

// arena hands out slots in size classes. Slots that came back are kept in stacks per class, outside the slots, so that
// giving back does not touch their memory.
type arena struct {
	chunks chunks
	off    uint32 // next free byte of the bump chunk
	bump   uint32 // number of the bump chunk
	free   [numClasses][]ref
	spare  []uint32 // numbers of large chunks that were given back
	bytes  int64    // memory held in chunks
	large  int64    // of it in those of one slot each
	limit  int64    // upper bound of bytes

	drain    []uint32 // by chunk: units in use of one that goes when they have come back, else 0; nil when there is none
	draining int      // how many go
}

func newArena(limit int64) arena {
	return arena{off: chunkSize, limit: limit}
}

// class gives the size class of n bytes, 0 < n <= 16 KiB.
func class(n uint32) int {
	u := (n + 7) >> unitShift
	if u <= smallUnits {
		return int(u) - 1
	}
	k := bits.Len32(u - 1)
	return smallUnits + (k-5)*4 + int((u-1-1<<(k-1))>>(k-3))
}

// classUnits gives the slot size of a class in units.
func classUnits(c int) uint32 {
	if c < smallUnits {
		return uint32(c) + 1
	}
	k := (c-smallUnits)/4 + 5
	return 1<<(k-1) + uint32((c-smallUnits)%4+1)<<(k-3)
}

// sameSlot reports that values of n and m bytes fit the same slot.
func sameSlot(n, m uint32) bool {
	if n == m {
		return true
	}
	if n == 0 || m == 0 {
		return false
	}
	const largest = slotUnits << unitShift
	if n > largest || m > largest {
		return n > largest && m > largest && (n-1)/largePage == (m-1)/largePage
	}
	return class(n) == class(m)
}

// alloc gives a slot for n bytes; what is in it is undefined. It reports false when the limit or the address space is
// used up. No slot is needed for 0 bytes.
func (a *arena) alloc(n uint32) (ref, bool) {
	if n == 0 {
		return 0, true
	}
	if n > slotUnits<<unitShift {
		return a.allocLarge(n)
	}
	c := class(n)
	if f := a.free[c]; len(f) > 0 {
		r := f[len(f)-1]
		a.free[c] = f[:len(f)-1]
		return r, true
	}
	size := classUnits(c) << unitShift
	if a.off+size > chunkSize && !a.nextChunk() {
		return 0, false
	}
	r := ref(a.bump<<chunkUnitsShift | a.off>>unitShift)
	a.off += size
	return r, true
}

// nextChunk starts a new bump chunk. What is left of the old one is cut into slots.
func (a *arena) nextChunk() bool {
	if len(a.chunks) >= maxChunks && len(a.spare) == 0 || a.bytes+chunkSize > a.limit {
		return false
	}
	for c := numClasses - 1; c >= 0 && a.off < chunkSize; {
		if size := classUnits(c) << unitShift; a.off+size <= chunkSize {
			a.free[c] = append(a.free[c], ref(a.bump<<chunkUnitsShift|a.off>>unitShift))
			a.off += size
			continue
		}
		c--
	}
	a.bytes += chunkSize
	a.off = 0
	if k := len(a.spare); k > 0 {
		a.bump, a.spare = a.spare[k-1], a.spare[:k-1]
		a.chunks[a.bump] = make([]byte, chunkSize)
		return true
	}
	if a.bump = uint32(len(a.chunks)); a.bump == 0 {
		a.off = 1 << unitShift // no slot has reference 0
	}
	a.chunks = append(a.chunks, make([]byte, chunkSize))
	return true
}

func (a *arena) allocLarge(n uint32) (ref, bool) {
	size := (int64(n) + largePage - 1) &^ (largePage - 1)
	if a.bytes+size > a.limit {
		return 0, false
	}
	var i uint32
	if k := len(a.spare); k > 0 {
		i, a.spare = a.spare[k-1], a.spare[:k-1]
		a.chunks[i] = make([]byte, size)
	} else {
		if len(a.chunks) >= maxChunks {
			return 0, false
		}
		if i = uint32(len(a.chunks)); i == 0 {
			a.chunks, i = append(a.chunks, nil), 1 // no slot has reference 0
		}
		a.chunks = append(a.chunks, make([]byte, size))
	}
	a.bytes += size
	a.large += size
	return ref(i << chunkUnitsShift), true
}

// release gives back the slot of n bytes. Nobody may read it any more.
func (a *arena) release(r ref, n uint32) {
	if n == 0 {
		return
	}
	if n > slotUnits<<unitShift {
		i := uint32(r >> chunkUnitsShift)
		a.bytes -= int64(len(a.chunks[i]))
		a.large -= int64(len(a.chunks[i]))
		a.chunks[i] = nil
		a.spare = append(a.spare, i)
		return
	}
	c := class(n)
	if a.drain != nil && a.drained(r, c) {
		return
	}
	a.free[c] = append(a.free[c], r)
}
