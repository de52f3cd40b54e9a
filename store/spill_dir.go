package store

import "slices"

const (
	blockMax       = 4 << 10 // a block above it is split, unless it has one entry
	bucketDepthMax = 24
	bucketBytes    = 80 // of a bucket and its place in a directory, about
)

// bucket names the block of all spilled keys whose hashes have the same first bits. It never changes: a new block is a new
// bucket.
type bucket struct {
	depth  uint8 // number of high hash bits
	n      uint32
	size   uint32
	sum    uint32 // CRC-32C of the block
	file   *spillFile
	off    int64
	filter []uint64
}

func (b *bucket) memory() int64 { return bucketBytes + int64(len(b.filter))*8 }

// last is the highest hash of the bucket that has h.
func (b *bucket) last(h uint32) uint32 {
	return h | uint32(uint64(1)<<(32-b.depth)-1)
}

// spillDir is the directory of a table's buckets by the high bits of the hash, as that of the index. A directory that was
// taken for a snapshot is not changed any more.
type spillDir struct {
	dir     []*bucket
	shift   uint8
	shared  bool
	entries int64
	memory  int64
}

func newSpillDir() *spillDir {
	b := &bucket{}
	return &spillDir{dir: []*bucket{b}, shift: 32, memory: b.memory()}
}

func (x *spillDir) at(h uint32) *bucket { return x.dir[h>>x.shift] }

// may says that a key with this hash may be in a block.
func (x *spillDir) may(h uint32) bool { return filterHas(x.at(h).filter, h) }

func (x *spillDir) snapshot() []*bucket {
	x.shared = true
	return x.dir
}

// depthMost bounds the depth so that hashes that are alike by chance do not blow the directory up.
func (x *spillDir) depthMost(more int) uint8 {
	n := x.entries + int64(more)
	d := uint8(1)
	for ; n > 1 && d < bucketDepthMax; n >>= 1 {
		d++
	}
	return d
}

// put gives the hashes that share the first depth bits of prefix the bucket b.
func (x *spillDir) put(prefix uint32, b *bucket) {
	for 32-x.shift < b.depth {
		dir := make([]*bucket, 2*len(x.dir))
		for i, g := range x.dir {
			dir[2*i], dir[2*i+1] = g, g
		}
		x.dir, x.shift, x.shared = dir, x.shift-1, false
	}
	if x.shared {
		x.dir, x.shared = slices.Clone(x.dir), false
	}
	n := uint32(1) << (32 - x.shift - b.depth)
	first := prefix >> x.shift &^ (n - 1)
	for i := range n {
		x.dir[first+i] = b
	}
}

// eachBucket visits the buckets of a directory that have a block, until fn returns false.
func eachBucket(dir []*bucket, fn func(b *bucket) bool) {
	var last *bucket
	for _, b := range dir {
		if b == last {
			continue // a bucket fills a range of the directory
		}
		last = b
		if b.n > 0 && !fn(b) {
			return
		}
	}
}
