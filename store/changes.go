package store

// absent marks, in a value length, that the key has no value.
const absent = 1 << 31

const (
	changeBlockShift = 9
	changeBlockSize  = 1 << changeBlockShift
	changeBlockMask  = changeBlockSize - 1
	changeOverhead   = 32 // memory of a change beside key and value, for UncommittedBytes
)

// change is what one epoch did to one key: the value it has in the epoch, and the one it had before. There is at most
// one change per key and epoch. It is an undo record and an element of the dirty list in one.
type change struct {
	entry   ref
	keyLen  uint32
	val     ref
	valLen  uint32 // or absent
	prev    ref
	prevLen uint32 // or absent
}

const changeBlockBytes = int64(changeBlockSize * 24)

// noop reports that the key has no value and had none before: nothing to persist.
func (c *change) noop() bool { return c.valLen == absent && c.prevLen == absent }

type changeBlock [changeBlockSize]change

// changeList is a list of changes in blocks, so that it grows without copying and is handed over by value.
type changeList struct {
	blocks []*changeBlock
	len    uint32
	noops  uint32
	bytes  int64 // keys, values and overhead
}

func (l *changeList) at(i uint32) *change {
	return &l.blocks[i>>changeBlockShift][i&changeBlockMask]
}

// live is the number of changes that are to be persisted.
func (l *changeList) live() int { return int(l.len - l.noops) }

// changePool keeps blocks and block lists for reuse. It belongs to the store's owner.
type changePool struct {
	blocks []*changeBlock
	lists  [][]*changeBlock
	total  int // blocks that exist: in lists, in garbage and here
	keep   int // blocks that may wait here
}

func (p *changePool) list() changeList {
	if n := len(p.lists); n > 0 {
		l := p.lists[n-1]
		p.lists = p.lists[:n-1]
		return changeList{blocks: l}
	}
	return changeList{}
}

func (p *changePool) block() *changeBlock {
	if n := len(p.blocks); n > 0 {
		b := p.blocks[n-1]
		p.blocks = p.blocks[:n-1]
		return b
	}
	p.total++
	return new(changeBlock)
}

// releaseBlock takes back one block; what exceeds the need of the largest recent epoch goes to the collector.
func (p *changePool) releaseBlock(b *changeBlock) {
	if len(p.blocks) >= p.keep {
		p.total--
		return
	}
	p.blocks = append(p.blocks, b)
}

func (p *changePool) releaseList(l []*changeBlock) {
	if cap(l) == 0 || len(p.lists) >= 64 {
		return
	}
	clear(l)
	p.lists = append(p.lists, l[:0])
}

// add appends a change and gives its place.
func (l *changeList) add(p *changePool, c change) uint32 {
	i := l.len
	if i&changeBlockMask == 0 {
		l.blocks = append(l.blocks, p.block())
	}
	l.len++
	l.blocks[i>>changeBlockShift][i&changeBlockMask] = c
	return i
}

// count works out noops and bytes anew.
func (l *changeList) count() {
	l.noops, l.bytes = 0, 0
	for i := range l.len {
		c := l.at(i)
		l.bytes += int64(c.keyLen) + changeOverhead
		if c.valLen != absent {
			l.bytes += int64(c.valLen)
		} else if c.prevLen == absent {
			l.noops++
		}
	}
}
