package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/millweir/millweir/internal/fault"
)

// runWriter writes runs one after the other to one stream. It allocates nothing per entry.
type runWriter struct {
	w   io.Writer
	off int64 // bytes written to w, over all runs

	head    runHeader
	start   int64 // offset of the current run
	sum     hash.Hash
	crc     uint32
	block   []byte // head and payload of the open block; empty = none open
	entries uint32 // in the open block
	state   int    // of the open section, -1 = none
	key     []byte // last key of the open section
	foot    runFooter
}

func newRunWriter(w io.Writer) *runWriter {
	return &runWriter{w: w, sum: sha256.New(), block: make([]byte, 0, blockSize+4096)}
}

// begin starts a run.
func (w *runWriter) begin(h runHeader) error {
	w.head, w.start, w.crc, w.state = h, w.off, 0, -1
	w.foot = runFooter{sections: w.foot.sections[:0]}
	w.sum.Reset()
	w.block, w.key, w.entries = w.block[:0], w.key[:0], 0
	return w.emit(h.append(nil))
}

// emit writes bytes of the current run.
func (w *runWriter) emit(b []byte) error {
	w.sum.Write(b)
	w.crc = crc32.Update(w.crc, castagnoli, b)
	n, err := w.w.Write(b)
	w.off += int64(n)
	return err
}

// size is an upper bound of what the run has when it is finished now.
func (w *runWriter) size() int64 {
	const numbers = 4 * binary.MaxVarintLen64
	return w.off - w.start + int64(len(w.block)) + blockHead + int64(len(w.foot.sections)+1)*numbers + runTail
}

// add appends an entry. Entries come sorted by state, then key, each key once.
func (w *runWriter) add(e *Entry) error {
	if e.State != w.state {
		if err := w.openSection(e.State); err != nil {
			return err
		}
	}
	shared := 0
	if w.entries > 0 {
		shared = commonPrefix(w.key, e.Key)
	}
	sec := &w.foot.sections[len(w.foot.sections)-1]
	if sec.entries > 0 && bytes.Compare(e.Key[shared:], w.key[shared:]) <= 0 {
		return fmt.Errorf("snapshot: task %s: state %s: entries are not sorted or a key comes twice", w.head.Task,
			w.head.States[e.State].Name)
	}
	if e.Deleted && w.head.Full {
		return fmt.Errorf("snapshot: task %s: state %s: a tombstone in the whole state", w.head.Task, w.head.States[e.State].Name)
	}
	if len(e.Key) > MaxKeySize || len(e.Value) > MaxValueSize {
		return fault.Stopf(fault.BadRecord, "task %s: state %s: entry with a key of %d and a value of %d bytes, at most %d and %d are allowed",
			w.head.Task, w.head.States[e.State].Name, len(e.Key), len(e.Value), MaxKeySize, MaxValueSize)
	}
	if len(w.block) == 0 {
		w.block = append(w.block, make([]byte, blockHead)...)
	}
	value := uint64(0) // a tombstone
	if !e.Deleted {
		value = uint64(len(e.Value)) + 1
	}
	b := binary.AppendUvarint(w.block, uint64(shared))
	b = binary.AppendUvarint(b, uint64(len(e.Key)-shared))
	b = binary.AppendUvarint(b, value)
	b = append(b, e.Key[shared:]...)
	if e.Deleted {
		w.foot.tombstones++
	} else {
		b = append(b, e.Value...)
	}
	w.block = b
	w.key = append(w.key[:shared], e.Key[shared:]...)
	w.entries++
	sec.entries++
	w.foot.entries++
	if len(w.block) >= blockSize {
		return w.flush()
	}
	return nil
}

func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

func (w *runWriter) openSection(state int) error {
	if state < 0 || state >= len(w.head.States) {
		return fmt.Errorf("snapshot: task %s: entry of state %d, there are %d", w.head.Task, state, len(w.head.States))
	}
	if state < w.state {
		return fmt.Errorf("snapshot: task %s: entries are not sorted by state", w.head.Task)
	}
	if err := w.closeSection(); err != nil {
		return err
	}
	w.state = state
	w.key = w.key[:0]
	w.foot.sections = append(w.foot.sections, section{state: state, offset: w.off - w.start})
	return nil
}

func (w *runWriter) closeSection() error {
	if err := w.flush(); err != nil {
		return err
	}
	if n := len(w.foot.sections); n > 0 {
		sec := &w.foot.sections[n-1]
		sec.length = w.off - w.start - sec.offset
	}
	return nil
}

// flush writes the open block.
func (w *runWriter) flush() error {
	if len(w.block) == 0 {
		return nil
	}
	sealBlock(w.block, uint32(w.state), w.entries)
	err := w.emit(w.block)
	w.entries = 0
	w.block = w.block[:0]
	if cap(w.block) > 8*blockSize { // grown by a large entry: do not keep it
		w.block = make([]byte, 0, blockSize+4096)
	}
	return err
}

// sealBlock fills in the head of a block.
func sealBlock(b []byte, state, entries uint32) {
	binary.BigEndian.PutUint32(b, uint32(len(b)-blockHead))
	binary.BigEndian.PutUint32(b[4:], state)
	binary.BigEndian.PutUint32(b[8:], entries)
	binary.BigEndian.PutUint32(b[12:], crc32.Update(crc32c(b[:12]), castagnoli, b[blockHead:]))
}

// finish ends the run. File and FileSize of the reference are the caller's to set.
func (w *runWriter) finish() (RunRef, error) {
	if err := w.closeSection(); err != nil {
		return RunRef{}, err
	}
	tail := make([]byte, blockHead, 256) // the end mark: a block of nothing
	sealBlock(tail, 0, 0)
	if err := w.emit(w.foot.append(tail)); err != nil {
		return RunRef{}, err
	}
	ref := RunRef{
		Offset: w.start, Length: w.off - w.start, CRC: w.crc,
		From: w.head.From, To: w.head.To, Full: w.head.Full, Entries: w.foot.entries,
	}
	w.sum.Sum(ref.Digest[:0])
	return ref, nil
}
