package kafkasink

import "github.com/millweir/millweir/element"

// partitionFor is the partition that Kafka's Java client chooses for a key: the same rule, and the same hash, that gives a
// key its group. count is positive.
func partitionFor(key []byte, count int32) int32 { return int32(element.KeyGroup(key, int(count))) }
