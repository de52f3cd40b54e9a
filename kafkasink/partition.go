package kafkasink

import "encoding/binary"

// murmur2 is Kafka's variant of the 32-bit hash (org.apache.kafka.common.utils.Utils.murmur2).
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

// partitionFor is the partition that Kafka's Java client chooses for a key. count is positive.
func partitionFor(key []byte, count int32) int32 {
	return int32(murmur2(key)&0x7fffffff) % count
}
