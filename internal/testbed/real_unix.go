//go:build unix

package testbed

import (
	"context"
	"strings"

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
	return strings.Split(b.Addr, ","), b.Close, nil
}
