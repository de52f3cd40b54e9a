package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
)

// killed says that the broker of this directory did not stop by itself: kfake saves its sessions when it stops and
// removes them when it starts. A broker that stopped with none to save passes for killed, which costs a repair of
// nothing.
func killed(dir string) (bool, error) {
	if _, err := os.Stat(filepath.Join(dir, "meta.json")); err != nil {
		return false, ignoreMissing(err)
	}
	_, err := os.Stat(filepath.Join(dir, sessionsFile))
	return err != nil, ignoreMissing(err)
}

const sessionsFile = "session_state.json"

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// repair ends the transactions that a killed broker left open, before anybody is served. kfake only notes at its start
// that they are aborted and writes no marker: to a reader they would go on until the next marker of their producer,
// and what that one commits would be dropped as a part of them. A commit that had begun is completed. It works on a broker
// of its own, whose port nobody knows.
func repair(ctx context.Context, dir string, opts []kfake.Opt, log *logger) (err error) {
	partitions, note, err := complete(dir)
	if err != nil {
		return fault.Stopf(fault.CheckpointDir, "broker: data directory, left by a broker that was killed: %w", err)
	}
	for _, p := range partitions {
		// A snapshot of an earlier stop does not know the open ones as aborted. Without it kfake reads the records.
		if len(p.open) > 0 {
			if err := ignoreMissing(os.Remove(filepath.Join(p.dir, "snapshot.json"))); err != nil {
				return fault.Stopf(fault.CheckpointDir, "broker: data directory: %w", err)
			}
		}
	}
	open := 0
	for _, p := range partitions {
		open += len(p.open)
	}
	if open > 0 || note != nil {
		log.to.Info("the broker was killed: its open transactions are aborted, and a commit that had begun is completed", "open_on_partitions", open, "commit", note != nil)
	}
	cluster, err := kfake.NewCluster(append(opts, kfake.Ports(0))...)
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	defer func() {
		cluster.Close()
		if err = errors.Join(err, log.err()); err != nil {
			_ = os.Remove(filepath.Join(dir, sessionsFile)) // the next start repairs as well
			err = fmt.Errorf("broker: end the transactions that a killed broker left open: %w", err)
		}
	}()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()[0]), kgo.ClientID("millweir-broker"))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := fenceAll(ctx, client); err != nil {
		return err
	}
	if err := abort(ctx, client, partitions); err != nil {
		return err
	}
	return commitOffsets(ctx, client, note)
}

// complete writes the commit markers that are missing of a commit that had begun, which its first marker shows. It gives
// what the partitions hold then, and the note of that commit; nil when none had begun.
func complete(dir string) ([]*partition, *commitNote, error) {
	note, err := readNote(dir)
	if err != nil {
		return nil, nil, err
	}
	of := transaction{-1, -1}
	if note != nil {
		of = transaction{note.Producer, note.Epoch}
	}
	partitions, err := readPartitions(dir, of)
	if err != nil || !slices.ContainsFunc(partitions, func(p *partition) bool { return p.committed[of] }) {
		return partitions, nil, err
	}
	for _, p := range partitions {
		if epoch, open := p.open[of.producer]; open && epoch == of.epoch {
			if err := p.commit(of); err != nil {
				return nil, nil, fmt.Errorf("%s/%d: %w", p.topic, p.number, err)
			}
		}
	}
	return partitions, note, nil
}

// commitOffsets sets the offsets of a commit. Nothing came after it that could have set others.
func commitOffsets(ctx context.Context, client *kgo.Client, note *commitNote) error {
	if note == nil || len(note.Offsets) == 0 {
		return nil
	}
	adm := kadm.NewClient(client)
	topics, err := adm.ListTopics(ctx)
	if err != nil {
		return fmt.Errorf("list the topics: %w", err)
	}
	names := map[kadm.TopicID]string{}
	for _, d := range topics {
		names[d.ID] = d.Topic
	}
	groups := map[string]kadm.Offsets{}
	for _, o := range note.Offsets {
		if name, ok := names[o.TopicID]; ok {
			o.Topic = name
		} else if !topics.Has(o.Topic) {
			continue // deleted since
		}
		at := kadm.Offset{Topic: o.Topic, Partition: o.Partition, At: o.Offset, LeaderEpoch: o.Epoch}
		if o.Metadata != nil {
			at.Metadata = *o.Metadata
		}
		offsets := groups[o.Group]
		offsets.Delete(o.Topic, o.Partition) // the last one wins
		offsets.Add(at)
		groups[o.Group] = offsets
	}
	for group, offsets := range groups {
		if err := adm.CommitAllOffsets(ctx, group, offsets); err != nil {
			return fmt.Errorf("offsets of group %s: %w", group, err)
		}
	}
	return nil
}

// fenceAll gives every transactional id an epoch that no client of the killed broker can have: what it had open is
// gone with the broker's memory, offsets included. Twice, since kfake takes a commit of the epoch right before for the
// repetition of the id's last one, and answers that it succeeded.
func fenceAll(ctx context.Context, client *kgo.Client) error {
	adm := kadm.NewClient(client)
	listed, err := adm.ListTransactions(ctx, nil, nil)
	if err != nil {
		return fmt.Errorf("list the transactional ids: %w", err)
	}
	states, err := adm.DescribeTransactions(ctx, listed.TransactionalIDs()...)
	if err != nil {
		return fmt.Errorf("describe the transactional ids: %w", err)
	}
	for id, state := range states {
		for range 2 {
			req := kmsg.NewPtrInitProducerIDRequest()
			req.TransactionalID, req.TransactionTimeoutMillis = kmsg.StringPtr(id), state.TimeoutMillis
			resp, err := req.RequestWith(ctx, client)
			if err == nil {
				err = kerr.ErrorForCode(resp.ErrorCode)
			}
			if err != nil {
				return fmt.Errorf("transactional id %s: %w", id, err)
			}
		}
	}
	return nil
}

// abort writes the abort markers. Partitions of topics that were deleted are passed over.
func abort(ctx context.Context, client *kgo.Client, partitions []*partition) error {
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	for _, p := range partitions {
		for producer, epoch := range p.open {
			marker := kmsg.NewWriteTxnMarkersRequestMarker()
			marker.ProducerID, marker.ProducerEpoch = producer, epoch
			topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
			topic.Topic, topic.Partitions = p.topic, []int32{p.number}
			marker.Topics = append(marker.Topics, topic)
			req.Markers = append(req.Markers, marker)
		}
	}
	if len(req.Markers) == 0 {
		return nil
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("abort markers: %w", err)
	}
	for _, m := range resp.Markers {
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
					return fmt.Errorf("abort marker for %s/%d: %w", t.Topic, p.Partition, err)
				}
			}
		}
	}
	return nil
}
