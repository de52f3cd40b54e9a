package processor

import (
	"context"
	"sync"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/kafkasink"
	"github.com/millweir/millweir/txn"
)

const (
	// goneTimeout bounds the search for what instances that are gone have left open; without it only time is lost.
	goneTimeout = 10 * time.Second
	// goneWait is how long the work waits for the search: where a broker is gone, too, its part cannot be had for a while.
	goneWait = 2 * time.Second
	// goneRetry is the pause before the search is made again after an error that may pass.
	goneRetry = 100 * time.Millisecond
	// goneLater is the same when the work has begun without it.
	goneLater = 2 * time.Second
)

// committer is the transaction manager as the engine sees it. Its Init also ends what instances that are gone have left
// open: the stable read that follows would wait for the timeout of those transactions.
type committer struct {
	committing
	s *service
}

// committing is what makes the output and its commits: transactions, or in at-least-once mode what goes out as it comes.
type committing interface {
	kafkasink.Transactions
	Init(ctx context.Context) error
	CommitInitial(ctx context.Context, c checkpoint.Commit) error
	Commit(ctx context.Context, c checkpoint.Commit) error
	Abort(ctx context.Context) error
	FenceGone(ctx context.Context, known []string, living func(context.Context) ([]string, error)) ([]string, error)
	Close()
}

var (
	_ committing = (*txn.Manager)(nil)
	_ committing = (*txn.Plain)(nil)
)

var _ engine.Committer = committer{}

// Init makes the own ids ours and fences those of instances that are gone. Before, it makes this instance known again, which
// may have been taken for gone itself; without that only time is lost. It also looks at the outputs, before clients are made
// that go by their limits, and at what transactions can do here.
func (c committer) Init(ctx context.Context) error {
	if err := c.s.repo.Announce(ctx); err != nil && ctx.Err() == nil {
		c.s.log.Warn("could not announce this instance in the checkpoint directory", "error", err)
	}
	if err := c.s.lookAtOutputs(ctx); err != nil {
		return err
	}
	if !c.s.cfg.loose() {
		if err := kafka.RefuseOldTransactions(ctx, c.s.reads.cl); err != nil {
			return err
		}
	}
	if err := c.committing.Init(ctx); err != nil {
		return err
	}
	c.FenceGone(ctx)
	return ctx.Err()
}

// FenceGone ends the transactions of instances that are gone. What does not succeed in time is tried again beside the work.
func (c committer) FenceGone(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, goneWait)
	defer cancel()
	ids, err := c.s.fenceGone(bounded)
	for kafka.IsRetriable(err) && !kafka.IsUndialled(err) && sleep(bounded, goneRetry) == nil {
		var more []string
		more, err = c.s.fenceGone(bounded)
		ids = append(ids, more...)
	}
	c.s.tellFenced(ids)
	if err != nil && ctx.Err() == nil {
		c.s.log.Warn("could not end the transactions of instances that are gone; trying on: readers may wait for their timeout", "error", err)
		c.s.later.start(c.s)
	}
}

// goneSearch goes on with a search that did not succeed. Nobody else would: no partition moves any more.
type goneSearch struct {
	mu    sync.Mutex
	stop  context.CancelFunc // nil while none runs
	ended chan struct{}
}

// start begins to search, unless that is being done already.
func (g *goneSearch) start(s *service) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	g.stop, g.ended = stop, make(chan struct{})
	go func(ended chan struct{}) {
		defer close(ended)
		for sleep(ctx, goneLater) == nil {
			if err := s.fenceGoneAgain(ctx); err == nil || kafka.IsDenied(err) {
				break
			}
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.stop = nil
		stop()
	}(g.ended)
}

// end stops the search and waits for it.
func (g *goneSearch) end() {
	g.mu.Lock()
	stop, ended := g.stop, g.ended
	g.mu.Unlock()
	if stop != nil {
		stop()
		<-ended
	}
}

// fenceGone fences the instances that have files in the checkpoint directory and are not in the group.
func (s *service) fenceGone(ctx context.Context) ([]string, error) {
	known, err := s.repo.Instances(ctx)
	if err != nil {
		return nil, err
	}
	return s.manager.FenceGone(ctx, known, s.liveInstances)
}

// fenceGoneAgain is for a stable read that waits. The owner of what it waits for may have been a member when the search was
// made, and have died since: it is gone when its session is over, and nobody else may look after its transaction, since
// its partitions come to the one that waits.
func (s *service) fenceGoneAgain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	ids, err := s.fenceGone(ctx)
	s.tellFenced(ids)
	if err != nil && ctx.Err() == nil {
		s.log.Debug("could not look for the transactions of instances that are gone", "error", err)
	}
	return err
}

func (s *service) tellFenced(ids []string) {
	if len(ids) > 0 {
		s.log.Info("ended the transactions of an instance that is gone", "transactional_ids", ids)
	}
}

// sleep waits, and gives the error of ctx when that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
