package config

import (
	"strings"

	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/processor"
)

// notObeyed are the settings that are read and checked in full, and that the process does not obey yet. The list is
// that of package processor; here stands what it means for a service file.
var notObeyed = processor.Gaps()

// gap is what is missing of a setting, nil = nothing.
type gap struct {
	processor.Gap
	def string // the default of the setting
}

func (s *Setting) gap() *gap {
	for _, g := range notObeyed {
		if below, all := strings.CutSuffix(g.Setting, "*"); g.Setting == s.Path || all && strings.HasPrefix(s.Path, below) {
			return &gap{g, s.Default}
		}
	}
	return nil
}

// mayBeGiven is false when no value is accepted.
func (g *gap) mayBeGiven() bool { return g == nil || g.Accepts != "" || g.Refuses != "" }

// accepted is the single value that is accepted, "" when it is not a single one.
func (g *gap) accepted() string {
	if g.Accepts == "default" {
		return g.def
	}
	return g.Accepts
}

// take reads a given value, and leaves the service as it is when the process does not obey that value.
func (s *Setting) take(n *yamlx.Node, svc *Service) ([]string, bool) {
	g := s.gap()
	if g == nil {
		return s.read(n, s, svc)
	}
	scratch := *svc
	texts, ok := s.read(n, s, &scratch)
	if !ok {
		return texts, false
	}
	switch text := strings.Join(texts, ","); {
	case g.Refuses != "" && text != g.Refuses, g.Refuses == "" && g.Accepts != "" && text == g.accepted():
		*svc = scratch
		return texts, true
	case g.Refuses != "":
		n.Errorf("%s is not available yet", n.Shown())
	case g.Accepts == "":
		n.Errorf("not available yet; leave the key out")
	default:
		n.Errorf("%s is not available yet; allowed: %s", n.Shown(), g.accepted())
	}
	return nil, false
}
