package txn

import "github.com/millweir/millweir/checkpoint"

// pieceBytes bounds what one request of offsets makes the broker write. The coordinator writes the offsets of a request
// as one batch to __consumer_offsets and refuses the whole request (UNKNOWN_SERVER_ERROR, older brokers
// INVALID_COMMIT_OFFSET_SIZE) when that is above the topic's max.message.bytes: 1 MiB unless somebody changed it. A
// quarter of that leaves room for brokers that are told to take less; one more request costs a round trip, which beside
// the writing of so many partitions' checkpoint does not show.
const pieceBytes = 256 << 10

// entryOverhead is what an offset takes in that batch beside its strings: the record's own lengths and deltas, offset,
// leader epoch, times and topic id. Some 70 bytes; the rest is reserve.
const entryOverhead = 128

// pieces cuts the offsets of a checkpoint so that no piece makes the group's coordinator write more than pieceBytes,
// unless a single offset does. Each entry repeats the names of group and topic. The order stays; the pieces share the
// memory of offsets. No offsets are no piece.
func pieces(group string, offsets []checkpoint.OffsetCommit) [][]checkpoint.OffsetCommit {
	var out [][]checkpoint.OffsetCommit
	from, size := 0, 0
	for i := range offsets {
		n := entryOverhead + len(group) + len(offsets[i].Position.Topic) + len(offsets[i].Metadata)
		if i > from && size+n > pieceBytes {
			out = append(out, offsets[from:i:i])
			from, size = i, 0
		}
		size += n
	}
	if from < len(offsets) {
		out = append(out, offsets[from:])
	}
	return out
}
