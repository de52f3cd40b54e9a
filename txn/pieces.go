package txn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/internal/kafka"
)

// pieceBytes bounds what one request of offsets makes the broker write, until it is found to take less. The coordinator
// writes the offsets of a request as one batch to __consumer_offsets and refuses the whole request (UNKNOWN_SERVER_ERROR,
// older brokers INVALID_COMMIT_OFFSET_SIZE) when that is above the topic's max.message.bytes: 1 MiB unless somebody changed
// it. A quarter of that leaves room for brokers that are told to take less; one more request costs a round trip, which
// beside the writing of so many partitions' checkpoint does not show.
const pieceBytes = 256 << 10

const (
	// entryOverhead is what an offset takes in that batch beside its strings: the record's own lengths and deltas, offset,
	// leader epoch, times and topic id. Some 70 bytes; the rest is reserve.
	entryOverhead = 128
	// mostAlone is how often in a row the offset of a single partition may be refused for no known reason. A broker that has
	// tripped over something is better by then; a limit that it does not name stays.
	mostAlone = 5
	// explainFor bounds the reading of the limits that a refusal may be for.
	explainFor = 5 * time.Second
	// calmAfter is after how many commits without a refusal the bound is doubled: a refusal may have had another reason, or
	// the limit may have been raised. To be wrong costs one request.
	calmAfter = 64
)

// sizes says how much goes in one request of offsets. What a refusal has taught is kept from one attempt to the next: it is the
// process's. The zero value begins with pieceBytes.
type sizes struct {
	mu    sync.Mutex
	bound int // under mu: a piece's bytes, unless it is a single partition; 0 = pieceBytes
	calm  int // under mu: commits that began since the bound has changed
	alone int // under mu: refusals of single partitions in a row, without a reason
}

func (s *sizes) most() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bound == 0 {
		return pieceBytes
	}
	return s.bound
}

// begin gives the pieces of a commit that begins.
func (s *sizes) begin(group string, offsets []checkpoint.OffsetCommit) [][]checkpoint.OffsetCommit {
	s.mu.Lock()
	if s.bound > 0 && s.calm >= calmAfter {
		s.bound, s.calm = min(2*s.bound, pieceBytes), 0
	}
	s.calm++
	s.mu.Unlock()
	return s.pieces(group, offsets)
}

// pieces cuts the offsets of a checkpoint so that no piece makes the group's coordinator write more than the bound, unless
// a single offset does. The order stays; the pieces share the memory of offsets. No offsets are no piece.
func (s *sizes) pieces(group string, offsets []checkpoint.OffsetCommit) [][]checkpoint.OffsetCommit {
	most := s.most()
	var out [][]checkpoint.OffsetCommit
	from, size := 0, 0
	for i := range offsets {
		n := entrySize(group, &offsets[i])
		if i > from && size+n > most {
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

// entrySize is what an offset makes the coordinator write, at most. Each entry repeats the names of group and topic.
func entrySize(group string, o *checkpoint.OffsetCommit) int {
	return entryOverhead + len(group) + len(o.Position.Topic) + len(o.Metadata)
}

// cut halves the bound because piece at was refused, and cuts that one and those after it anew. The pieces are those of
// offsets.
func (s *sizes) cut(group string, offsets []checkpoint.OffsetCommit, pieces [][]checkpoint.OffsetCommit, at int) [][]checkpoint.OffsetCommit {
	size := 0
	for i := range pieces[at] {
		size += entrySize(group, &pieces[at][i])
	}
	s.mu.Lock()
	if s.bound == 0 || size/2 < s.bound {
		s.bound = max(1, size/2)
	}
	s.calm = 0
	s.mu.Unlock()
	begin := 0
	for _, p := range pieces[:at] {
		begin += len(p)
	}
	return append(slices.Clip(pieces[:at]), s.pieces(group, offsets[begin:])...)
}

// taken says that a piece was accepted.
func (s *sizes) taken() {
	s.mu.Lock()
	s.alone = 0
	s.mu.Unlock()
}

// explain adds to the refusal of a piece which limit of the brokers it is for, if it may be for one. final says that it is,
// also where err alone does not say so.
func (s *sizes) explain(ctx context.Context, cl *kgo.Client, group string, piece []checkpoint.OffsetCommit, err error) (_ error, final bool) {
	var ke *kerr.Error
	if !errors.As(err, &ke) || (!slices.Contains(tooMuch, ke.Code) && ke.Code != kerr.OffsetMetadataTooLarge.Code) {
		return err, false
	}
	ctx, cancel := context.WithTimeout(ctx, explainFor)
	defer cancel()
	limits := kafka.ReadOffsetLimits(ctx, cl)
	if ke.Code == kerr.OffsetMetadataTooLarge.Code {
		return metadataTooLarge(limits.Metadata, piece, err), true
	}
	return s.batchTooLarge(limits.Batch, group, &piece[0], ke, err)
}

func metadataTooLarge(allowed int64, piece []checkpoint.OffsetCommit, err error) error {
	need := 0
	for i := range piece {
		need = max(need, len(piece[i].Metadata))
	}
	told := "allow less (the setting cannot be read)"
	if allowed > 0 {
		told = fmt.Sprintf("allow %d", allowed)
	}
	return fmt.Errorf("a checkpoint's handle, the metadata of an offset, has up to %d bytes, and the brokers %s: set their offset.metadata.max.bytes to %d, the default: %w", need, told, MaxHandle, err)
}

// batchTooLarge judges the refusal of a single offset.
func (s *sizes) batchTooLarge(allowed int64, group string, o *checkpoint.OffsetCommit, ke *kerr.Error, err error) (_ error, final bool) {
	const batch = 61 // what a batch of Kafka's has beside its records
	need := int64(entrySize(group, o) + batch)
	says := ke.Code != kerr.UnknownServerError.Code
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !says && allowed >= need:
		s.bound, s.alone = 0, 0 // what the pieces have become smaller for was none of their size
		return err, false
	case !says && allowed == 0:
		if s.alone++; s.alone < mostAlone {
			return fmt.Errorf("the offset of one partition alone is refused, for which the max.message.bytes of topic %s may be the reason: %w", kafka.OffsetsTopic, err), false
		}
	}
	told := "its max.message.bytes cannot be read"
	if allowed > 0 {
		told = fmt.Sprintf("its max.message.bytes is %d", allowed)
	}
	return fmt.Errorf("the offset of one partition alone does not fit into topic %s: it takes up to %d bytes, %d of them the checkpoint's handle, and %s: raise it, the default is 1048588: %w", kafka.OffsetsTopic, need, len(o.Metadata), told, err), true
}
