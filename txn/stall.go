package txn

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/kafka"
)

const (
	// stallAfter is how long acknowledgements are waited for before the log tells what the cluster says of the partitions.
	stallAfter = 3 * time.Second
	// stallLook bounds the question.
	stallLook = 5 * time.Second
)

// tellStall has the log tell that the brokers do not acknowledge, and of which topics partitions are not well: the client
// tries again and again, and gives no reason as long as that may help. The returned function ends it and waits for it.
func tellStall(ctx context.Context, log *slog.Logger, cl *kgo.Client, l *limits) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTimer(stallAfter)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		look, done := context.WithTimeout(ctx, stallLook)
		defer done()
		ailing, err := kafka.Ailing(look, cl, l.topics())
		if ctx.Err() != nil {
			return
		}
		args := []any{"waiting", stallAfter, "records", cl.BufferedProduceRecords()}
		switch {
		case err != nil:
			args = append(args, "error", err)
		case len(ailing) > 0:
			args = append(args, "partitions", ailing)
		}
		log.Warn("the brokers do not acknowledge the outputs", args...)
	})
	return func() {
		cancel()
		wg.Wait()
	}
}
