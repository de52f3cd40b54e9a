package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// A run is entries in the order of table and key, in frames: length and CRC-32C of what follows, 4 bytes little endian each,
// then entries:
//
//	uvarint table | uvarint length of key | uvarint 0 for no value, else 1 + its length | key | value
const (
	frameBytes = 64 << 10 // a frame is flushed above it
	frameHead  = 8
)

type runWriter struct {
	w        *spilledView
	f        *os.File
	root     *spillRoot // of f
	from, to int64
	buf      []byte
}

func (w *runWriter) add(e Entry) error {
	if len(w.buf) == 0 {
		w.buf = append(w.buf, make([]byte, frameHead)...)
	}
	w.buf = binary.AppendUvarint(w.buf, uint64(e.Table))
	w.buf = binary.AppendUvarint(w.buf, uint64(len(e.Key)))
	n := uint64(0)
	if !e.Deleted {
		n = uint64(len(e.Value)) + 1
	}
	w.buf = binary.AppendUvarint(w.buf, n)
	w.buf = append(append(w.buf, e.Key...), e.Value...)
	if len(w.buf) < frameBytes {
		return nil
	}
	return w.flush()
}

func (w *runWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	if err := w.w.sp.pool.space(w.root, 0); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(w.buf, uint32(len(w.buf)-frameHead))
	binary.LittleEndian.PutUint32(w.buf[4:], crc32.Checksum(w.buf[frameHead:], castagnoli))
	if _, err := w.f.WriteAt(w.buf, w.to); err != nil {
		return err
	}
	w.to += int64(len(w.buf))
	w.w.grown(int64(len(w.buf)))
	w.buf = w.buf[:0]
	return nil
}

// runReader reads a run. Entries stay as they are when it goes on: each frame has memory of its own.
type runReader struct {
	f      *os.File
	at, to int64
	frame  []byte
}

// next reads an entry into e; it reports false at the end.
func (r *runReader) next(e *Entry) (bool, error) {
	if len(r.frame) == 0 {
		if r.at == r.to {
			return false, nil
		}
		if err := r.read(); err != nil {
			return false, err
		}
	}
	table, a := binary.Uvarint(r.frame)
	key, b := binary.Uvarint(r.frame[max(a, 0):])
	value, c := binary.Uvarint(r.frame[max(a, 0)+max(b, 0):])
	if a <= 0 || b <= 0 || c <= 0 || key > MaxKeySize || value > MaxValueSize+1 {
		return false, r.damaged("not a sequence of entries")
	}
	rest := r.frame[a+b+c:]
	n := key
	if value > 0 {
		n += value - 1
	}
	if uint64(len(rest)) < n {
		return false, r.damaged("an entry ends behind its frame")
	}
	*e = Entry{Table: int(table), Key: rest[:key:key], Deleted: value == 0}
	if value > 0 {
		e.Value = rest[key:n:n]
	}
	r.frame = rest[n:]
	return true, nil
}

func (r *runReader) read() error {
	var head [frameHead]byte
	if _, err := r.f.ReadAt(head[:], r.at); err != nil {
		return fmt.Errorf("%w: %s at %d: %w", ErrSpill, r.f.Name(), r.at, err)
	}
	n := int64(binary.LittleEndian.Uint32(head[:]))
	if n == 0 || n > r.to-r.at-frameHead {
		return r.damaged("length of a frame")
	}
	r.frame = make([]byte, n)
	if _, err := r.f.ReadAt(r.frame, r.at+frameHead); err != nil && err != io.EOF {
		return fmt.Errorf("%w: %s at %d: %w", ErrSpill, r.f.Name(), r.at, err)
	}
	if crc32.Checksum(r.frame, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		return r.damaged("checksum differs")
	}
	r.at += frameHead + n
	return nil
}

func (r *runReader) damaged(what string) error {
	return fmt.Errorf("%w: %s at %d: %s", ErrSpill, r.f.Name(), r.at, what)
}

// cursor stands at an entry of a run, or of what could not be written to one.
type cursor struct {
	e    Entry
	rank int // of two entries with the same key the one of the lower rank is right
	fill func(e *Entry) (bool, error)
}

func (c *cursor) next() (bool, error) { return c.fill(&c.e) }

// runHeap has the cursor with the first entry in front.
type runHeap []*cursor

func (h runHeap) before(i, j int) bool {
	a, b := h[i], h[j]
	return cmp.Or(cmp.Compare(a.e.Table, b.e.Table), bytes.Compare(a.e.Key, b.e.Key), cmp.Compare(a.rank, b.rank)) < 0
}

// down puts the cursor at a place where it belongs.
func (h runHeap) down(i int) {
	for {
		least := i
		for kid := 2*i + 1; kid <= 2*i+2 && kid < len(h); kid++ {
			if h.before(kid, least) {
				least = kid
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}
