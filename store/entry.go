package store

import "unsafe"

// entry heads a slot of the arena; the bytes of its key follow it, so that one access to memory brings both. Older
// values than val are known to the changes of the epochs that replaced them. It holds no Go pointer: memory that the
// collector does not scan may be seen as an entry.
type entry struct {
	keyLen uint32
	val    ref
	valLen uint32 // or absent
	epoch  uint32 // that wrote val; 0 = loaded or just inserted
	change uint32 // place in the active change list, while epoch is the active one
}

const entrySize = uint32(unsafe.Sizeof(entry{}))

// entry gives the head of an entry's slot. Only the store's owner may touch it; the key behind it never changes while
// the entry exists and may be read by others.
func (c chunks) entry(r ref) *entry {
	return (*entry)(unsafe.Pointer(&c[r>>chunkUnitsShift][uint32(r&chunkUnitsMask)<<unitShift]))
}

// key gives the key of an entry. The length comes from the caller, because a reader beside the owner must not look into
// the head.
func (c chunks) key(r ref, n uint32) []byte {
	off := uint32(r&chunkUnitsMask)<<unitShift + entrySize
	return c[r>>chunkUnitsShift][off : off+n : off+n]
}
