package txn

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

var (
	// What every request may be answered: the connection, the login, the rights, versions.
	anyRequest = []*kerr.Error{kerr.UnknownServerError, kerr.NetworkException, kerr.RequestTimedOut, kerr.InvalidRequest, kerr.UnsupportedVersion,
		kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState, kerr.SecurityDisabled,
		kerr.PolicyViolation, kerr.ThrottlingQuotaExceeded, kerr.RebootstrapRequired, kerr.StaleBrokerEpoch, kerr.NotController}
	metadataRequest = []*kerr.Error{kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InconsistentTopicID, kerr.LeaderNotAvailable, kerr.InvalidTopicException,
		kerr.TopicAuthorizationFailed, kerr.ReplicaNotAvailable, kerr.ListenerNotFound, kerr.BrokerNotAvailable}
	coordinatorRequest = []*kerr.Error{kerr.NotCoordinator, kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress, kerr.InvalidGroupID}
	transactionRequest = []*kerr.Error{kerr.ConcurrentTransactions, kerr.InvalidTxnState, kerr.InvalidProducerIDMapping, kerr.InvalidProducerEpoch, kerr.ProducerFenced,
		kerr.TransactionalIDAuthorizationFailed, kerr.TransactionAbortable, kerr.TransactionalIDNotFound, kerr.TransactionCoordinatorFenced, kerr.OperationNotAttempted}
	produceRequest = []*kerr.Error{kerr.CorruptMessage, kerr.NotLeaderForPartition, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.NotEnoughReplicas,
		kerr.NotEnoughReplicasAfterAppend, kerr.InvalidRequiredAcks, kerr.InvalidTimestamp, kerr.UnsupportedForMessageFormat, kerr.OutOfOrderSequenceNumber,
		kerr.DuplicateSequenceNumber, kerr.UnknownProducerID, kerr.KafkaStorageError, kerr.LogDirNotFound, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch,
		kerr.UnsupportedCompressionType, kerr.InvalidRecord}
	commitRequest = []*kerr.Error{kerr.OffsetMetadataTooLarge, kerr.InvalidCommitOffsetSize, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.GroupAuthorizationFailed,
		kerr.TopicAuthorizationFailed, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.RebalanceInProgress, kerr.FencedInstanceID,
		kerr.StaleMemberEpoch, kerr.FencedMemberEpoch, kerr.GroupIDNotFound}
)

// answerable has the codes that a step may come back with: its own request's, and those of what the client asks before it.
func answerable() map[Step][]*kerr.Error {
	transaction := slices.Concat(anyRequest, coordinatorRequest, transactionRequest)
	return map[Step][]*kerr.Error{
		StepInit:    append(slices.Clone(transaction), kerr.InvalidTransactionTimeout),
		StepBegin:   transaction,
		StepProduce: slices.Concat(transaction, metadataRequest, produceRequest), // with AddPartitionsToTxn
		StepOffsets: slices.Concat(transaction, commitRequest),                   // with AddOffsetsToTxn
		StepCommit:  transaction,
		StepAbort:   transaction,
	}
}

// TestEveryCodeHasAVerdictOfItsOwn: what a request may be answered is decided, and what is foreign to all of them is known
// to be: a code that a later client knows has to be put in one of the two.
func TestEveryCodeHasAVerdictOfItsOwn(t *testing.T) {
	known := map[int16]bool{}
	for step, errs := range answerable() {
		for _, e := range errs {
			known[e.Code] = true
			_, listed := classOf(step, e.Code)
			require.True(t, listed, "%s: %s", step, e.Message)
		}
	}
	for c := range everywhere {
		require.True(t, known[c], "%v is no answer to any step", kerr.ErrorForCode(c))
	}
	foreign := codesOf(kerr.OffsetOutOfRange, kerr.InvalidFetchSize, kerr.StaleControllerEpoch, kerr.InconsistentGroupProtocol, kerr.InvalidSessionTimeout,
		kerr.TopicAlreadyExists, kerr.InvalidPartitions, kerr.InvalidReplicationFactor, kerr.InvalidReplicaAssignment, kerr.InvalidConfig,
		kerr.ReassignmentInProgress, kerr.DelegationTokenAuthDisabled, kerr.DelegationTokenNotFound, kerr.DelegationTokenOwnerMismatch,
		kerr.DelegationTokenRequestNotAllowed, kerr.DelegationTokenAuthorizationFailed, kerr.DelegationTokenExpired, kerr.InvalidPrincipalType,
		kerr.NonEmptyGroup, kerr.FetchSessionIDNotFound, kerr.InvalidFetchSessionEpoch, kerr.TopicDeletionDisabled, kerr.OffsetNotAvailable,
		kerr.MemberIDRequired, kerr.PreferredLeaderNotAvailable, kerr.GroupMaxSizeReached, kerr.EligibleLeadersNotAvailable, kerr.ElectionNotNeeded,
		kerr.NoReassignmentInProgress, kerr.GroupSubscribedToTopic, kerr.UnstableOffsetCommit)
	for c := int16(-1); c <= 89; c++ {
		if c != 0 {
			require.NotEqual(t, known[c], slices.Contains(foreign, c), "%v", kerr.ErrorForCode(c))
		}
	}
	// From 90 on nearly all codes are of controllers, quorums, shares and streams.
	late := codesOf(kerr.ProducerFenced, kerr.UnknownTopicID, kerr.InconsistentTopicID, kerr.TransactionalIDNotFound, kerr.FencedMemberEpoch, kerr.StaleMemberEpoch,
		kerr.TransactionAbortable, kerr.RebootstrapRequired)
	for c := int16(90); c < 1000; c++ {
		require.Equal(t, slices.Contains(late, c), known[c], "%v", kerr.ErrorForCode(c))
	}
	require.Equal(t, kerr.UnknownServerError, kerr.TypedErrorForCode(kerr.ControllerIDNotRegistered.Code+1), "the client knows a code that nobody has looked at")
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		step Step
		rec  fault.Recovery
		code fault.Code
		errs []*kerr.Error
	}{
		{StepProduce, fault.Stop, fault.BadRecord, []*kerr.Error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp}},
		{StepProduce, fault.Stop, fault.Denied, []*kerr.Error{kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.PolicyViolation, kerr.SaslAuthenticationFailed, kerr.SecurityDisabled}},
		{StepProduce, fault.Stop, fault.BadFile, []*kerr.Error{kerr.InvalidTopicException}},
		{StepProduce, fault.Stop, fault.BrokerTooOld, []*kerr.Error{kerr.UnsupportedVersion, kerr.UnsupportedForMessageFormat, kerr.UnsupportedCompressionType}},
		{StepProduce, fault.Restart, fault.UnknownTopic, []*kerr.Error{kerr.UnknownTopicOrPartition, kerr.UnknownTopicID}},
		{StepProduce, fault.Restart, fault.Failed, []*kerr.Error{kerr.TransactionAbortable, kerr.InvalidTxnState, kerr.UnknownServerError, kerr.CorruptMessage,
			kerr.OutOfOrderSequenceNumber, kerr.NotEnoughReplicas, kerr.KafkaStorageError, kerr.NotLeaderForPartition, kerr.InvalidRequest, kerr.RequestTimedOut}},
		{StepProduce, fault.Rejoin, fault.Fenced, []*kerr.Error{kerr.InvalidProducerEpoch, kerr.ProducerFenced}},
		{StepProduce, fault.Rejoin, fault.Failed, []*kerr.Error{kerr.InvalidProducerIDMapping}},
		{StepOffsets, fault.Rejoin, fault.Failed, []*kerr.Error{kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.StaleMemberEpoch, kerr.FencedMemberEpoch, kerr.GroupIDNotFound, kerr.RebalanceInProgress, kerr.InvalidProducerIDMapping}},
		{StepOffsets, fault.Stop, fault.Fenced, []*kerr.Error{kerr.FencedInstanceID}},
		{StepOffsets, fault.Stop, fault.Denied, []*kerr.Error{kerr.GroupAuthorizationFailed, kerr.TopicAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed, kerr.PolicyViolation,
			kerr.OffsetMetadataTooLarge, kerr.InvalidCommitOffsetSize, kerr.MessageTooLarge, kerr.RecordListTooLarge}},
		{StepOffsets, fault.Stop, fault.BadFile, []*kerr.Error{kerr.InvalidGroupID}},
		{StepOffsets, fault.Restart, fault.UnknownTopic, []*kerr.Error{kerr.UnknownTopicOrPartition}},
		{StepOffsets, fault.Restart, fault.Failed, []*kerr.Error{kerr.UnknownTopicID, kerr.UnknownServerError, kerr.TransactionAbortable, kerr.NotCoordinator}},
		{StepCommit, fault.Rejoin, fault.Fenced, []*kerr.Error{kerr.ProducerFenced, kerr.InvalidProducerEpoch}},
		{StepCommit, fault.Rejoin, fault.Failed, []*kerr.Error{kerr.InvalidProducerIDMapping}},
		{StepCommit, fault.Unconfirmed, fault.Failed, []*kerr.Error{kerr.UnknownServerError, kerr.TransactionalIDAuthorizationFailed, kerr.PolicyViolation, kerr.InvalidTxnState, kerr.UnsupportedVersion, kerr.TransactionAbortable}},
		{StepBegin, fault.Rejoin, fault.Failed, []*kerr.Error{kerr.InvalidProducerIDMapping}},
		{StepAbort, fault.Rejoin, fault.Failed, []*kerr.Error{kerr.InvalidProducerIDMapping}},
		{StepAbort, fault.Stop, fault.Denied, []*kerr.Error{kerr.TransactionalIDAuthorizationFailed}},
		{StepAbort, fault.Restart, fault.Failed, []*kerr.Error{kerr.InvalidTxnState, kerr.UnknownServerError}},
		{StepFence, fault.Rejoin, fault.Failed, []*kerr.Error{kerr.UnknownMemberID, kerr.UnknownTopicOrPartition, kerr.NotCoordinator}},
		{StepFence, fault.Stop, fault.Denied, []*kerr.Error{kerr.GroupAuthorizationFailed}},
		{StepInit, fault.Stop, fault.TransactionTimeout, []*kerr.Error{kerr.InvalidTransactionTimeout}},
		{StepInit, fault.Stop, fault.Denied, []*kerr.Error{kerr.TransactionalIDAuthorizationFailed, kerr.PolicyViolation}},
	} {
		for _, e := range c.errs {
			rec, code := verdict(c.step, Answer{Code: e.Code})
			require.Equal(t, class{c.rec, c.code}, class{rec, code}, "%s: %v", c.step, e)
			plain, plainCode := plainVerdict(c.step, Answer{Code: e.Code})
			if slices.Contains(fencing, e.Code) {
				require.Equal(t, class{fault.Restart, fault.Failed}, class{plain, plainCode}, "nobody fences an idempotent producer")
				continue
			}
			require.Equal(t, class{rec, code}, class{plain, plainCode}, "one classification for both modes: %s: %v", c.step, e)
		}
	}
	for step, want := range map[Step]fault.Recovery{StepProduce: fault.Restart, StepOffsets: fault.Restart, StepInit: fault.Restart, StepAbort: fault.Restart, StepFence: fault.Rejoin, StepCommit: fault.Unconfirmed} {
		rec, code := verdict(step, Answer{Lost: true})
		require.Equal(t, class{want, fault.Failed}, class{rec, code}, step)
	}
}

// TestReadsAreClassedAlike: what ends the process in a step of a transaction ends it as well where the cluster is only asked
// for something.
func TestReadsAreClassedAlike(t *testing.T) {
	for _, e := range anyRequest {
		if rec, code := verdict(StepInit, Answer{Code: e.Code}); rec == fault.Stop {
			err := kafka.Classify(e, "ask")
			require.Equal(t, class{rec, code}, class{fault.RecoveryOf(err), fault.CodeOf(err)}, "%v", e)
			require.True(t, errors.Is(err, e))
		}
	}
}
