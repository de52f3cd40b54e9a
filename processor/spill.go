package processor

import (
	"context"
	"path/filepath"

	"github.com/millweir/millweir/store"
)

// openSpill sets the limit of the memory that the states of all tasks may take. With the badger backend what exceeds it goes
// to disk; nothing is made there before. What a process that was killed left there goes in any case.
func (s *service) openSpill(context.Context) error {
	dirs := make([]string, len(s.cfg.LocalDirs))
	for i, d := range s.cfg.LocalDirs {
		dirs[i] = filepath.Join(d, s.plan.Application)
	}
	if s.cfg.Backend != Badger || len(s.plan.States) == 0 {
		store.RemoveOldSpills(s.log, dirs...)
		return nil
	}
	spill, err := store.OpenSpill(store.SpillConfig{Dirs: dirs, Limit: s.cfg.MemoryLimit, Logger: s.log})
	if err != nil {
		return err
	}
	s.spill = spill
	s.onClose(spill.Close)
	return nil
}
