package txn

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millweir/millweir/internal/fault"
)

// codesOf lists the codes of named errors.
func codesOf(errs ...*kerr.Error) []int16 {
	codes := make([]int16, len(errs))
	for i, e := range errs {
		codes[i] = e.Code
	}
	return codes
}

var (
	// The id has a newer epoch: another process initialised it, or the coordinator did when the transaction timed out.
	// The two look alike from here.
	fencing = codesOf(kerr.ProducerFenced, kerr.InvalidProducerEpoch)

	// The client's producer id is gone on the broker, its state is of no use any more.
	finished = codesOf(kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping,
		kerr.UnknownProducerID, kerr.InvalidTxnState, kerr.OutOfOrderSequenceNumber)

	// The coordinator has forgotten the id, as it does with one that was of no use for transactional.id.expiration.ms (7 days),
	// a transaction that is open not counted. Nothing has failed: a new client's id is as good. Where it is the answer to the
	// end of a transaction the outcome is unknown all the same.
	forgotten = codesOf(kerr.InvalidProducerIDMapping)

	// A topic is gone. If it is made again under its name, a client that has produced to it goes on failing: kgo never
	// takes the new id.
	topicGone = codesOf(kerr.UnknownTopicOrPartition, kerr.UnknownTopicID)

	// The request was not carried out; the same one may be accepted a moment later.
	retriable = codesOf(kerr.ConcurrentTransactions, kerr.NotCoordinator, kerr.CoordinatorNotAvailable,
		kerr.CoordinatorLoadInProgress)

	// The group does not know this member in this generation.
	notMember = codesOf(kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.StaleMemberEpoch, kerr.FencedMemberEpoch,
		kerr.GroupIDNotFound, kerr.RebalanceInProgress)

	denied = codesOf(kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.TransactionalIDAuthorizationFailed, kerr.SaslAuthenticationFailed)

	// The broker will refuse these records however often they come.
	badRecord = codesOf(kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp)
)

// verdict gives the recovery class and the exit code of a failed step.
func verdict(step Step, a Answer) (fault.Recovery, fault.Code) {
	if a.Lost {
		if step == StepCommit {
			return fault.Unconfirmed, fault.Failed
		}
		if step == StepFence {
			return fault.Rejoin, fault.Failed
		}
		return fault.Restart, fault.Failed
	}
	switch c := a.Code; {
	case slices.Contains(fencing, c):
		return fault.Rejoin, fault.Fenced
	case slices.Contains(forgotten, c):
		return fault.Rejoin, fault.Failed
	case step == StepCommit:
		return fault.Unconfirmed, fault.Failed
	case slices.Contains(denied, c):
		return fault.Stop, fault.Denied
	case c == kerr.FencedInstanceID.Code:
		return fault.Stop, fault.Fenced
	case step == StepInit && c == kerr.InvalidTransactionTimeout.Code:
		return fault.Stop, fault.TransactionTimeout
	case slices.Contains(notMember, c), step == StepFence:
		return fault.Rejoin, fault.Failed
	case step == StepProduce && a.Fits:
		return fault.Restart, fault.BadRecord // with batches for the limit as it is then
	case step == StepProduce && slices.Contains(badRecord, c):
		return fault.Stop, fault.BadRecord
	case c == kerr.UnknownTopicOrPartition.Code, step == StepProduce && slices.Contains(topicGone, c):
		return fault.Restart, fault.UnknownTopic
	}
	return fault.Restart, fault.Failed
}

// mustReplace says that a client which got this answer is finished.
func mustReplace(step Step, a Answer) bool {
	return !a.Lost && (slices.Contains(finished, a.Code) || (step == StepProduce && slices.Contains(topicGone, a.Code)))
}
