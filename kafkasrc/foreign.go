package kafkasrc

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

// nextProtocol is the type of a member that uses the consumer protocol of KIP-848 (group.protocol=consumer).
const nextProtocol = 1

// Foreign refuses a group in which somebody uses the newer consumer protocol (group.protocol=consumer). Brokers let both kinds
// into one group, and then share the partitions out themselves: part of the input would be somebody else's, and nobody would say
// so. An older protocol that is not ours they keep out. The error is of class Stop, or that of the question; nil where the
// brokers do not know the newer protocol.
func Foreign(ctx context.Context, cl *kgo.Client, group string) error {
	var names []string
	err := kafka.Again(ctx, cl, func(ctx context.Context) (err error) {
		names, err = newerMembers(ctx, cl, group)
		return err
	})
	switch {
	case err != nil && (ctx.Err() != nil || kafka.IsDenied(err) || kafka.IsRetriable(err) || errors.As(err, new(*fault.Error))):
		return kafka.Classify(err, "describe group %s", group)
	case len(names) == 0: // or the brokers do not know the question
		return nil
	}
	return fault.Stopf(fault.BadFile, "group %s is used by consumers of another kind, of the protocol group.protocol=consumer: %s; choose another application name, or stop them", group, strings.Join(names, ", "))
}

// newerMembers names those of a group that use the newer protocol.
func newerMembers(ctx context.Context, cl *kgo.Client, group string) (names []string, err error) {
	req := kmsg.NewPtrConsumerGroupDescribeRequest()
	req.Groups = []string{group}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	for _, g := range resp.Groups {
		err := kerr.ErrorForCode(g.ErrorCode)
		switch {
		case errors.Is(err, kerr.GroupIDNotFound): // it is of the older protocol, or nobody's
			continue
		case err != nil:
			return nil, err
		}
		for _, m := range g.Members {
			if m.MemberType == nextProtocol || resp.Version < 1 {
				names = append(names, m.ClientID+" ("+m.ClientHost+")")
			}
		}
	}
	slices.Sort(names)
	return names, nil
}
