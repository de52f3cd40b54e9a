package txn

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/kafka"
)

// unfinished are the states of a transaction that keeps readers and stable reads waiting until its timeout.
var unfinished = []string{"Ongoing", "PrepareEpochFence"}

// FenceGone ends the transactions that instances which are gone have left open, so that neither readers nor the stable
// read of their successor wait for the timeout. It initialises their ids once, which aborts what is open. The caller says
// who is gone: an instance that lives would be fenced, at the cost of an attempt. The ids are matched whole, never by
// a prefix: the ids of the application a-b begin like those of the instance b of application a.
//
// It gives the ids that were fenced. An error leaves the rest to the timeout; nothing depends on it but time.
func (m *Manager) FenceGone(ctx context.Context, instances []string) ([]string, error) {
	theirs := map[string]bool{}
	for _, name := range instances {
		for slot := 0; name != m.cfg.Instance && slot < maxSlots; slot++ {
			theirs[TransactionalID(m.cfg.Application, name, slot)] = true
		}
	}
	if len(theirs) == 0 {
		return nil, nil
	}
	cl, err := kafka.NewClient(m.cfg.Kafka)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	open, err := kadm.NewClient(cl).ListTransactions(ctx, nil, unfinished)
	if err != nil {
		return nil, kafka.Classify(err, "list the open transactions")
	}
	var fenced []string
	for _, t := range open.Sorted() {
		// An old broker may ignore the filter.
		if !theirs[t.TxnID] || !slices.Contains(unfinished, t.State) {
			continue
		}
		if err := m.fenceID(ctx, t.TxnID); err != nil {
			return fenced, fmt.Errorf("end the transaction of %s: %w", t.TxnID, err)
		}
		fenced = append(fenced, t.TxnID)
	}
	return fenced, nil
}

func (m *Manager) fenceID(ctx context.Context, id string) error {
	cl, err := kafka.NewClient(m.cfg.Kafka, kgo.TransactionalID(id), kgo.TransactionTimeout(m.cfg.Timeout))
	if err != nil {
		return err
	}
	defer cl.Close()
	_, _, err = cl.ProducerID(ctx)
	return kafka.Classify(err, "InitProducerID")
}
