package topology

import "unsafe"

const (
	// arenaChunkBytes is how much an arena takes from the heap at once. A chunk lives as long as anything in it is
	// referenced, so it is small beside the output buffers of a client.
	arenaChunkBytes = 64 << 10
	// arenaFreeBytes is the least free room with which an encoding is begun; below it a new chunk is taken.
	arenaFreeBytes = 512
)

// arena hands out memory for encodings. Memory once handed out is never written again, so it may be given away.
type arena struct {
	buf []byte // the part in use; the rest of its capacity is free
}

// begin gives an empty slice to append one encoding to. end must follow before the next begin.
func (a *arena) begin() []byte {
	if cap(a.buf)-len(a.buf) < arenaFreeBytes {
		a.buf = make([]byte, 0, arenaChunkBytes)
	}
	return a.buf[len(a.buf):]
}

// end takes the slice that begin gave after appending to it and returns the encoding, never nil. An encoding that outgrew
// the chunk has moved to memory of its own and is returned as it is.
func (a *arena) end(b []byte) []byte {
	free := a.buf[len(a.buf):cap(a.buf)]
	if len(b) == 0 {
		return free[:0:0]
	}
	if unsafe.SliceData(b) == unsafe.SliceData(free) {
		a.buf = a.buf[:len(a.buf)+len(b)]
	}
	return b[:len(b):len(b)]
}

// copy gives an immutable copy of b, never nil.
func (a *arena) copy(b []byte) []byte { return a.end(append(a.begin(), b...)) }
