package config

import (
	"path/filepath"
	"time"

	"github.com/millweir/millweir/internal/yamlx"
)

// derive fills in what depends on other settings and checks what must fit together. With mistakes in the values
// themselves there is nothing to derive from.
func derive(s *Service, in *inputs, ps *Problems) {
	if ps.Len() > 0 {
		return
	}
	if s.State.Checkpoints.Dir == "" {
		s.State.Checkpoints.Dir = filepath.Join(s.DataDir, "checkpoints")
		s.setDerived("state.checkpoints.dir", s.State.Checkpoints.Dir)
	}
	s.State.Checkpoints.Dir = dirOf(s.State.Checkpoints.Dir)
	if len(s.State.LocalRootDirs) == 0 {
		s.State.LocalRootDirs = []string{filepath.Join(s.DataDir, "local")}
		s.setDerived("state.local.root-dirs", s.State.LocalRootDirs...)
	}

	c := s.Checkpointing
	least := LeastTransactionTimeout(c)
	given := in.of("transaction.timeout")
	if len(given) == 0 {
		s.Transaction.Timeout = max(minTransactionTimeout, least)
		s.setDerived("transaction.timeout", yamlx.FormatDuration(s.Transaction.Timeout))
		return
	}
	if s.Transaction.Timeout < least {
		given[len(given)-1].node.Errorf(
			"%s is too short: the larger of checkpointing.interval (%s) and checkpointing.min-pause (%s), plus checkpointing.timeout (%s), plus %s needs at least %s",
			yamlx.FormatDuration(s.Transaction.Timeout), yamlx.FormatDuration(c.Interval), yamlx.FormatDuration(c.MinPause),
			yamlx.FormatDuration(c.Timeout), yamlx.FormatDuration(transactionReserve), yamlx.FormatDuration(least))
	}
}

// LeastTransactionTimeout is the time that a Kafka transaction may have to stay open: it begins with one checkpoint
// and ends with the commit of the next one.
func LeastTransactionTimeout(c Checkpointing) time.Duration {
	return max(c.Interval, c.MinPause) + c.Timeout + transactionReserve
}

func (s *Service) setDerived(path string, texts ...string) {
	for i := range s.values {
		if s.values[i].Setting.Path == path {
			s.values[i].Texts, s.values[i].Origin = texts, "derived"
		}
	}
}
