package hanging

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf16"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
)

// Topics of the brokers' own.
const (
	offsetsTopic = "__consumer_offsets"
	stateTopic   = "__transaction_state"
)

// Transaction is one that a partition holds open although its coordinator is done with it: readers of committed
// records, or stable reads of offsets, wait for it for ever. The brokers make one when they lose the marker of its end: the
// coordinator of Kafka 4.4 takes a partition that has no leader at the moment for a deleted one, and sends it none.
type Transaction struct {
	element.TopicPartition
	TransactionalID  string // "" for one of Findings.Unsure
	ProducerID       int64
	ProducerEpoch    int16 // of its records
	CoordinatorEpoch int32 // of the last marker, at least 0
	Start            int64 // offset of its first record
}

func (h Transaction) String() string {
	return fmt.Sprintf("%s from offset %d", h.TopicPartition, h.Start)
}

// Findings is what a search has found.
type Findings struct {
	Hanging []Transaction
	// Unsure are open transactions of producers that no coordinator knows: it may still be loading its log, or has forgotten
	// the transactional id after its expiration. Ask again.
	Unsure []Transaction
	// Denied is the first refusal, when topics were left out that the user may not read.
	Denied error
}

// Find looks for hanging transactions in all partitions of the topics and in the partition that has the group's
// offsets. What it takes for one is certain, however busy the partitions are. The user needs READ of the topics that are
// looked at, and DESCRIBE of the transactional ids.
//
// A partition is opened after its coordinator has noted it, and the coordinator notes the end of a transaction after all
// partitions have its marker. So what is open in a first look, not in the coordinator's transaction after that, and still
// open from the same offset after that again has lost its marker.
func Find(ctx context.Context, cl *kgo.Client, group string, topics []string) (Findings, error) {
	var f Findings
	look, err := partitionsToLookAt(ctx, cl, group, topics)
	if err != nil {
		return f, err
	}
	open, denied, err := openTransactions(ctx, cl, look)
	f.Denied = denied
	if err != nil || len(open) == 0 {
		return f, err
	}
	suspects, err := notInTransaction(ctx, cl, open)
	if err != nil || len(suspects) == 0 {
		return f, err
	}
	again := kadm.TopicsSet{}
	for _, t := range suspects {
		again.Add(t.Topic, t.Partition)
	}
	still, _, err := openTransactions(ctx, cl, again)
	if err != nil {
		return f, err
	}
	for _, t := range suspects {
		switch {
		case !slices.ContainsFunc(still, t.sameAs):
		case t.TransactionalID == "":
			f.Unsure = append(f.Unsure, t)
		default:
			f.Hanging = append(f.Hanging, t)
		}
	}
	return f, nil
}

// sameAs says whether a transaction of a later look is this one.
func (h Transaction) sameAs(o Transaction) bool {
	return o.TopicPartition == h.TopicPartition && o.ProducerID == h.ProducerID && o.ProducerEpoch == h.ProducerEpoch && o.Start == h.Start
}

// partitionsToLookAt lists them all; a topic that does not exist has none.
func partitionsToLookAt(ctx context.Context, cl *kgo.Client, group string, topics []string) (kadm.TopicsSet, error) {
	meta, err := kadm.NewClient(cl).Metadata(ctx, append(slices.Clone(topics), offsetsTopic)...)
	if err != nil {
		return nil, fmt.Errorf("read the metadata of topics %v: %w", topics, err)
	}
	look := kadm.TopicsSet{}
	for _, topic := range topics {
		for p := range meta.Topics[topic].Partitions {
			look.Add(topic, p)
		}
	}
	if n := len(meta.Topics[offsetsTopic].Partitions); n > 0 {
		look.Add(offsetsTopic, internalPartition(group, n))
	}
	return look, nil
}

// internalPartition is where the brokers keep what belongs to a group or a transactional id: the absolute value of Java's
// hash of the text, 0 for the one that has none, modulo the partitions.
func internalPartition(name string, partitions int) int32 {
	var h int32
	for _, c := range utf16.Encode([]rune(name)) {
		h = 31*h + int32(c)
	}
	if h == math.MinInt32 {
		h = 0
	}
	return max(h, -h) % int32(partitions)
}

// openTransactions lists what partitions hold open, sorted. A partition without a leader is left out: it says nothing now.
func openTransactions(ctx context.Context, cl *kgo.Client, look kadm.TopicsSet) (open []Transaction, denied error, err error) {
	if len(look) == 0 {
		return nil, nil, nil
	}
	topics, err := kadm.NewClient(cl).DescribeProducers(ctx, look)
	if _, some := errors.AsType[*kadm.ShardErrors](err); err != nil && !some {
		return nil, nil, fmt.Errorf("describe the producers of topics: %w", err)
	}
	for _, t := range topics {
		for _, p := range t.Partitions {
			if p.Err != nil {
				if refused(p.Err) && denied == nil {
					denied = fmt.Errorf("describe the producers of %s/%d: %w", p.Topic, p.Partition, p.Err)
				}
				continue
			}
			for _, d := range p.ActiveProducers {
				if d.CurrentTxnStartOffset >= 0 {
					open = append(open, Transaction{
						TopicPartition: element.TopicPartition{Topic: p.Topic, Partition: p.Partition},
						ProducerID:     d.ProducerID, ProducerEpoch: d.ProducerEpoch, CoordinatorEpoch: max(0, d.CoordinatorEpoch), Start: d.CurrentTxnStartOffset,
					})
				}
			}
		}
	}
	slices.SortFunc(open, func(a, b Transaction) int {
		return cmp.Or(a.Compare(b.TopicPartition), cmp.Compare(a.ProducerID, b.ProducerID))
	})
	return open, denied, nil
}

// notInTransaction gives those of which no coordinator has a transaction with that partition, with their transactional ids.
// All coordinators must answer: one that is silent might have it.
func notInTransaction(ctx context.Context, cl *kgo.Client, open []Transaction) ([]Transaction, error) {
	var producers []int64
	for _, h := range open {
		producers = append(producers, h.ProducerID)
	}
	slices.Sort(producers)
	adm := kadm.NewClient(cl)
	listed, err := adm.ListTransactions(ctx, slices.Compact(producers), nil)
	if err != nil {
		return nil, fmt.Errorf("list the transactions: %w", err)
	}
	id := map[int64]string{}
	for _, t := range listed {
		id[t.ProducerID] = t.TxnID
	}
	described := kadm.DescribedTransactions{}
	if len(listed) > 0 {
		if described, err = adm.DescribeTransactions(ctx, listed.TransactionalIDs()...); err != nil {
			return nil, fmt.Errorf("describe the transactions: %w", err)
		}
	}
	var out []Transaction
	for _, h := range open {
		h.TransactionalID = id[h.ProducerID]
		d, known := described[h.TransactionalID]
		switch {
		case h.TransactionalID == "": // unsure
		case !known, errors.Is(d.Err, kerr.TransactionalIDNotFound): // forgotten meanwhile; the next look is certain
			continue
		case d.Err != nil:
			return nil, fmt.Errorf("describe the transaction of %s: %w", h.TransactionalID, d.Err)
		default:
			if _, in := d.Topics[h.Topic][h.Partition]; in {
				continue
			}
		}
		out = append(out, h)
	}
	return out, nil
}

func refused(err error) bool {
	return errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed)
}
