package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
)

// sortKey is a change by its place in the list and the first bytes of its key that tell keys apart.
type sortKey struct {
	prefix uint64
	at     uint32
}

// radixFrom is the number of keys from which the radix sort is faster than comparing.
const radixFrom = 128

// keySorter keeps its scratch space from table to table.
type keySorter struct {
	keys, spare []sortKey
}

// sort gives the changes of the list that are to be persisted, in the order of their key bytes. The result is valid until
// the next call.
func (s *keySorter) sort(c chunks, l *changeList) []sortKey {
	s.keys = slices.Grow(s.keys[:0], l.live())
	skip := commonPrefix(c, l)
	for i := range l.len {
		if ch := l.at(i); !ch.noop() {
			s.keys = append(s.keys, sortKey{prefix: prefixAt(c.key(ch.entry, ch.keyLen), skip), at: i})
		}
	}
	byKey := func(a, b sortKey) int {
		x, y := l.at(a.at), l.at(b.at)
		return bytes.Compare(c.key(x.entry, x.keyLen), c.key(y.entry, y.keyLen))
	}
	s.order(byKey)
	return s.keys
}

// order sorts the keys that were gathered; byKey compares two whose prefixes are equal.
func (s *keySorter) order(byKey func(a, b sortKey) int) {
	if len(s.keys) < radixFrom {
		slices.SortFunc(s.keys, func(a, b sortKey) int {
			if a.prefix != b.prefix {
				return cmp.Compare(a.prefix, b.prefix)
			}
			return byKey(a, b)
		})
		return
	}
	s.radix()
	for from := 0; from < len(s.keys); { // equal prefixes decide nothing
		to := from + 1
		for to < len(s.keys) && s.keys[to].prefix == s.keys[from].prefix {
			to++
		}
		if to-from > 1 {
			slices.SortFunc(s.keys[from:to], byKey)
		}
		from = to
	}
}

// radix sorts by prefix, one byte at a time from the lowest; bytes that are the same in all prefixes are left out.
func (s *keySorter) radix() {
	var counts [8][256]uint32
	var differ uint64
	for i := range s.keys {
		p := s.keys[i].prefix
		differ |= p ^ s.keys[0].prefix
		for b := range counts {
			counts[b][byte(p>>(8*b))]++
		}
	}
	s.spare = slices.Grow(s.spare[:0], len(s.keys))[:len(s.keys)]
	for b := range counts {
		if byte(differ>>(8*b)) == 0 {
			continue
		}
		at, sum := &counts[b], uint32(0)
		for v, n := range at {
			at[v], sum = sum, sum+n
		}
		for _, k := range s.keys {
			v := byte(k.prefix >> (8 * b))
			s.spare[at[v]] = k
			at[v]++
		}
		s.keys, s.spare = s.spare, s.keys
	}
}

// prefixAt gives the 8 bytes from skip on, big endian, a shorter rest filled up with zeros. Keys whose prefixes differ
// are ordered by them; equal prefixes decide nothing.
func prefixAt(key []byte, skip int) uint64 {
	rest := key[skip:]
	if len(rest) >= 8 {
		return binary.BigEndian.Uint64(rest)
	}
	var b [8]byte
	copy(b[:], rest)
	return binary.BigEndian.Uint64(b[:])
}

// commonPrefix is the number of leading bytes that all keys of the list share, so that keys such as customer-000017 are
// told apart by the bytes that differ.
func commonPrefix(c chunks, l *changeList) int {
	if l.len == 0 {
		return 0
	}
	first := l.at(0)
	common := c.key(first.entry, first.keyLen)
	for i := uint32(1); i < l.len && len(common) > 0; i++ {
		ch := l.at(i)
		common = sharedPrefix(common, c.key(ch.entry, ch.keyLen))
	}
	return len(common)
}

// sharedPrefix cuts common down to what key begins with.
func sharedPrefix(common, key []byte) []byte {
	if len(key) >= len(common) && string(key[:len(common)]) == string(common) {
		return common
	}
	return common[:sameBytes(common, key)]
}

// sameBytes is the number of bytes with which both begin.
func sameBytes(a, b []byte) int {
	n := min(len(a), len(b))
	for k := range n {
		if a[k] != b[k] {
			return k
		}
	}
	return n
}
