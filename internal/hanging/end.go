package hanging

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Decision is what a transaction's coordinator decided before the marker was lost.
type Decision struct {
	Known  bool
	Commit bool
	epoch  int16 // of the marker
}

func (d Decision) String() string {
	switch {
	case !d.Known:
		return "unknown"
	case d.Commit:
		return "commit"
	}
	return "abort"
}

// decisionsLimit bounds the wait for a record of the brokers' transaction log that is not at its end.
const decisionsLimit = 30 * time.Second

// Decisions reads from the brokers' transaction log what was decided about hanging transactions, in their order. The user
// needs READ of the topic __transaction_state, and the log must still have the record: it is compacted.
//
// It is told from the epochs: a transaction of version 2 is decided under the epoch after that of its records, and no other
// transaction of the producer is. Under version 1 many have one epoch; of those nothing is said.
func Decisions(ctx context.Context, cl *kgo.Client, hanging []Transaction) ([]Decision, error) {
	out := make([]Decision, len(hanging))
	meta, err := kadm.NewClient(cl).Metadata(ctx, stateTopic)
	if err != nil {
		return nil, fmt.Errorf("read the metadata of %s: %w", stateTopic, err)
	}
	n := len(meta.Topics[stateTopic].Partitions)
	if n == 0 {
		return out, nil
	}
	parts := map[int32]bool{}
	for _, h := range hanging {
		if h.TransactionalID != "" {
			parts[internalPartition(h.TransactionalID, n)] = true
		}
	}
	err = readStates(ctx, cl, parts, func(id string, v *kmsg.TxnMetadataValue) {
		for i, h := range hanging {
			if h.TransactionalID == id && decides(v, h) {
				out[i] = Decision{Known: true, Commit: v.State == kmsg.TransactionStatePrepareCommit, epoch: v.ProducerEpoch}
			}
		}
	})
	return out, err
}

func decides(v *kmsg.TxnMetadataValue, h Transaction) bool {
	if v.ProducerID != h.ProducerID || v.ClientTransactionVersion < 2 || v.ProducerEpoch != h.ProducerEpoch+1 {
		return false
	}
	if v.State != kmsg.TransactionStatePrepareCommit && v.State != kmsg.TransactionStatePrepareAbort {
		return false
	}
	for _, t := range v.Topics {
		for _, p := range t.Partitions {
			if t.Topic == h.Topic && p == h.Partition {
				return true
			}
		}
	}
	return false
}

// readStates calls see with all records of the partitions of the transaction log, in their order.
func readStates(ctx context.Context, cl *kgo.Client, parts map[int32]bool, see func(string, *kmsg.TxnMetadataValue)) error {
	if len(parts) == 0 {
		return nil
	}
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, stateTopic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("read the ends of %s: %w", stateTopic, err)
	}
	from, left := map[int32]kgo.Offset{}, map[int32]int64{}
	for p := range parts {
		end, ok := ends.Lookup(stateTopic, p)
		if !ok {
			return fmt.Errorf("%s/%d has no end", stateTopic, p)
		}
		if end.Offset > 0 {
			from[p], left[p] = kgo.NewOffset().AtStart(), end.Offset
		}
	}
	cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{stateTopic: from})
	defer cl.RemoveConsumePartitions(map[string][]int32{stateTopic: slices.Collect(maps.Keys(parts))})
	ctx, cancel := context.WithTimeout(ctx, decisionsLimit)
	defer cancel()
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read %s: %w", stateTopic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			var k kmsg.TxnMetadataKey
			var v kmsg.TxnMetadataValue
			if k.ReadFrom(r.Key) == nil && r.Value != nil && v.ReadFrom(r.Value) == nil {
				see(k.TransactionalID, &v)
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return nil
}

// End writes the lost marker of a hanging transaction, as it was decided. The user needs CLUSTER_ACTION.
func End(ctx context.Context, cl *kgo.Client, h Transaction, d Decision) error {
	if !d.Known {
		return fmt.Errorf("%v: it is not known what was decided", h)
	}
	marker := kmsg.NewWriteTxnMarkersRequestMarker()
	marker.ProducerID, marker.ProducerEpoch, marker.Committed, marker.CoordinatorEpoch = h.ProducerID, d.epoch, d.Commit, h.CoordinatorEpoch
	marker.TransactionVersion = 2
	topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
	topic.Topic, topic.Partitions = h.Topic, []int32{h.Partition}
	marker.Topics = append(marker.Topics, topic)
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.Markers = append(req.Markers, marker)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return fmt.Errorf("write the marker of %v: %w", h, err)
	}
	for _, m := range resp.Markers {
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return fmt.Errorf("write the marker of %v: %w", h, err)
				}
			}
		}
	}
	return nil
}
