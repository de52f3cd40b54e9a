package txn

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/kafka"
)

// unfinished are the states of a transaction that keeps readers and stable reads waiting until its timeout.
var unfinished = []string{"Ongoing", "PrepareEpochFence"}

// FenceGone ends the transactions that instances which are gone have left open, so that neither readers nor the stable
// read of their successor wait for the timeout. It initialises their ids once, which aborts what is open. instances are
// all that may have left something; the ids are matched whole, never by a prefix: the ids of the application a-b begin like
// those of the instance b of application a.
//
// living tells which instances live, and is asked after the open transactions were listed, before each fence, and only when
// there are any of the instances. Asked before the listing, it would miss an instance that joins in between and has begun a
// transaction by then. So who is fenced had a transaction open and was gone after that. It may still come back between the
// answer and the fence, since the broker takes the fence of whoever is asked for by its id. That costs it an attempt: what it
// has open is aborted as a whole, its next step is refused with class Rejoin, and the attempt that follows makes the id its
// own again, which nobody takes a second time. An end that the broker has taken before stands.
//
// It gives the ids that were fenced. An error leaves the rest to the timeout; nothing depends on it but time.
func (m *Manager) FenceGone(ctx context.Context, instances []string, living func(context.Context) ([]string, error)) ([]string, error) {
	return m.cfg.FenceGone(ctx, instances, living)
}

// FenceGone is that of a manager, for who has none. Without an Instance no id is its own.
func (c Config) FenceGone(ctx context.Context, instances []string, living func(context.Context) ([]string, error)) ([]string, error) {
	owner := map[string]string{} // by transactional id
	for _, name := range instances {
		for slot := 0; name != c.Instance && slot < maxSlots; slot++ {
			owner[TransactionalID(c.Application, name, slot)] = name
		}
	}
	if len(owner) == 0 {
		return nil, nil
	}
	cl, err := kafka.NewClient(c.Kafka)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	listing, stop := half(ctx)
	defer stop()
	open, missed := listOpen(listing, cl)
	open = slices.DeleteFunc(open, func(id string) bool { return owner[id] == "" })
	if len(open) == 0 {
		return nil, missed
	}
	var fenced []string
	for _, id := range open {
		alive, err := living(ctx)
		if err != nil {
			return fenced, fmt.Errorf("see which instances live: %w", err)
		}
		if slices.Contains(alive, owner[id]) {
			continue
		}
		if err := c.fenceID(ctx, id); err != nil {
			return fenced, fmt.Errorf("end the transaction of %s: %w", id, err)
		}
		fenced = append(fenced, id)
	}
	return fenced, missed
}

// listOpen gives the transactional ids that have something open, sorted, and why that may not be all: what some brokers do not
// tell does not keep back what the others do, whatever their reason is. Among reasons one that may pass is preferred.
func listOpen(ctx context.Context, cl *kgo.Client) (open []string, missed error) {
	req := kmsg.NewPtrListTransactionsRequest()
	req.StateFilters = unfinished
	for _, part := range cl.RequestSharded(ctx, req) {
		err := part.Err
		resp, ok := part.Resp.(*kmsg.ListTransactionsResponse)
		if err == nil && ok {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err != nil {
			if missed == nil || kafka.IsDenied(missed) {
				missed = fmt.Errorf("broker %d: %w", part.Meta.NodeID, err)
			}
			continue
		}
		for _, t := range resp.TransactionStates {
			if slices.Contains(unfinished, t.TransactionState) { // an old broker may ignore the filter
				open = append(open, t.TransactionalID)
			}
		}
	}
	slices.Sort(open)
	return slices.Compact(open), kafka.Classify(missed, "list the open transactions")
}

// half gives the half of the time that ctx has. A broker that is gone is waited for as long as there is time, and what the
// others list is still to be ended then.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(end)/2)
}

// fenceOwn ends what this very instance has left open under its transactional ids, if anything.
func (c Config) fenceOwn(ctx context.Context, cl *kgo.Client) error {
	listing, stop := half(ctx)
	defer stop()
	open, missed := listOpen(listing, cl)
	for slot := range maxSlots {
		id := TransactionalID(c.Application, c.Instance, slot)
		if !slices.Contains(open, id) {
			continue
		}
		if err := c.fenceID(ctx, id); err != nil {
			return fmt.Errorf("end the transaction of %s: %w", id, err)
		}
	}
	return missed
}

func (c Config) fenceID(ctx context.Context, id string) error {
	cl, err := kafka.NewClient(c.Kafka, kgo.TransactionalID(id), kgo.TransactionTimeout(c.Timeout))
	if err != nil {
		return err
	}
	defer cl.Close()
	_, _, err = cl.ProducerID(ctx)
	return kafka.Classify(err, "InitProducerID")
}
