//go:build unix

package testbed

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/integration/kafkatest"
)

// startReal starts one node. Sessions and transactions may be short there, and are seen to be over soon, so that tests
// need not wait for the defaults of many seconds.
func startReal(ctx context.Context, log func(string, ...any)) (brokers []string, stop func(), err error) {
	b, err := kafkatest.Run(ctx, kafkatest.Options{Log: log, Properties: map[string]string{
		"group.min.session.timeout.ms":                                "100",
		"log.cleaner.backoff.ms":                                      "200",
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
		"delete.topic.enable":                                         "true",
	}})
	if err != nil {
		return nil, nil, err
	}
	brokers = strings.Split(b.Addr, ",")
	if err := warmUp(ctx, brokers); err != nil {
		b.Close()
		return nil, nil, err
	}
	return brokers, b.Close, nil
}

// warmUp has the broker make its own topics for groups and transactions. The first request for either is answered
// COORDINATOR_NOT_AVAILABLE until they are there, which is not what any of the tests is about.
func warmUp(ctx context.Context, brokers []string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.TransactionalID("testbed"))
	if err != nil {
		return err
	}
	defer cl.Close()
	if _, _, err := cl.ProducerID(ctx); err != nil {
		return fmt.Errorf("the first transactional id: %w", err)
	}
	for {
		_, err := kadm.NewClient(cl).FetchOffsets(ctx, "testbed")
		if err == nil || errors.Is(err, kerr.GroupIDNotFound) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the first group: %w", err)
		}
		pause(ctx)
	}
}
