package processor

import (
	"context"
	"time"
)

// retained is how many checkpoints are kept. Without transactions a late copy of an offset commit may set the group back by
// one, and that one must be there.
func (c Config) retained() int {
	if c.loose() {
		return max(c.RetainedCheckpoints, 2)
	}
	return c.RetainedCheckpoints
}

// deleteTimeout bounds the deletion of the checkpoints after a cancel.
const deleteTimeout = 30 * time.Second

// deleteCheckpoints removes what this instance has in the checkpoint directory, after a cancel that keeps no state. What stays
// is asked for by nobody: the committed positions say that no state belongs to them.
func (s *service) deleteCheckpoints(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	rep, err := s.repo.DeleteOwn(ctx)
	if err != nil {
		s.log.Warn("the checkpoints are not needed any more, and could not all be deleted", "directory", s.cfg.CheckpointsDir, "error", err)
		return
	}
	s.log.Info("checkpoints deleted (checkpointing.retention: delete-on-cancellation): the next run starts without state at the committed offsets", "files", rep.Deleted, "bytes", rep.DeletedBytes)
}
