//go:build synctests

package synctests

import (
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// answers are the errors that a broker of version 4 may give to a request of the service at any time, without having
// acted on it (kfake acts all the same with REQUEST_TIMED_OUT and NOT_ENOUGH_REPLICAS_AFTER_APPEND, as a broker does).
var answers = map[kmsg.Key][]*kerr.Error{
	kmsg.Produce: {
		kerr.NotLeaderForPartition, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut, kerr.KafkaStorageError,
		kerr.TransactionAbortable, kerr.InvalidProducerEpoch, kerr.InvalidTxnState, kerr.ConcurrentTransactions,
	},
	kmsg.TxnOffsetCommit: {
		kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.RequestTimedOut, kerr.ConcurrentTransactions,
		kerr.TransactionAbortable, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.InvalidTxnState,
	},
	kmsg.EndTxn: {
		kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.ConcurrentTransactions, kerr.RequestTimedOut,
		kerr.TransactionAbortable, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidTxnState, kerr.UnknownServerError,
	},
	kmsg.InitProducerID: {
		kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.ConcurrentTransactions, kerr.RequestTimedOut,
	},
	kmsg.OffsetFetch:     {kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.UnstableOffsetCommit},
	kmsg.Fetch:           {kerr.NotLeaderForPartition, kerr.KafkaStorageError, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch, kerr.OffsetNotAvailable},
	kmsg.ListOffsets:     {kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.OffsetNotAvailable},
	kmsg.Heartbeat:       {kerr.NotCoordinator, kerr.CoordinatorNotAvailable, kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration},
	kmsg.JoinGroup:       {kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.UnknownMemberID},
	kmsg.SyncGroup:       {kerr.NotCoordinator, kerr.CoordinatorNotAvailable, kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration},
	kmsg.FindCoordinator: {kerr.CoordinatorNotAvailable},
}

// diskErrors are those of a medium.
var diskErrors = []error{syscall.EIO, syscall.ENOSPC, syscall.EINTR}

// brokerFault answers requests of the service with an error, and leaves those of the load and of the checks alone.
func brokerFault(e Event) kfake.Fault {
	f := kfake.Fault{Keys: []kmsg.Key{e.Key}, Err: e.Err, Count: e.Count}
	switch e.Key {
	case kmsg.Fetch, kmsg.ListOffsets:
		f.Topic = inTopic
	case kmsg.Produce:
		f.When = func(r kmsg.Request) bool { return ours(r.(*kmsg.ProduceRequest).TransactionID) }
	case kmsg.InitProducerID:
		f.When = func(r kmsg.Request) bool { return ours(r.(*kmsg.InitProducerIDRequest).TransactionalID) }
	case kmsg.EndTxn:
		f.When = func(r kmsg.Request) bool { return ours(&r.(*kmsg.EndTxnRequest).TransactionalID) }
	case kmsg.FindCoordinator:
	default:
		f.Group = application
	}
	return f
}

func ours(id *string) bool { return id != nil && strings.HasPrefix(*id, application+"-") }
