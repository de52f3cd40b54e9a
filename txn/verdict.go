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

	// A topic is gone. If it is made again under its name, a client that has produced to it goes on failing: kgo never
	// takes the new id.
	topicGone = codesOf(kerr.UnknownTopicOrPartition, kerr.UnknownTopicID)

	// The request was not carried out; the same one may be accepted a moment later.
	retriable = codesOf(kerr.ConcurrentTransactions, kerr.NotCoordinator, kerr.CoordinatorNotAvailable,
		kerr.CoordinatorLoadInProgress)

	// The offsets of a request may be more than the group's coordinator can write to __consumer_offsets at once. Brokers of
	// today say no more than that something is wrong.
	tooMuch = codesOf(kerr.UnknownServerError, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidCommitOffsetSize)
)

// class is what becomes of an attempt, and the exit code should the process end.
type class struct {
	rec  fault.Recovery
	code fault.Code
}

// classes is made of as.
type classes map[int16]class

func (m classes) as(rec fault.Recovery, code fault.Code, errs ...*kerr.Error) classes {
	for _, e := range errs {
		m[e.Code] = class{rec, code}
	}
	return m
}

// everywhere has the class of each code that a request of a transaction may be answered with, whichever it was. What a new
// attempt can do no better ends the process.
var everywhere = make(classes).
	as(fault.Rejoin, fault.Fenced, kerr.ProducerFenced, kerr.InvalidProducerEpoch).
	as(fault.Rejoin, fault.Failed, kerr.InvalidProducerIDMapping).
	// The group does not know this member in this generation.
	as(fault.Rejoin, fault.Failed, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.StaleMemberEpoch, kerr.FencedMemberEpoch,
		kerr.GroupIDNotFound, kerr.RebalanceInProgress).
	as(fault.Stop, fault.Fenced, kerr.FencedInstanceID).
	as(fault.Stop, fault.Denied, kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.TransactionalIDAuthorizationFailed, kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism,
		kerr.IllegalSaslState, kerr.SecurityDisabled, kerr.PolicyViolation).
	as(fault.Stop, fault.BrokerTooOld, kerr.UnsupportedVersion, kerr.UnsupportedForMessageFormat, kerr.UnsupportedCompressionType).
	// A name that the brokers take for none, or a topic that is theirs.
	as(fault.Stop, fault.BadFile, kerr.InvalidTopicException, kerr.InvalidGroupID).
	as(fault.Restart, fault.UnknownTopic, kerr.UnknownTopicOrPartition).
	as(fault.Restart, fault.Failed, kerr.UnknownTopicID, kerr.InconsistentTopicID).
	// The transaction is lost, and a new one has nothing to do with it.
	as(fault.Restart, fault.Failed, kerr.TransactionAbortable, kerr.InvalidTxnState, kerr.OperationNotAttempted,
		kerr.TransactionalIDNotFound, kerr.TransactionCoordinatorFenced, kerr.UnknownProducerID, kerr.OutOfOrderSequenceNumber,
		kerr.DuplicateSequenceNumber).
	// Coordinators, leaders and replicas move, load, are short of something, or in the middle of a write.
	as(fault.Restart, fault.Failed, kerr.ConcurrentTransactions, kerr.NotCoordinator, kerr.CoordinatorNotAvailable,
		kerr.CoordinatorLoadInProgress, kerr.LeaderNotAvailable, kerr.NotLeaderForPartition, kerr.ReplicaNotAvailable,
		kerr.BrokerNotAvailable, kerr.ListenerNotFound, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch, kerr.NotEnoughReplicas,
		kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut, kerr.NetworkException, kerr.KafkaStorageError, kerr.LogDirNotFound,
		kerr.ThrottlingQuotaExceeded, kerr.RebootstrapRequired, kerr.StaleBrokerEpoch, kerr.NotController).
	// Damage on the way, and brokers that trip over something: a new client has new connections and other batches.
	as(fault.Restart, fault.Failed, kerr.CorruptMessage, kerr.UnknownServerError, kerr.InvalidRequest, kerr.InvalidRequiredAcks)

// at has what a code means in one step only.
var at = map[Step]classes{
	// The broker will refuse these records however often they come.
	StepProduce: make(classes).
		as(fault.Stop, fault.BadRecord, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp).
		as(fault.Restart, fault.UnknownTopic, kerr.UnknownTopicID),
	StepInit: make(classes).
		as(fault.Stop, fault.TransactionTimeout, kerr.InvalidTransactionTimeout),
	// A limit of the brokers that a checkpoint's handle is above. More than one partition is sent again in smaller requests
	// before that is said.
	StepOffsets: make(classes).
		as(fault.Stop, fault.Denied, kerr.OffsetMetadataTooLarge, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidCommitOffsetSize),
	// After an EndTxn that was not answered with success nobody knows, unless the id has been taken or forgotten.
	StepCommit: make(classes).
		as(fault.Rejoin, fault.Fenced, kerr.ProducerFenced, kerr.InvalidProducerEpoch).
		as(fault.Rejoin, fault.Failed, kerr.InvalidProducerIDMapping),
}

// others is what a code means that no table has: it is of a newer broker.
var others = map[Step]class{
	StepCommit: {fault.Unconfirmed, fault.Failed},
	StepFence:  {fault.Rejoin, fault.Failed},
}

// classOf looks a code up; listed says that a table has it.
func classOf(step Step, code int16) (c class, listed bool) {
	if c, listed = at[step][code]; listed {
		return c, true
	}
	least := others[step]
	c, listed = everywhere[code]
	switch {
	case step == StepCommit:
		return least, listed
	case listed && c.rec >= least.rec:
		return c, true
	}
	return class{least.rec, max(least.code, fault.Failed)}, listed
}

// verdict gives the recovery class and the exit code of a failed step.
func verdict(step Step, a Answer) (fault.Recovery, fault.Code) {
	switch {
	case a.Lost:
		return others[step].rec, fault.Failed
	case step == StepProduce && a.Fits:
		return fault.Restart, fault.BadRecord // with batches for the limit as it is then
	case step == StepOffsets && a.Final:
		return fault.Stop, fault.Denied
	}
	c, _ := classOf(step, a.Code)
	return c.rec, c.code
}

// mustReplace says that a client which got this answer is finished.
func mustReplace(step Step, a Answer) bool {
	return !a.Lost && (slices.Contains(finished, a.Code) || (step == StepProduce && slices.Contains(topicGone, a.Code)))
}
