package txn

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
)

// One of the brokers cannot list its transactions. What the others list is ended all the same, and the error tells that it
// may not be all.
func TestWhatSomeBrokersListIsEndedThoughAnotherDoesNotAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		answer *kerr.Error
		tells  []error
	}{
		"it fails":   {kerr.UnknownServerError, []error{kerr.UnknownServerError}},
		"it refuses": {kerr.ClusterAuthorizationFailed, []error{kerr.ClusterAuthorizationFailed}},
		// It is asked again until half of the time is over, and then the error is that of the last answer, or says that there is
		// none to the last question.
		"it is not ready": {kerr.CoordinatorLoadInProgress, []error{kerr.CoordinatorLoadInProgress, context.DeadlineExceeded}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, fake := testbed.NewFake(t, "one of several brokers answers with an error", kfake.NumBrokers(3))
			app, out := b.Name("app"), b.Topic("out", 1, nil)
			id := TransactionalID(app, "dead", 0)
			cl, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers...), kgo.TransactionalID(id), kgo.DefaultProduceTopic(out))
			require.NoError(t, err)
			defer cl.Close()
			require.NoError(t, cl.BeginTransaction())
			require.NoError(t, cl.ProduceSync(t.Context(), kgo.StringRecord("x")).FirstErr())

			coordinator := fake.CoordinatorFor(id)
			fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListTransactions}, Nodes: []int32{(coordinator + 1) % 3}, Err: c.answer, Count: -1})
			m := &Manager{cfg: Config{Kafka: kafka.Config{Brokers: b.Brokers}, Application: app, Instance: "alive", Timeout: time.Minute}}
			nobody := func(context.Context) ([]string, error) { return nil, nil }
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
			defer cancel()
			ids, err := m.FenceGone(ctx, []string{"dead"}, nobody)
			require.Condition(t, func() bool { return slices.ContainsFunc(c.tells, func(e error) bool { return errors.Is(err, e) }) }, "%v", err)
			require.Equal(t, []string{id}, ids)
		})
	}
}
