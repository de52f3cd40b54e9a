package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/fault"
)

// IsRetriable says that the same request may succeed when it is sent again: the coordinator moved or is loading, a
// connection broke or could not be opened, a transaction is still being completed. Whoever goes by it sets a limit: a broker
// that cannot be reached may never come back.
func IsRetriable(err error) bool {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrClientClosed):
		return false
	case IsUndialled(err): // also one that took too long, which passes for the end of a context
		return true
	case errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.Is(err, kerr.ConcurrentTransactions):
		return true
	}
	return kerr.IsRetriable(err) || kgo.IsRetryableBrokerErr(err)
}

// IsDenied says that the cluster refuses access; trying again does not help.
func IsDenied(err error) bool {
	for _, e := range denied {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

var denied = []error{
	kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed,
	kerr.TransactionalIDAuthorizationFailed, kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism,
	kerr.IllegalSaslState, kerr.SecurityDisabled,
}

// IsOwnershipLost says that the group no longer knows this member or its generation: what it holds may belong to
// another member.
func IsOwnershipLost(err error) bool {
	for _, e := range []error{kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.StaleMemberEpoch, kerr.FencedMemberEpoch, kerr.GroupIDNotFound} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// IsFenced says that another client took over the transactional id, or that the coordinator gave the id a new epoch
// after a timeout: this client is finished.
func IsFenced(err error) bool {
	for _, e := range []error{kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// IsInstanceFenced says that another member joined the group with the same static instance id.
func IsInstanceFenced(err error) bool { return errors.Is(err, kerr.FencedInstanceID) }

// IsUndialled says that no connection to a broker could be opened: it has died, say, and another one will have its place. Its
// name may be gone with it.
func IsUndialled(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// IsUnreachable says that no connection to a broker could be opened or that it broke before it was of use.
func IsUnreachable(err error) bool {
	var op *net.OpError
	var eof *kgo.ErrFirstReadEOF
	return errors.As(err, &op) || errors.As(err, &eof)
}

// Classify wraps err with what was being done (a format, as in "create topic %s") and classes it by what recovery
// should do: refused access and a transaction timeout that the broker does not take end the process, a lost
// membership rejoins, all else is worth a new attempt. nil stays nil; an error that has a class keeps it.
func Classify(err error, doing string, args ...any) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(doing, args...)
	var classed *fault.Error
	switch {
	case errors.As(err, &classed):
		return fmt.Errorf("%s: %w", what, err)
	case IsDenied(err):
		return fault.Stopf(fault.Denied, "%s: the cluster refuses access: %w", what, err)
	case errors.Is(err, kerr.PolicyViolation):
		return fault.Stopf(fault.Denied, "%s: a policy of the cluster refuses it: %w", what, err)
	case errors.Is(err, kerr.UnsupportedVersion):
		return fault.Stopf(fault.BrokerTooOld, "%s: the broker does not know the request in this form: %w", what, err)
	case IsInstanceFenced(err):
		return fault.Stopf(fault.Fenced, "%s: another process uses the same instance id: %w", what, err)
	case errors.Is(err, kerr.InvalidTransactionTimeout):
		return fault.Stopf(fault.TransactionTimeout, "%s: the transaction timeout is above the broker's transaction.max.timeout.ms: %w", what, err)
	case IsOwnershipLost(err):
		return fault.New(fault.Rejoin, fault.Failed, "%s: no longer a member of this generation: %w", what, err)
	case IsUnreachable(err):
		return fault.Restartf(fault.Unreachable, "%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// TransactionTimeoutError is the error for a transaction timeout above the broker's maximum, with both numbers. most
// is 0 when the maximum could not be read.
func TransactionTimeoutError(asked, most time.Duration) error {
	if most <= 0 {
		return fault.Stopf(fault.TransactionTimeout,
			"transaction timeout %d ms is above the broker's transaction.max.timeout.ms (its value could not be read): lower checkpointing.timeout, checkpointing.interval or transaction.timeout, or raise the broker's maximum", asked.Milliseconds())
	}
	return fault.Stopf(fault.TransactionTimeout,
		"transaction timeout %d ms is above the broker's transaction.max.timeout.ms of %d: lower checkpointing.timeout, checkpointing.interval or transaction.timeout, or raise the broker's maximum", asked.Milliseconds(), most.Milliseconds())
}
