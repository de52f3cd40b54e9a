package processor

import (
	"context"
	"path/filepath"

	"github.com/millweir/millweir/store"
)

// openSpill sets the limit of the memory that the states of all tasks may take. With the badger backend what exceeds it goes
// to disk; nothing is made there before.
func (s *service) openSpill(context.Context) error {
	if s.cfg.Backend != Badger || len(s.plan.States) == 0 {
		return nil
	}
	dirs := make([]string, len(s.cfg.LocalDirs))
	for i, d := range s.cfg.LocalDirs {
		dirs[i] = filepath.Join(d, s.plan.Application)
	}
	spill, err := store.OpenSpill(store.SpillConfig{Dirs: dirs, Limit: s.cfg.MemoryLimit, Logger: s.log})
	if err != nil {
		return err
	}
	s.spill = spill
	s.onClose(spill.Close)
	return nil
}
