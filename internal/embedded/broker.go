package embedded

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

// Config says what broker to start.
type Config struct {
	// Port on 127.0.0.1; 0 takes a free one, which Addr tells.
	Port int
	// DataDir keeps the data across restarts; empty keeps it in memory.
	DataDir string
	// SyncWrites fsyncs every write before it is acknowledged. Slow.
	SyncWrites bool
	// Topics are created unless they exist.
	Topics []Topic
	// Logger gets the broker's log; nil discards it.
	Logger *slog.Logger
}

// Broker is a running broker. Its methods may be called from any goroutine.
type Broker struct {
	cluster *kfake.Cluster
	log     *logger
	lock    *os.File
	client  *kgo.Client
	addr    string
	id      string

	endMending func() // what MendGroups began
	closeOnce  sync.Once
	closeErr   error
}

// startTimeout bounds what Start waits for the broker's first answers; they come within milliseconds.
const startTimeout = 30 * time.Second

// Start starts a broker and returns when it answers and all topics of the Config exist. A topic that exists with
// another number of partitions is an error: keyed data does not survive a change of it.
func Start(ctx context.Context, cfg Config) (*Broker, error) {
	if cfg.Port < 0 || cfg.Port > 65535 {
		return nil, fault.Stopf(fault.Usage, "port %d is not in 0…65535", cfg.Port)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Broker{log: &logger{to: cfg.Logger}}
	opts := []kfake.Opt{
		kfake.ClusterID(newClusterID()),
		kfake.DefaultNumPartitions(DefaultPartitions),
		kfake.BrokerConfigs(map[string]string{"log.retention.ms": "-1"}), // Kafka's default is a week
		kfake.WithLogger(b.log),
	}
	var notes *journal
	if cfg.DataDir != "" {
		dir := filepath.Join(cfg.DataDir, "cluster")
		if err := vfs.MkdirAll(dir, 0o755); err != nil {
			return nil, fault.Stopf(fault.CheckpointDir, "broker: data directory: %w", err)
		}
		lock, err := lockDir(cfg.DataDir)
		if err != nil {
			return nil, fault.Stopf(fault.CheckpointDir, "broker: data directory: %w", err)
		}
		b.lock = lock
		if err := checkFiles(dir); err != nil {
			b.unlock()
			return nil, fault.Stopf(fault.CheckpointDir, "broker: data directory: %w", err)
		}
		opts = append(opts, kfake.DataDir(dir))
		if cfg.SyncWrites {
			opts = append(opts, kfake.SyncWrites())
		}
		if err := b.repair(ctx, dir, opts); err != nil {
			b.unlock()
			return nil, err
		}
		notes = newJournal(dir, cfg.SyncWrites)
		if err := notes.forget(); err != nil {
			b.unlock()
			return nil, fault.Stopf(fault.CheckpointDir, "broker: data directory: %w", err)
		}
	}
	cluster, err := kfake.NewCluster(append(opts, kfake.Ports(cfg.Port))...)
	if err != nil {
		b.unlock()
		return nil, fmt.Errorf("broker: %w", err)
	}
	b.cluster = cluster
	if b.endMending, err = MendGroups(cluster); err != nil {
		return nil, errors.Join(fmt.Errorf("broker: %w", err), b.Close())
	}
	if notes != nil {
		notes.watch(cluster, cfg.Logger)
	}
	b.addr = cluster.ListenAddrs()[0]
	if err := b.open(ctx, cfg.Topics); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// repair ends what a killed broker left open, if one did.
func (b *Broker) repair(ctx context.Context, dir string, opts []kfake.Opt) error {
	was, err := killed(dir)
	if err != nil {
		return fault.Stopf(fault.CheckpointDir, "broker: data directory: %w", err)
	}
	if !was {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return repair(ctx, dir, slices.Clip(opts), b.log)
}

// open connects the broker's own client, asks for the cluster id, which may be one kept on disk, and makes the topics.
func (b *Broker) open(ctx context.Context, topics []Topic) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.ClientID("millweir-broker"))
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	b.client = client
	meta, err := kadm.NewClient(client).BrokerMetadata(ctx)
	if err != nil {
		return fmt.Errorf("broker: first request: %w", err)
	}
	b.id = meta.Cluster
	for _, t := range topics {
		if err := b.EnsureTopic(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// Addr is host:port of the broker, for a client's list of brokers.
func (b *Broker) Addr() string { return b.addr }

// ClusterID is the id that clients see. With a data directory it stays the same over restarts.
func (b *Broker) ClusterID() string { return b.id }

// EnsureTopic creates a topic unless it exists with as many partitions.
func (b *Broker) EnsureTopic(ctx context.Context, t Topic) error {
	adm := kadm.NewClient(b.client)
	_, err := adm.CreateTopic(ctx, t.Partitions, 1, nil, t.Name)
	if err == nil {
		return nil
	}
	if !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("broker: topic %s: %w", t.Name, err)
	}
	details, err := adm.ListTopics(ctx, t.Name)
	if err != nil {
		return fmt.Errorf("broker: topic %s: %w", t.Name, err)
	}
	if have := len(details[t.Name].Partitions); have != int(t.Partitions) {
		return fault.Stopf(fault.Failed, "broker: topic %s exists with %d partitions, %d were asked for",
			t.Name, have, t.Partitions)
	}
	return nil
}

// Close stops the broker and writes everything to the data directory. It reports writes that failed, also earlier
// ones: their records are lost. A second Close returns what the first one returned.
func (b *Broker) Close() error {
	b.closeOnce.Do(func() {
		if b.client != nil {
			b.client.Close()
		}
		if b.endMending != nil {
			b.endMending()
		}
		b.cluster.Close()
		b.unlock()
		if err := b.log.err(); err != nil {
			b.closeErr = fmt.Errorf("broker: data not kept: %w", err)
		}
	})
	return b.closeErr
}

func (b *Broker) unlock() {
	if b.lock != nil {
		_ = b.lock.Close() // frees the lock
		b.lock = nil
	}
}

// newClusterID draws an id of the form Kafka uses: 16 random bytes, base64url without padding.
func newClusterID() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand ends the process instead
	return base64.RawURLEncoding.EncodeToString(raw[:])
}
