package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"hash/crc32"
	"io"
)

// blockReader decodes the blocks of a run, or of one section of it. Memory: one block and one key. It checks block
// checksums before it gives out a byte, the order of keys, and the counts that the blocks declare.
type blockReader struct {
	r      io.Reader
	remain int64        // bytes that r can still give
	seen   func([]byte) // sees every byte read; nil = nobody

	buf     []byte
	payload []byte
	left    uint32 // entries still in payload
	state   int    // -1 before the first block
	key     []byte
	inState int64 // entries given out of this state
	entry   Entry
	states  int // number of states that the header declares
}

// full reads exactly len(b) bytes.
func (r *blockReader) full(b []byte) error {
	if int64(len(b)) > r.remain {
		return formatf("truncated: %d bytes wanted, %d left", len(b), r.remain)
	}
	if _, err := io.ReadFull(r.r, b); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return formatf("truncated")
		}
		return err
	}
	r.remain -= int64(len(b))
	if r.seen != nil {
		r.seen(b)
	}
	return nil
}

// grow gives a buffer of n bytes. n was compared with the bytes left before.
func (r *blockReader) grow(n int) []byte {
	if cap(r.buf) < n {
		r.buf = make([]byte, n+n/8)
	}
	return r.buf[:n]
}

// nextBlock reads a block; false at the end mark or, within a section, at its end.
func (r *blockReader) nextBlock(inSection bool) (bool, error) {
	if inSection && r.remain == 0 {
		return false, nil
	}
	var head [blockHead]byte
	if err := r.full(head[:]); err != nil {
		return false, err
	}
	n := binary.BigEndian.Uint32(head[:])
	state := binary.BigEndian.Uint32(head[4:])
	entries := binary.BigEndian.Uint32(head[8:])
	if int64(n) > r.remain || n > maxBlock {
		return false, formatf("block claims %d bytes, %d are left", n, r.remain)
	}
	payload := r.grow(int(n))
	if err := r.full(payload); err != nil {
		return false, err
	}
	if binary.BigEndian.Uint32(head[12:]) != crc32.Update(crc32c(head[:12]), castagnoli, payload) {
		return false, formatf("block checksum mismatch")
	}
	switch {
	case n == 0 && state == 0 && entries == 0 && !inSection:
		return false, nil
	case entries == 0 || uint64(entries) > uint64(n)/3:
		return false, formatf("block of %d bytes claims %d entries", n, entries)
	case int64(state) >= int64(r.states) || int(state) < r.state:
		return false, formatf("block of state %d, after state %d of %d", state, r.state, r.states)
	}
	if int(state) != r.state {
		r.state, r.inState, r.key = int(state), 0, r.key[:0]
	}
	r.payload, r.left = payload, entries
	return true, nil
}

// nextEntry decodes an entry of the block; call it only while left > 0.
func (r *blockReader) nextEntry(first bool) error {
	c := cursor{b: r.payload}
	shared, unshared, value := c.uvarint("entry"), c.uvarint("entry"), c.uvarint("entry")
	if c.err == nil && (shared > uint64(len(r.key)) || (first && shared != 0) || unshared > MaxKeySize || shared+unshared > MaxKeySize) {
		c.fail("entry with a key that shares %d bytes of %d and has %d more", shared, len(r.key), unshared)
	}
	if value > MaxValueSize+1 {
		c.fail("entry with a value of %d bytes", value-1)
	}
	suffix := c.take(int(unshared), "key")
	var val []byte
	if value > 0 {
		val = c.take(int(value-1), "value")
	}
	if c.err != nil {
		return c.err
	}
	if r.inState > 0 && bytes.Compare(suffix, r.key[shared:]) <= 0 {
		return formatf("keys are not in order")
	}
	r.key = append(r.key[:shared], suffix...)
	r.payload = c.b
	r.left--
	r.inState++
	if r.left == 0 && len(r.payload) > 0 {
		return formatf("block has %d bytes after its last entry", len(r.payload))
	}
	r.entry = Entry{State: r.state, Key: r.key, Value: val, Deleted: value == 0}
	return nil
}

// runReader streams one run and verifies all of it.
type runReader struct {
	blockReader
	ref    RunRef
	sum    hash.Hash
	crc    uint32
	head   runHeader
	foot   runFooter // counted while reading, compared with the one in the file
	length int64     // bytes read
}

// newRunReader reads and checks the header. src must give ref.Length bytes.
func newRunReader(src io.Reader, ref RunRef) (*runReader, error) {
	r := &runReader{ref: ref, sum: sha256.New()}
	r.blockReader = blockReader{r: src, remain: ref.Length, state: -1, seen: func(b []byte) {
		r.sum.Write(b)
		r.crc = crc32.Update(r.crc, castagnoli, b)
		r.length += int64(len(b))
	}}
	head := make([]byte, len(runMagic)+5)
	if err := r.full(head); err != nil {
		return nil, err
	}
	if string(head[:len(runMagic)]) != runMagic {
		return nil, formatf("not a run: it does not begin with %q", runMagic)
	}
	n := binary.BigEndian.Uint32(head[len(runMagic)+1:])
	if n > maxRunHead || int64(n) > r.remain-4 {
		return nil, formatf("header claims %d bytes, %d are left", n, r.remain)
	}
	rest := make([]byte, int(n)+4)
	if err := r.full(rest); err != nil {
		return nil, err
	}
	body := rest[:n]
	if binary.BigEndian.Uint32(rest[n:]) != crc32.Update(crc32c(head), castagnoli, body) {
		return nil, formatf("header: checksum mismatch")
	}
	if v := head[len(runMagic)]; v != runVersion {
		return nil, formatf("format version %d, this program reads %d", v, runVersion)
	}
	var err error
	if r.head, err = decodeRunHeader(body); err != nil {
		return nil, formatf("header: %v", err)
	}
	if err := checkStates(r.head.States); err != nil {
		return nil, formatf("header: %v", err)
	}
	h := &r.head
	if h.From != ref.From || h.To != ref.To || h.Full != ref.Full {
		return nil, formatf("holds (%d, %d] full=%t, (%d, %d] full=%t is expected", h.From, h.To, h.Full, ref.From, ref.To, ref.Full)
	}
	r.states = len(h.States)
	return r, nil
}

// each gives all entries to fn, then checks the footer, the checksum and the digest. Entries that fn saw come from
// blocks whose checksums held; only a nil error says that the run is whole.
func (r *runReader) each(fn func(*Entry) error) error {
	for {
		at := r.length
		ok, err := r.nextBlock(false)
		if err != nil {
			return err
		}
		if !ok {
			return r.verifyEnd()
		}
		r.countBlock(at)
		for first := true; r.left > 0; first = false {
			if err := r.nextEntry(first); err != nil {
				return err
			}
			if r.entry.Deleted {
				if r.head.Full {
					return formatf("tombstone in a full run")
				}
				r.foot.tombstones++
			}
			if fn == nil {
				continue
			}
			if err := fn(&r.entry); err != nil {
				return applyError{err}
			}
		}
	}
}

// countBlock keeps the sections as the footer should name them.
func (r *runReader) countBlock(at int64) {
	n := len(r.foot.sections)
	if n == 0 || r.foot.sections[n-1].state != r.state {
		r.foot.sections = append(r.foot.sections, section{state: r.state, offset: at})
		n++
	}
	s := &r.foot.sections[n-1]
	s.length = r.length - s.offset
	s.entries += int64(r.left)
	r.foot.entries += int64(r.left)
}

func (r *runReader) verifyEnd() error {
	if r.remain > maxRunHead {
		return formatf("footer of %d bytes", r.remain)
	}
	b := make([]byte, r.remain)
	if err := r.full(b); err != nil {
		return err
	}
	foot, err := decodeFooter(b)
	if err != nil {
		return err
	}
	same := foot.entries == r.foot.entries && foot.tombstones == r.foot.tombstones && len(foot.sections) == len(r.foot.sections)
	for i := 0; same && i < len(foot.sections); i++ {
		same = foot.sections[i] == r.foot.sections[i]
	}
	switch {
	case !same:
		return formatf("footer does not match the blocks")
	case r.ref.Entries != foot.entries:
		return formatf("%d entries, %d are expected", foot.entries, r.ref.Entries)
	case r.ref.CRC != r.crc:
		return formatf("checksum mismatch")
	}
	var d Digest
	r.sum.Sum(d[:0])
	if d != r.ref.Digest {
		return formatf("digest mismatch: it is not the run that the root names")
	}
	return nil
}

// applyError carries an error of the caller's function past the code that makes CorruptErrors.
type applyError struct{ err error }

func (e applyError) Error() string { return e.err.Error() }
func (e applyError) Unwrap() error { return e.err }
