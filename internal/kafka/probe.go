package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
)

// Cluster is what Probe learned.
type Cluster struct {
	ID string
	// TransactionVersion is the finalized level of the feature transaction.version, at least 2.
	TransactionVersion int16
	// TransactionMaxTimeout is the broker's transaction.max.timeout.ms; 0 when it may not be read.
	TransactionMaxTimeout time.Duration
	// Topics are those that were asked for, by name.
	Topics map[string]Topic
}

// Need is what the caller wants of the cluster.
type Need struct {
	// Topics must exist.
	Topics []string
	// TransactionTimeout must not be above the broker's maximum; 0 leaves the check out.
	TransactionTimeout time.Duration
}

const (
	neededTransactionVersion = 2
	probeRetry               = 200 * time.Millisecond
)

// Probe reaches the cluster and checks it against need. Its errors end the process (fault.Stop) and carry the codes
// Unreachable, BrokerTooOld, TransactionTimeout, UnknownTopic or Denied; each names what was found and what to do.
func Probe(ctx context.Context, cfg Config, need Need) (*Cluster, error) {
	cl, meta, err := connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	cluster := &Cluster{ID: meta.Cluster}
	if cluster.TransactionVersion, err = transactionVersion(ctx, cl); err != nil {
		return nil, err
	}
	if need.TransactionTimeout > 0 {
		if cluster.TransactionMaxTimeout, err = checkTimeout(ctx, cl, cfg, meta, need.TransactionTimeout); err != nil {
			return nil, err
		}
	}
	if cluster.Topics, err = DescribeTopics(ctx, cl, need.Topics); err != nil {
		return nil, err
	}
	return cluster, nil
}

// Reach waits for a broker that answers, as Probe does, with its errors.
func Reach(ctx context.Context, cfg Config) error {
	cl, _, err := connect(ctx, cfg)
	if err == nil {
		cl.Close()
	}
	return err
}

// connect gives a client behind the first answer of a broker.
func connect(ctx context.Context, cfg Config) (*kgo.Client, kadm.Metadata, error) {
	dials := new(dialWatch)
	dial := min(dialTimeout, max(time.Second, cfg.reach()/time.Duration(len(cfg.Brokers)+1)))
	cl, err := NewClient(cfg, kgo.WithHooks(dials), kgo.DialTimeout(dial))
	if err != nil {
		return nil, kadm.Metadata{}, fault.Stopf(fault.Usage, "Kafka client: %w", err)
	}
	meta, err := reach(ctx, cl, cfg, dials)
	if err != nil {
		cl.Close()
	}
	return cl, meta, err
}

// reach asks for the cluster's brokers until one answers or the bound ends.
func reach(ctx context.Context, cl *kgo.Client, cfg Config, dials *dialWatch) (kadm.Metadata, error) {
	bounded, cancel := context.WithTimeout(ctx, cfg.reach())
	defer cancel()
	dials.whenDenied(cancel) // kgo takes a refused login for a connection that may be better next time
	adm := kadm.NewClient(cl)
	for {
		meta, err := adm.BrokerMetadata(bounded)
		if last := dials.lastError(); err != nil && IsDenied(last) {
			err = last
		}
		var eof *kgo.ErrFirstReadEOF
		switch {
		case err == nil:
			return meta, nil
		case IsDenied(err):
			return meta, Classify(err, "connect to Kafka at %s", strings.Join(cfg.Brokers, ", "))
		case ctx.Err() != nil:
			return meta, fmt.Errorf("reach Kafka at %s: %w", strings.Join(cfg.Brokers, ", "), ctx.Err())
		case errors.As(err, &eof):
			return meta, fault.Stopf(fault.Unreachable, "the server at %s closed the connection at the first request: is it Kafka, and are TLS and SASL as the listener wants them? (%w)", strings.Join(cfg.Brokers, ", "), err)
		}
		dials.noteIfNone(err)
		if sleep(bounded, probeRetry) != nil {
			if ctx.Err() != nil {
				return meta, fmt.Errorf("reach Kafka at %s: %w", strings.Join(cfg.Brokers, ", "), ctx.Err())
			}
			return meta, fault.Stopf(fault.Unreachable, "no Kafka broker answers at %s within %v; last error: %w", strings.Join(cfg.Brokers, ", "), cfg.reach(), dials.lastError())
		}
	}
}

// transactionVersion reads the finalized feature from the ApiVersions answer of any broker.
func transactionVersion(ctx context.Context, cl *kgo.Client) (int16, error) {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "millweir", "1"
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return 0, Classify(err, "read the versions of the cluster")
	}
	for _, f := range resp.FinalizedFeatures {
		if f.Name != "transaction.version" {
			continue
		}
		if f.MaxVersionLevel >= neededTransactionVersion {
			return f.MaxVersionLevel, nil
		}
		return 0, tooOld(fmt.Sprintf("the cluster has transaction.version %d", f.MaxVersionLevel))
	}
	for _, f := range resp.SupportedFeatures {
		if f.Name == "transaction.version" {
			return 0, tooOld(fmt.Sprintf("the brokers support transaction.version %d, but the cluster has 0", f.MaxVersion))
		}
	}
	return 0, tooOld("the cluster does not know transaction.version")
}

func tooOld(found string) error {
	return fault.Stopf(fault.BrokerTooOld,
		"%s: Kafka 4.0 or newer with transaction.version=2 is needed (upgrade with kafka-features.sh upgrade --feature transaction.version=2)", found)
}

// checkTimeout compares with transaction.max.timeout.ms. Who may not read the broker's configuration is not stopped:
// the broker itself refuses a timeout that is too long when the transactional id is initialised.
func checkTimeout(ctx context.Context, cl *kgo.Client, cfg Config, meta kadm.Metadata, asked time.Duration) (time.Duration, error) {
	most, err := maxTimeout(ctx, cl, meta)
	if err != nil {
		cfg.logger().Warn("the broker's transaction.max.timeout.ms cannot be read; the broker itself will check the transaction timeout", "transaction_timeout", asked, "err", err)
		return 0, nil
	}
	if asked > most {
		return most, TransactionTimeoutError(asked, most)
	}
	return most, nil
}

// maxTimeout gives the lowest maximum of the brokers: any of them may become the coordinator of an id.
func maxTimeout(ctx context.Context, cl *kgo.Client, meta kadm.Metadata) (time.Duration, error) {
	configs, err := kadm.NewClient(cl).DescribeBrokerConfigs(ctx, meta.Brokers.NodeIDs()...)
	if err != nil && len(configs) == 0 {
		return 0, err
	}
	least := time.Duration(0)
	for _, rc := range configs {
		if rc.Err != nil {
			err = rc.Err
			continue
		}
		for _, c := range rc.Configs {
			if c.Key != "transaction.max.timeout.ms" || c.Value == nil {
				continue
			}
			ms, perr := strconv.ParseInt(*c.Value, 10, 32)
			if perr != nil {
				return 0, perr
			}
			if d := time.Duration(ms) * time.Millisecond; least == 0 || d < least {
				least = d
			}
		}
	}
	if least > 0 {
		return least, nil
	}
	return 0, cmpErr(err, errors.New("no broker tells it"))
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// dialWatch keeps the last error of opening a connection: a request that ran into its deadline does not tell it.
type dialWatch struct {
	mu     sync.Mutex
	last   error
	denied func()
}

// whenDenied has fn called when a broker refuses the login.
func (w *dialWatch) whenDenied(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.denied = fn
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (w *dialWatch) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if IsDenied(w.last) {
		return // what follows is only the end of the tries
	}
	w.last = err
	if IsDenied(err) && w.denied != nil {
		w.denied()
	}
}

func (w *dialWatch) noteIfNone(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		w.last = err
	}
}

func (w *dialWatch) lastError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}
