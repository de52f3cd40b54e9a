package processor

import (
	"context"
	"time"

	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/txn"
)

// goneTimeout bounds the search for what instances that are gone have left open; without it only time is lost.
const goneTimeout = 10 * time.Second

// goneRetry is the pause before the search is made again after an error that may pass.
const goneRetry = 100 * time.Millisecond

// committer is the transaction manager as the engine sees it. Its Init also ends what instances that are gone have left
// open: the stable read that follows would wait for the timeout of those transactions.
type committer struct {
	*txn.Manager
	s *service
}

var _ engine.Committer = committer{}

// Init makes the own ids ours and fences those of instances that are gone. Before, it makes this instance known again, which
// may have been taken for gone itself; without that only time is lost.
func (c committer) Init(ctx context.Context) error {
	if err := c.s.repo.Announce(ctx); err != nil && ctx.Err() == nil {
		c.s.log.Warn("could not announce this instance in the checkpoint directory", "error", err)
	}
	if err := c.Manager.Init(ctx); err != nil {
		return err
	}
	c.FenceGone(ctx)
	return ctx.Err()
}

// FenceGone ends the transactions of instances that are gone.
func (c committer) FenceGone(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	ids, err := c.s.fenceGone(bounded)
	for kafka.IsRetriable(err) && sleep(bounded, goneRetry) == nil {
		var more []string
		more, err = c.s.fenceGone(bounded)
		ids = append(ids, more...)
	}
	c.s.tellFenced(ids)
	if err != nil && ctx.Err() == nil {
		c.s.log.Warn("could not end the transactions of instances that are gone: readers wait for their timeout", "error", err)
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
func (s *service) fenceGoneAgain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	ids, err := s.fenceGone(ctx)
	s.tellFenced(ids)
	if err != nil && ctx.Err() == nil {
		s.log.Debug("could not look for the transactions of instances that are gone", "error", err)
	}
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
