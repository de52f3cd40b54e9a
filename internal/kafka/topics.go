package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Topic is what the cluster says about one topic.
type Topic struct {
	Name string
	// ID is never zero.
	ID element.TopicID
	// Partitions is their number, at least 1.
	Partitions int32
}

const (
	// A topic that was just created is not known to every broker at once, and its id comes later than its name.
	topicGrace = time.Second
	madeGrace  = 15 * time.Second // of a topic that is known to be there, as it was made or found a moment ago
	idGrace    = 10 * time.Second
	topicPoll  = 50 * time.Millisecond
)

// DescribeTopics gives the named topics. It waits up to a second for topics that are not there (just created ones
// appear late) and up to ten for an id. All that are missing are named in one error of code UnknownTopic; a refused
// one gives Denied.
func DescribeTopics(ctx context.Context, cl *kgo.Client, names []string) (map[string]Topic, error) {
	return describeTopics(ctx, cl, names, topicGrace)
}

func describeTopics(ctx context.Context, cl *kgo.Client, names []string, grace time.Duration) (map[string]Topic, error) {
	if len(names) == 0 {
		return map[string]Topic{}, nil
	}
	start := time.Now()
	for {
		var listed map[string]kmsg.MetadataResponseTopic
		err := Again(ctx, cl, func(ctx context.Context) (err error) {
			listed, err = freshMetadata(ctx, cl, names)
			return err
		})
		if err != nil {
			return nil, Classify(err, "read the metadata of topics %v", names)
		}
		found, missing, waiting, err := sortTopics(names, listed)
		if err != nil {
			return nil, err
		}
		if len(missing) == 0 && len(waiting) == 0 {
			return found, nil
		}
		waited := time.Since(start)
		if len(missing) > 0 && waited > grace {
			return nil, unknownTopics(missing)
		}
		if len(missing) == 0 && waited > max(grace, idGrace) {
			return nil, fault.Restartf(fault.UnknownTopic, "topics %v have no id or no partition yet after %v", waiting, idGrace)
		}
		if err := sleep(ctx, topicPoll); err != nil {
			return nil, fmt.Errorf("waiting for topics %v: %w", slices.Concat(missing, waiting), err)
		}
	}
}

// freshMetadata asks the cluster. kadm would take what the client has learnt a moment ago, and with that a topic that has
// grown meanwhile has fewer partitions than are assigned.
func freshMetadata(ctx context.Context, cl *kgo.Client, names []string) (map[string]kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = &name
		req.Topics = append(req.Topics, t)
	}
	resp, err := cl.RequestCachedMetadata(ctx, req, 1)
	if err != nil {
		return nil, err
	}
	listed := make(map[string]kmsg.MetadataResponseTopic, len(resp.Topics))
	for _, t := range resp.Topics {
		if t.Topic != nil {
			listed[*t.Topic] = t
		}
	}
	return listed, nil
}

// sortTopics splits what metadata said into topics that are complete, missing, and there but not complete yet.
func sortTopics(names []string, listed map[string]kmsg.MetadataResponseTopic) (found map[string]Topic, missing, waiting []string, err error) {
	found = make(map[string]Topic, len(names))
	for _, name := range names {
		d, ok := listed[name]
		derr := kerr.ErrorForCode(d.ErrorCode)
		switch {
		case !ok, errors.Is(derr, kerr.UnknownTopicOrPartition):
			missing = append(missing, name)
		case derr != nil && !kerr.IsRetriable(derr):
			return nil, nil, nil, Classify(derr, "read the metadata of topic %s", name)
		case derr != nil, element.TopicID(d.TopicID).IsZero(), len(d.Partitions) == 0:
			waiting = append(waiting, name)
		default:
			found[name] = Topic{Name: name, ID: element.TopicID(d.TopicID), Partitions: int32(len(d.Partitions))}
		}
	}
	return found, missing, waiting, nil
}

func unknownTopics(missing []string) error {
	slices.Sort(missing)
	missing = slices.Compact(missing)
	if len(missing) == 1 {
		return fault.Stopf(fault.UnknownTopic, "topic %s does not exist: create it, or correct its name", missing[0])
	}
	return fault.Stopf(fault.UnknownTopic, "%d topics do not exist: %v: create them, or correct their names", len(missing), missing)
}

// EnsureTopic creates a topic with the broker's default replication unless it is there, and gives its id. A topic
// that exists is left as it is, whatever its partitions and configuration are. The brokers get 15 s to list what was made
// or found, and all of them as long again to list what was made with leaders; later the error is one that a new attempt may cure.
func EnsureTopic(ctx context.Context, cl *kgo.Client, name string, partitions int32, config map[string]*string) (element.TopicID, error) {
	_, err := kadm.NewClient(cl).CreateTopic(ctx, partitions, -1, config, name)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		// Who may not create may still use what is there.
		if !errors.Is(err, kerr.ClusterAuthorizationFailed) && !errors.Is(err, kerr.TopicAuthorizationFailed) {
			return element.TopicID{}, classifyCreate(err, name)
		}
		t, derr := DescribeTopics(ctx, cl, []string{name})
		if derr != nil {
			return element.TopicID{}, Classify(err, "create topic %s", name)
		}
		return t[name].ID, nil
	}
	made := err == nil
	t, err := describeTopics(ctx, cl, []string{name}, madeGrace)
	if fault.CodeOf(err) == fault.UnknownTopic {
		return element.TopicID{}, fault.Restartf(fault.UnknownTopic, "topic %s was made or found a moment ago, and the brokers do not list it yet: %w", name, err)
	}
	if err == nil && made {
		err = awaitLeaders(ctx, cl, name)
	}
	if err != nil {
		return element.TopicID{}, err
	}
	return t[name].ID, nil
}

// classifyCreate classes the refusal of a new topic: what the cluster will never take ends the process.
func classifyCreate(err error, name string) error {
	switch {
	case errors.Is(err, kerr.InvalidTopicException):
		return fault.Stopf(fault.BadFile, "create topic %s: the cluster refuses the name. Another topic may have a name that differs only in '.' and '_', as that of an application with such a name does: rename one of the two: %w", name, err)
	case errors.Is(err, kerr.PolicyViolation):
		return fault.Stopf(fault.Denied, "create topic %s: the cluster's policy for new topics refuses it; create it by hand: %w", name, err)
	case errors.Is(err, kerr.InvalidConfig):
		return fault.Stopf(fault.Denied, "create topic %s: the cluster refuses its configuration; create it by hand: %w", name, err)
	}
	return Classify(err, "create topic %s", name)
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const (
	defaultMaxRequest = 100 << 20 // socket.request.max.bytes of a broker that does not tell

	// RequestOverhead is what a produce request with a single batch has beside the batch at most, in bytes: names, ids and
	// lengths.
	RequestOverhead = 4 << 10
)

// Limits are those that brokers and topics set to what is produced, in bytes.
type Limits struct {
	// Batch is the largest batch by topic (max.message.bytes, as far as it fits into a request), of those topics whose
	// configuration can be read.
	Batch map[string]int32
	// Request is the largest request (socket.request.max.bytes, the least of the brokers that tell it; 100 MiB when none does).
	Request int32
}

// ReadLimits reads them for topics.
func ReadLimits(ctx context.Context, cl *kgo.Client, names []string) (Limits, error) {
	configs, err := kadm.NewClient(cl).DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return Limits{}, Classify(err, "read the configuration of topics %v", names)
	}
	l := Limits{Batch: map[string]int32{}, Request: int32(maxRequest(ctx, cl))}
	for _, c := range configs {
		for _, entry := range c.Configs {
			if n, err := strconv.ParseInt(entry.MaybeValue(), 10, 32); c.Err == nil && entry.Key == "max.message.bytes" && err == nil {
				l.Batch[c.Name] = int32(min(n, int64(l.Request)-RequestOverhead))
			}
		}
	}
	return l, nil
}

// maxRequest gives the least socket.request.max.bytes of the brokers that tell it.
func maxRequest(ctx context.Context, cl *kgo.Client) int64 {
	return leastOfBrokers(ctx, cl, "socket.request.max.bytes", RequestOverhead+1, defaultMaxRequest)
}

// OffsetLimits are what a group's coordinator goes by when it takes offsets, in bytes; 0 where it cannot be read.
type OffsetLimits struct {
	// Metadata is the longest metadata of an offset (offset.metadata.max.bytes, the least of the brokers that tell it).
	Metadata int64
	// Batch is what it writes at once (max.message.bytes of OffsetsTopic).
	Batch int64
}

// OffsetsTopic is where coordinators keep the offsets of groups.
const OffsetsTopic = "__consumer_offsets"

// ReadOffsetLimits reads them as far as it may.
func ReadOffsetLimits(ctx context.Context, cl *kgo.Client) OffsetLimits {
	l := OffsetLimits{Metadata: leastOfBrokers(ctx, cl, "offset.metadata.max.bytes", 0, math.MaxInt64)}
	if l.Metadata == math.MaxInt64 {
		l.Metadata = 0
	}
	configs, _ := kadm.NewClient(cl).DescribeTopicConfigs(ctx, OffsetsTopic)
	for _, c := range configs {
		for _, entry := range c.Configs {
			if n, err := strconv.ParseInt(entry.MaybeValue(), 10, 64); c.Err == nil && entry.Key == "max.message.bytes" && err == nil {
				l.Batch = n
			}
		}
	}
	return l
}

// leastOfBrokers gives the least value from from on that a broker tells of a setting, at most most.
func leastOfBrokers(ctx context.Context, cl *kgo.Client, key string, from, most int64) int64 {
	adm, least := kadm.NewClient(cl), most
	meta, err := adm.BrokerMetadata(ctx)
	if err != nil {
		return least
	}
	configs, _ := adm.DescribeBrokerConfigs(ctx, meta.Brokers.NodeIDs()...)
	for _, c := range configs {
		for _, entry := range c.Configs {
			if n, err := strconv.ParseInt(entry.MaybeValue(), 10, 32); c.Err == nil && entry.Key == key && err == nil && n >= from {
				least = min(least, n)
			}
		}
	}
	return least
}

// TopicNames gives the names of all topics that this client may see, sorted, without internal ones.
func TopicNames(ctx context.Context, cl *kgo.Client) ([]string, error) {
	var listed kadm.TopicDetails
	err := Again(ctx, cl, func(ctx context.Context) (err error) {
		listed, err = kadm.NewClient(cl).ListTopics(ctx) // without internal ones
		return err
	})
	if err != nil {
		return nil, Classify(err, "list the topics of the cluster")
	}
	return listed.Names(), nil
}
