package element

import "encoding/binary"

// DefaultMaxParallelism is the number of key groups when nothing else is said, as in Flink for small jobs.
const DefaultMaxParallelism = 128

// KeyGroup gives the group of a key: the unit that keyed state and keyed records in flight move by when the parallelism
// changes. It is the positive part of murmur2, the hash of Kafka's Java client, modulo maxParallelism, which must be
// above 0.
func KeyGroup(key []byte, maxParallelism int) int {
	return int(murmur2(key)&0x7fffffff) % maxParallelism
}

// SubtaskOf gives the subtask that owns a key group.
func SubtaskOf(group, parallelism, maxParallelism int) int {
	return group * parallelism / maxParallelism
}

// GroupRange gives the key groups of a subtask, from inclusive, to exclusive: those that SubtaskOf sends to it.
func GroupRange(subtask, parallelism, maxParallelism int) (from, to int) {
	up := func(n int) int { return (n*maxParallelism + parallelism - 1) / parallelism }
	return up(subtask), up(subtask + 1)
}

// murmur2 is the 32-bit hash that Kafka's Java client partitions keys by.
func murmur2(b []byte) uint32 {
	const (
		seed = 0x9747b28c
		mul  = 0x5bd1e995
	)
	h := seed ^ uint32(len(b))
	for len(b) >= 4 {
		k := binary.LittleEndian.Uint32(b) * mul
		k ^= k >> 24
		h = h*mul ^ k*mul
		b = b[4:]
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(b[0])) * mul
	}
	h ^= h >> 13
	h *= mul
	return h ^ h>>15
}
