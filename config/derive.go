package config

import (
	"path/filepath"
	"strings"

	"github.com/millweir/millweir/internal/rules"
	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/processor"
)

// derive fills in what depends on other settings and checks what must fit together. With mistakes in the values
// themselves there is nothing to derive from.
func derive(s *Service, in *inputs, root *yamlx.Node, ps *Problems) {
	if ps.Len() > 0 {
		return
	}
	if s.State.Checkpoints.Dir == "" {
		s.State.Checkpoints.Dir = filepath.Join(s.DataDir, "checkpoints")
		s.setDerived("state.checkpoints.dir", s.State.Checkpoints.Dir)
	}
	s.State.Checkpoints.Dir = rules.DirOf(s.State.Checkpoints.Dir)
	s.State.SavepointsDir = rules.DirOf(s.State.SavepointsDir)
	if len(s.State.LocalRootDirs) == 0 {
		s.State.LocalRootDirs = []string{filepath.Join(s.DataDir, "local")}
		s.setDerived("state.local.root-dirs", s.State.LocalRootDirs...)
	}
	if len(in.of("transaction.timeout")) == 0 {
		c := s.Checkpointing
		s.Transaction.Timeout = processor.TransactionTimeoutFor(c.Interval, c.MinPause, c.Timeout)
		s.setDerived("transaction.timeout", yamlx.FormatDuration(s.Transaction.Timeout))
	}
	for _, m := range s.Processor().Check() {
		ps.Add(in.placeOf(m, root), m.Setting, "%s", m.Text)
	}
}

// placeOf gives where a mistake is to be shown: at the setting that has it, or, when that one was not given, at one that
// its text names.
func (in *inputs) placeOf(m processor.Mistake, root *yamlx.Node) yamlx.Pos {
	if given := in.of(m.Setting); len(given) > 0 {
		return given[len(given)-1].node.Pos()
	}
	for i := range table {
		if given := in.of(table[i].Path); len(given) > 0 && strings.Contains(m.Text, table[i].Path) {
			return given[len(given)-1].node.Pos()
		}
	}
	return root.Pos()
}

func (s *Service) setDerived(path string, texts ...string) {
	for i := range s.values {
		if s.values[i].Setting.Path == path {
			s.values[i].Texts, s.values[i].Origin = texts, "derived"
		}
	}
}
