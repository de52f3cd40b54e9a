package store

import "slices"

// The index is an extendible hash: a directory, addressed by the high bits of the hash, of segments, each an
// open-addressing table addressed by the low bits. Only one segment grows or splits at a time, so no insert ever
// stalls for the size of the whole table.
const (
	segmentMin   = 16
	segmentMax   = 8192
	maxDepth     = 20 // beyond it segments grow instead of splitting
	segmentLoadN = 3  // a segment is full at 3/4
	segmentLoadD = 4
)

// segment is one open-addressing table with linear probing. A slot holds hash<<32 | reference of the entry; 0 is empty: no reference is 0.
type segment struct {
	slots []uint64
	mask  uint32
	used  uint32
	depth uint8 // number of high hash bits that all its keys share
	gen   uint32
}

type index struct {
	dir   []*segment
	shift uint8 // 32 - log2(len(dir))
	slots int64 // over all segments, for accounting

	gen    uint32 // number of snapshots; a segment of an older generation is part of one and is copied before it changes
	shared bool   // the directory is part of a snapshot
}

func newSegment(size uint32, depth uint8, gen uint32) *segment {
	return &segment{slots: make([]uint64, size), mask: size - 1, depth: depth, gen: gen}
}

func newIndex() index {
	return index{dir: []*segment{newSegment(segmentMin, 0, 0)}, shift: 32, slots: segmentMin}
}

// snapshot gives a directory that never changes, and neither does any segment in it.
func (x *index) snapshot() []*segment {
	x.gen++
	x.shared = true
	return x.dir
}

// own gives the segment of h, which may be changed.
func (x *index) own(h uint32) *segment {
	g := x.dir[h>>x.shift]
	if g.gen == x.gen {
		return g
	}
	c := *g
	c.slots, c.gen = slices.Clone(g.slots), x.gen
	x.replace(h, c.depth, &c, &c)
	return &c
}

// put adds an entry whose key is not in the index.
func (x *index) put(h uint32, r ref) {
	seg := x.dir[h>>x.shift]
	for (seg.used+1)*segmentLoadD > uint32(len(seg.slots))*segmentLoadN {
		x.grow(h)
		seg = x.dir[h>>x.shift]
	}
	if seg.gen != x.gen {
		seg = x.own(h)
	}
	seg.add(uint64(h)<<32 | uint64(r))
}

func (g *segment) add(slot uint64) {
	i := uint32(slot>>32) & g.mask
	for g.slots[i] != 0 {
		i = (i + 1) & g.mask
	}
	g.slots[i] = slot
	g.used++
}

// grow doubles the segment of h, or splits it in two when it has its full size.
func (x *index) grow(h uint32) {
	old := x.dir[h>>x.shift]
	size := uint32(len(old.slots))
	if size < segmentMax || old.depth >= maxDepth {
		g := newSegment(2*size, old.depth, x.gen)
		for _, s := range old.slots {
			if s != 0 {
				g.add(s)
			}
		}
		x.slots += int64(size)
		x.replace(h, old.depth, g, g)
		return
	}
	if 32-old.depth == x.shift {
		dir := make([]*segment, 2*len(x.dir))
		for i, g := range x.dir {
			dir[2*i], dir[2*i+1] = g, g
		}
		x.dir, x.shift, x.shared = dir, x.shift-1, false
	}
	lo, hi := newSegment(size, old.depth+1, x.gen), newSegment(size, old.depth+1, x.gen)
	bit := uint64(1) << (63 - old.depth)
	for _, s := range old.slots {
		switch {
		case s == 0:
		case s&bit == 0:
			lo.add(s)
		default:
			hi.add(s)
		}
	}
	x.slots += int64(size)
	x.replace(h, old.depth, lo, hi)
}

// replace puts lo and hi into the two halves of the directory range that the segment of h with this depth has.
func (x *index) replace(h uint32, depth uint8, lo, hi *segment) {
	if x.shared {
		x.dir, x.shared = slices.Clone(x.dir), false
	}
	n := uint32(1) << (32 - x.shift - depth)
	first := h >> x.shift &^ (n - 1)
	for i := range n {
		if i < n/2 {
			x.dir[first+i] = lo
		} else {
			x.dir[first+i] = hi
		}
	}
}

// remove takes out the entry. The slots behind it move up, so there are no gravestones.
func (x *index) remove(h uint32, r ref) {
	g := x.own(h)
	want := uint64(h)<<32 | uint64(r)
	i := h & g.mask
	for g.slots[i] != want {
		if g.slots[i] == 0 {
			return
		}
		i = (i + 1) & g.mask
	}
	for j := i; ; {
		j = (j + 1) & g.mask
		s := g.slots[j]
		if s == 0 {
			break
		}
		// s may move into the hole unless its home lies cyclically behind the hole.
		if home := uint32(s>>32) & g.mask; (j-home)&g.mask >= (j-i)&g.mask {
			g.slots[i] = s
			i = j
		}
	}
	g.slots[i] = 0
	g.used--
}

// shrink makes the segment of h smaller when few keys are left in it.
func (x *index) shrink(h uint32) {
	old := x.dir[h>>x.shift]
	size := uint32(len(old.slots))
	for size > segmentMin && old.used*4 < size {
		size /= 2
	}
	if size == uint32(len(old.slots)) {
		return
	}
	g := newSegment(size, old.depth, x.gen)
	for _, s := range old.slots {
		if s != 0 {
			g.add(s)
		}
	}
	x.slots -= int64(len(old.slots)) - int64(size)
	x.replace(h, old.depth, g, g)
}

// all visits every entry until fn returns false.
func (x *index) all(fn func(r ref) bool) {
	var last *segment
	for _, g := range x.dir {
		if g == last {
			continue // a segment fills a range of the directory
		}
		last = g
		for _, s := range g.slots {
			if s != 0 && !fn(ref(s)) {
				return
			}
		}
	}
}
