package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

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
	idGrace    = 10 * time.Second
	topicPoll  = 50 * time.Millisecond
)

// DescribeTopics gives the named topics. It waits up to a second for topics that are not there (just created ones
// appear late) and up to ten for an id. All that are missing are named in one error of code UnknownTopic; a refused
// one gives Denied.
func DescribeTopics(ctx context.Context, cl *kgo.Client, names []string) (map[string]Topic, error) {
	if len(names) == 0 {
		return map[string]Topic{}, nil
	}
	adm := kadm.NewClient(cl)
	start := time.Now()
	for {
		listed, err := adm.ListTopics(ctx, names...)
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
		if len(missing) > 0 && waited > topicGrace {
			return nil, unknownTopics(missing)
		}
		if waited > idGrace {
			return nil, fault.Restartf(fault.UnknownTopic, "topics %v have no id or no partition yet after %v", waiting, idGrace)
		}
		if err := sleep(ctx, topicPoll); err != nil {
			return nil, fmt.Errorf("waiting for topics %v: %w", slices.Concat(missing, waiting), err)
		}
	}
}

// sortTopics splits what metadata said into topics that are complete, missing, and there but not complete yet.
func sortTopics(names []string, listed kadm.TopicDetails) (found map[string]Topic, missing, waiting []string, err error) {
	found = make(map[string]Topic, len(names))
	for _, name := range names {
		d, ok := listed[name]
		switch {
		case !ok, errors.Is(d.Err, kerr.UnknownTopicOrPartition):
			missing = append(missing, name)
		case d.Err != nil && !kerr.IsRetriable(d.Err):
			return nil, nil, nil, Classify(d.Err, "read the metadata of topic %s", name)
		case d.Err != nil, element.TopicID(d.ID).IsZero(), len(d.Partitions) == 0:
			waiting = append(waiting, name)
		default:
			found[name] = Topic{Name: name, ID: element.TopicID(d.ID), Partitions: int32(len(d.Partitions))}
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
// that exists is left as it is, whatever its partitions and configuration are.
func EnsureTopic(ctx context.Context, cl *kgo.Client, name string, partitions int32, config map[string]*string) (element.TopicID, error) {
	_, err := kadm.NewClient(cl).CreateTopic(ctx, partitions, -1, config, name)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		// Who may not create may still use what is there.
		if !errors.Is(err, kerr.ClusterAuthorizationFailed) && !errors.Is(err, kerr.TopicAuthorizationFailed) {
			return element.TopicID{}, Classify(err, "create topic %s", name)
		}
		t, derr := DescribeTopics(ctx, cl, []string{name})
		if derr != nil {
			return element.TopicID{}, Classify(err, "create topic %s", name)
		}
		return t[name].ID, nil
	}
	t, err := DescribeTopics(ctx, cl, []string{name})
	if err != nil {
		return element.TopicID{}, err
	}
	return t[name].ID, nil
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

// MaxMessageBytes gives the largest batch that topics take, of those whose configuration can be read.
func MaxMessageBytes(ctx context.Context, cl *kgo.Client, names []string) (map[string]int32, error) {
	configs, err := kadm.NewClient(cl).DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return nil, Classify(err, "read the configuration of topics %v", names)
	}
	most := map[string]int32{}
	for _, c := range configs {
		for _, entry := range c.Configs {
			if n, err := strconv.ParseInt(entry.MaybeValue(), 10, 32); c.Err == nil && entry.Key == "max.message.bytes" && err == nil {
				most[c.Name] = int32(n)
			}
		}
	}
	return most, nil
}
