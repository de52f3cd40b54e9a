//go:build synctests

package synctests

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// checkpointsTopic takes the markers of checkpoints without output.
const checkpointsTopic = application + "-checkpoints"

// consumed says that the group has committed all of the input.
func (w *World) consumed() bool {
	g := w.cluster.GroupInfo(application)
	if g == nil {
		return len(w.ends) == 0
	}
	for p, end := range w.ends {
		if g.Commits[inTopic][p].Offset < end {
			return false
		}
	}
	return true
}

// lag tells what is left, for a message.
func (w *World) lag() string {
	g := w.cluster.GroupInfo(application)
	if g == nil {
		return "the group does not exist"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "group %s with %d members;", g.State, len(g.Members))
	for p, end := range w.ends {
		fmt.Fprintf(&b, " partition %d: committed %d of %d;", p, g.Commits[inTopic][p].Offset, end)
	}
	return b.String()
}

// check is the oracle, from outside: no transaction is open, nothing is committed beyond the input, and a reader of
// committed records finds for every key the counts 1 to n in order, each exactly once.
func (w *World) check(ctx context.Context) error {
	cl, err := w.client("checker")
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := w.checkTransactions(ctx, cl); err != nil {
		return err
	}
	g := w.cluster.GroupInfo(application)
	if g == nil {
		w.fail("the group does not exist")
		return nil
	}
	for p, c := range g.Commits[inTopic] {
		if hw := w.cluster.PartitionInfo(inTopic, p).HighWatermark; c.Offset > hw || c.Offset < w.ends[p] {
			w.fail("partition %d: offset %d is committed, the last record ends at %d and the log at %d", p, c.Offset, w.ends[p], hw)
		}
	}
	return w.checkOutput(ctx)
}

// checkTransactions fails when a transaction of a live instance is open after its graceful end, or one of a dead
// instance after its timeout.
func (w *World) checkTransactions(ctx context.Context, cl *kgo.Client) error {
	ids, err := w.open(ctx, kadm.NewClient(cl))
	if err != nil {
		return err
	}
	for _, id := range ids {
		for _, s := range w.slots[:w.s.Instances] {
			if strings.HasPrefix(id, application+"-"+s.instance+"-") {
				w.fail("transaction %s is open after the graceful end of its instance", id)
			}
		}
	}
	if len(ids) > 0 {
		w.log("open transactions: %v", ids)
		time.Sleep(w.s.Txn + time.Second)
		if ids, err = w.open(ctx, kadm.NewClient(cl)); err != nil {
			return err
		}
		if len(ids) > 0 {
			w.fail("transactions %v are open beyond their timeout", ids)
		}
	}
	for _, topic := range []string{outTopic, inTopic, checkpointsTopic} {
		for _, p := range w.cluster.PartitionInfos(topic) {
			if p.LastStableOffset != p.HighWatermark {
				w.fail("%s/%d: the last stable offset is %d, the end %d", topic, p.Partition, p.LastStableOffset, p.HighWatermark)
			}
		}
	}
	bounded, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := kafka.StableOffsets(bounded, cl, application, w.inputs()); err != nil {
		w.fail("the offsets are not stable: %v", err)
	}
	return nil
}

func (w *World) inputs() []element.TopicPartition {
	tps := make([]element.TopicPartition, w.s.In)
	for p := range tps {
		tps[p] = element.TopicPartition{Topic: inTopic, Partition: int32(p)}
	}
	return tps
}

// open lists the open transactions that hold records. (kfake opens one for a late request of an older epoch that it
// then refuses, which a broker does not; such a one holds nothing back and is left out here.)
func (w *World) open(ctx context.Context, adm *kadm.Client) (ids []string, err error) {
	list, err := adm.ListTransactions(ctx, nil, []string{"Ongoing"})
	if err != nil || len(list) == 0 {
		return nil, err
	}
	topics, err := adm.DescribeProducers(ctx, nil)
	if err != nil {
		return nil, err
	}
	holding := map[int64]bool{}
	topics.EachProducer(func(p kadm.DescribedProducer) {
		if p.CurrentTxnStartOffset >= 0 {
			holding[p.ProducerID] = true
		}
	})
	list.Each(func(t kadm.ListedTransaction) {
		if holding[t.ProducerID] {
			ids = append(ids, t.TxnID)
		}
	})
	return ids, nil
}

// checkOutput reads what is committed. Each partition is read from its first to its last offset.
func (w *World) checkOutput(ctx context.Context) error {
	at := map[int32]kgo.Offset{}
	left := 0
	ends := map[int32]int64{}
	for _, p := range w.cluster.PartitionInfos(outTopic) {
		if p.HighWatermark > 0 {
			at[p.Partition], ends[p.Partition] = kgo.NewOffset().At(0), p.HighWatermark
			left++
		}
	}
	seen := map[string]int64{}
	if left > 0 {
		cl, err := w.client("reader", kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{outTopic: at}),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond))
		if err != nil {
			return err
		}
		defer cl.Close()
		bounded, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		// Every partition ends with the marker of its last transaction, so it has been read when that was.
		for left > 0 {
			fetches := cl.PollFetches(bounded)
			if err := fetches.Err(); err != nil {
				return fmt.Errorf("read the output: %w", err)
			}
			fetches.EachRecord(func(r *kgo.Record) {
				if r.Offset == ends[r.Partition]-1 {
					left--
				}
				if !r.Attrs.IsControl() {
					w.checkRecord(r, seen)
				}
			})
		}
	}
	for key, n := range w.expected {
		if seen[key] != n {
			w.fail("%s: the output counts to %d, the input has %d records", key, seen[key], n)
		}
	}
	return nil
}

func (w *World) checkRecord(r *kgo.Record, seen map[string]int64) {
	key := string(r.Key)
	if len(r.Value) != 8 {
		w.fail("%s: a value of %d bytes at %s/%d offset %d", key, len(r.Value), r.Topic, r.Partition, r.Offset)
		return
	}
	n := int64(binary.BigEndian.Uint64(r.Value))
	if n != seen[key]+1 {
		w.fail("%s: %d follows %d at %s/%d offset %d", key, n, seen[key], r.Topic, r.Partition, r.Offset)
	}
	seen[key] = n
}
