package store

import (
	"encoding/binary"
	"math/bits"
)

// A block holds the spilled entries of one bucket, in the order of their hashes:
//
//	hash, 4 bytes little endian | uvarint length of key | uvarint length of value | key | value
//
// It is never changed. Its length and checksum are in the bucket, in memory.

// spilled is an entry of a block. Key and value alias the block.
type spilled struct {
	hash       uint32
	key, value []byte
	size       int // bytes in the block
}

func appendSpilled(b []byte, hash uint32, key, value []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, hash)
	b = binary.AppendUvarint(b, uint64(len(key)))
	b = binary.AppendUvarint(b, uint64(len(value)))
	b = append(b, key...)
	return append(b, value...)
}

// firstSpilled gives the first entry of what is left of a block. It reports false when that is none.
func firstSpilled(b []byte) (e spilled, ok bool) {
	if len(b) < 6 {
		return e, false
	}
	e.hash = binary.LittleEndian.Uint32(b)
	key, n := uint64(b[4]), 1
	if key >= 0x80 {
		key, n = binary.Uvarint(b[4:])
	}
	at := 4 + n
	if n <= 0 || at >= len(b) {
		return e, false
	}
	value, m := uint64(b[at]), 1
	if value >= 0x80 {
		value, m = binary.Uvarint(b[at:])
	}
	at += m
	if m <= 0 || key > MaxKeySize || value > MaxValueSize || uint64(len(b)-at) < key+value {
		return e, false
	}
	end := at + int(key)
	e.key, e.value = b[at:end:end], b[end:end+int(value):end+int(value)]
	e.size = end + int(value)
	return e, true
}

// A filter tells which hashes a bucket does not have: 8 bits for each that it has, of which it sets 4; it is wrong about
// some 2 in 100 of the others. The hashes of a bucket differ in their low bits.
const (
	filterBits   = 8
	filterProbes = 4
)

func newFilter(n int) []uint64 {
	if n == 0 {
		return nil
	}
	return make([]uint64, (n*filterBits+63)/64)
}

// filterProbe gives the first place and the distance of the others, as fractions of the filter.
func filterProbe(h uint32) (at, step uint32) {
	x := uint64(h) * 0x9e3779b97f4a7c15
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return uint32(x >> 32), uint32(x) | 1
}

func filterSet(f []uint64, h uint32) {
	at, step := filterProbe(h)
	for range filterProbes {
		i, _ := bits.Mul32(at, uint32(len(f))*64)
		f[i>>6] |= 1 << (i & 63)
		at += step
	}
}

func filterHas(f []uint64, h uint32) bool {
	if len(f) == 0 {
		return false
	}
	at, step := filterProbe(h)
	for range filterProbes {
		i, _ := bits.Mul32(at, uint32(len(f))*64)
		if f[i>>6]&(1<<(i&63)) == 0 {
			return false
		}
		at += step
	}
	return true
}
