package processor

import (
	"context"

	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/snapshot"
)

// writeSavepoint writes a savepoint; without a directory into that of state.savepoints.dir.
func (s *service) writeSavepoint(ctx context.Context, dir string, head snapshot.SavepointHead, tasks []snapshot.SavepointTask) (snapshot.SavepointRef, error) {
	if dir == "" {
		dir = s.cfg.SavepointsDir
	}
	return snapshot.WriteSavepoint(ctx, snapshot.SavepointConfig{Dir: dir, WriteBufferSize: int(s.cfg.WriteBufferSize)}, head, tasks)
}

// savepoint is one as the engine sees it.
type savepoint struct{ *snapshot.Savepoint }

var _ engine.Savepoint = savepoint{}

// Contents says what it holds.
func (s savepoint) Contents() *snapshot.Root { return s.Root }

// openSavepoint opens the savepoint that a root names.
func openSavepoint(ctx context.Context, ref snapshot.SavepointRef) (engine.Savepoint, error) {
	s, err := snapshot.OpenTwin(ctx, ref)
	if err != nil {
		return nil, err
	}
	return savepoint{s}, nil
}

// retained is how many checkpoints are kept. Without transactions a late copy of an offset commit may set the group back by
// one, and that one must be there.
func (c Config) retained() int {
	if c.loose() {
		return max(c.RetainedCheckpoints, 2)
	}
	return c.RetainedCheckpoints
}
