package store

import (
	"cmp"
	"slices"
)

// Chunks are given back to the system by draining: their free slots are taken off the lists, and what is still in use in
// them is moved out by evicting it. A chunk of which nothing is in use is let go.

// freeBytes is what the free slots hold, and the rest of the newest chunk.
func (a *arena) freeBytes() int64 {
	n := int64(chunkSize - a.off)
	for c, f := range a.free {
		n += int64(len(f)) * int64(classUnits(c)) << unitShift
	}
	return n
}

// drains says that a slot is in a chunk that goes.
func (a *arena) drains(r ref) bool {
	i := r >> chunkUnitsShift
	return int(i) < len(a.drain) && a.drain[i] > 0
}

// drainSparse lets chunks go of at least so many bytes, those with the most room in free slots, if there are as many that
// have any.
func (a *arena) drainSparse(bytes int64) {
	free := make([]uint32, len(a.chunks))
	for c, f := range a.free {
		for _, r := range f {
			free[r>>chunkUnitsShift] += classUnits(c)
		}
	}
	var sparse []uint32
	for i := 1; i < len(a.chunks); i++ { // the first has the unit that is no slot
		if free[i] > 0 && uint32(i) != a.bump {
			sparse = append(sparse, uint32(i))
		}
	}
	slices.SortFunc(sparse, func(i, j uint32) int { return cmp.Compare(free[j], free[i]) })
	sparse = sparse[:min(int64(len(sparse)), (bytes+chunkSize-1)/chunkSize)]
	if len(sparse) == 0 {
		return
	}
	a.drain = make([]uint32, len(a.chunks))
	const gone = ^uint32(0)
	for _, i := range sparse {
		if a.drain[i] = chunkUnitsMask + 1 - free[i]; a.drain[i] == 0 {
			a.drain[i] = gone
		}
	}
	for c, f := range a.free {
		a.free[c] = slices.DeleteFunc(f, func(r ref) bool { return a.drain[r>>chunkUnitsShift] != 0 })
	}
	a.draining = len(sparse)
	for _, i := range sparse {
		if a.drain[i] == gone {
			a.letGo(i)
		}
	}
}

// drained takes back a slot of a chunk that goes; it reports false for one of another chunk.
func (a *arena) drained(r ref, class int) bool {
	if !a.drains(r) {
		return false
	}
	i := uint32(r >> chunkUnitsShift)
	if a.drain[i] -= classUnits(class); a.drain[i] == 0 {
		a.letGo(i)
	}
	return true
}

func (a *arena) letGo(i uint32) {
	a.drain[i] = 0
	a.chunks[i] = nil
	a.bytes -= chunkSize
	a.spare = append(a.spare, i)
	if a.draining--; a.draining == 0 {
		a.drain = nil
	}
}
