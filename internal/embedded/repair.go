package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
// and what that one commits would be dropped as a part of them. It works on a broker of its own, whose port nobody knows.
func repair(ctx context.Context, dir string, opts []kfake.Opt, log *logger) (err error) {
	open, err := openTransactions(dir)
	if err != nil {
		return fault.Stopf(fault.CheckpointDir, "broker: data directory, left by a broker that was killed: %w", err)
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
	return abort(ctx, client, open)
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

// abort writes the markers. Partitions of topics that were deleted are passed over.
func abort(ctx context.Context, client *kgo.Client, open []openTransaction) error {
	for _, o := range open {
		req := kmsg.NewPtrWriteTxnMarkersRequest()
		marker := kmsg.NewWriteTxnMarkersRequestMarker()
		marker.ProducerID, marker.ProducerEpoch = o.producer, o.epoch
		topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
		topic.Topic, topic.Partitions = o.topic, []int32{o.partition}
		marker.Topics = append(marker.Topics, topic)
		req.Markers = append(req.Markers, marker)
		resp, err := req.RequestWith(ctx, client)
		if err != nil {
			return fmt.Errorf("%s/%d: %w", o.topic, o.partition, err)
		}
		for _, m := range resp.Markers {
			for _, t := range m.Topics {
				for _, p := range t.Partitions {
					if err := kerr.ErrorForCode(p.ErrorCode); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
						return fmt.Errorf("%s/%d: %w", o.topic, o.partition, err)
					}
				}
			}
		}
	}
	return nil
}
