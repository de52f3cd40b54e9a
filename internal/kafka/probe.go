package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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

const neededTransactionVersion = 2

// Probe reaches the cluster and checks it against need. Its errors end the process (fault.Stop) and carry the codes
// Unreachable, BadFile (brokers of two clusters), BrokerTooOld, TransactionTimeout, UnknownTopic or Denied; each names what was found and what to do.
func Probe(ctx context.Context, cfg Config, need Need) (*Cluster, error) {
	cl, meta, err := connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	cluster := &Cluster{ID: clusterID(meta)}
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

// RefuseOldTransactions gives the error of Probe where the cluster has no transaction.version that is new enough any more: it may be
// lowered while a service runs. Clients that are there may go on; new ones would work without the epoch of each transaction, and
// what a request that came late did would count for the next one.
func RefuseOldTransactions(ctx context.Context, cl *kgo.Client) error {
	return Again(ctx, cl, func(ctx context.Context) error {
		_, err := transactionVersion(ctx, cl)
		return err
	})
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
func checkTimeout(ctx context.Context, cl *kgo.Client, cfg Config, meta *kmsg.MetadataResponse, asked time.Duration) (time.Duration, error) {
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
func maxTimeout(ctx context.Context, cl *kgo.Client, meta *kmsg.MetadataResponse) (time.Duration, error) {
	var nodes []int32
	for _, b := range meta.Brokers {
		nodes = append(nodes, b.NodeID)
	}
	configs, err := kadm.NewClient(cl).DescribeBrokerConfigs(ctx, nodes...)
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
