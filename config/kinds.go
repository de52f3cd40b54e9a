package config

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/rules"
	"github.com/millweir/millweir/internal/yamlx"
)

// reader reads one value of a setting into the service and gives it as texts, in the form in which Print shows it.
type reader func(n *yamlx.Node, set *Setting, s *Service) (texts []string, ok bool)

// Setting is one row of the table.
type Setting struct {
	Path    string // dotted
	Type    string // what may be written, for the reference
	Default string // as it would be written; "" = none, or derived as Doc says
	Doc     string // one sentence or two
	Refused string // what is refused beside values outside of the range, for the reference
	// Flink is the same setting in Flink, "" when it has none; FlinkDefault is its default there.
	Flink, FlinkDefault string
	// Only says that the setting is known but not built yet: no value is accepted.
	Only     bool
	Required bool
	// Secret says that the value is never shown.
	Secret bool

	read reader
	// applies says whether the default is meant; nil = always. Given values are read in any case.
	applies func(*Service) bool
}

// Env is the environment variable of the setting.
func (s *Setting) Env() string {
	return envPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(s.Path))
}

func duration(field func(*Service) *time.Duration) reader {
	return func(n *yamlx.Node, set *Setting, s *Service) ([]string, bool) {
		r, _ := rules.Of(set.Path)
		d, ok := n.Duration(time.Duration(r.Min)*time.Millisecond, time.Duration(r.Max)*time.Millisecond)
		if ok {
			*field(s) = d
		}
		return []string{yamlx.FormatDuration(d)}, ok
	}
}

func size(field func(*Service) *int64) reader {
	return func(n *yamlx.Node, set *Setting, s *Service) ([]string, bool) {
		r, _ := rules.Of(set.Path)
		v, ok := n.Size(int64(r.Min), int64(r.Max))
		if ok {
			*field(s) = v
		}
		return []string{yamlx.FormatSize(v)}, ok
	}
}

func integer(field func(*Service) *int) reader {
	return func(n *yamlx.Node, set *Setting, s *Service) ([]string, bool) {
		r, _ := rules.Of(set.Path)
		v, ok := n.Int(int64(r.Min), int64(r.Max))
		if ok {
			*field(s) = int(v)
		}
		return []string{strconv.FormatInt(v, 10)}, ok
	}
}

// unlimited is the word for a count without an end, -1 in the service.
const unlimited = "unlimited"

func integerOrUnlimited(field func(*Service) *int) reader {
	return func(n *yamlx.Node, set *Setting, s *Service) ([]string, bool) {
		if n.IsScalar() && n.Is(unlimited) {
			*field(s) = -1
			return []string{unlimited}, true
		}
		return integer(field)(n.Or(unlimited), set, s)
	}
}

var decimal = regexp.MustCompile(`^[0-9]{1,6}(\.[0-9]{1,6})?$`)

func fraction(field func(*Service) *float64) reader {
	return func(n *yamlx.Node, set *Setting, s *Service) ([]string, bool) {
		text, ok := n.Text()
		if !ok {
			return nil, false
		}
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || !decimal.MatchString(text) {
			r, _ := rules.Of(set.Path)
			n.Errorf("expected a number such as 0.5 or 2, from %v to %v, found %s", r.Min, r.Max, n.Shown())
			return nil, false
		}
		if mistake := rules.Check(set.Path, v); mistake != "" {
			n.Errorf("%s", mistake)
			return nil, false
		}
		*field(s) = v
		return []string{strconv.FormatFloat(v, 'f', -1, 64)}, true
	}
}

func enum[T ~string](field func(*Service) *T, allowed ...T) reader {
	return func(n *yamlx.Node, _ *Setting, s *Service) ([]string, bool) {
		words := make([]string, len(allowed))
		for i, a := range allowed {
			words[i] = string(a)
		}
		v, ok := n.Enum(words...)
		if ok {
			*field(s) = T(v)
		}
		return []string{v}, ok
	}
}

func yesNo(field func(*Service) *bool) reader {
	return func(n *yamlx.Node, _ *Setting, s *Service) ([]string, bool) {
		v, ok := n.Bool()
		if ok {
			*field(s) = v
		}
		return []string{strconv.FormatBool(v)}, ok
	}
}

// text reads a text; check gives what is wrong with it.
func text(check func(string) string, field func(*Service) *string) reader {
	return func(n *yamlx.Node, _ *Setting, s *Service) ([]string, bool) {
		v, ok := n.Text()
		if ok {
			if mistake := check(v); mistake != "" {
				n.Errorf("%s %s", n.Shown(), mistake)
				ok = false
			}
		}
		if ok {
			*field(s) = v
		}
		return []string{v}, ok
	}
}

// secret is text that no message shows.
func secret(check func(string) string, field func(*Service) *string) reader {
	return func(n *yamlx.Node, _ *Setting, s *Service) ([]string, bool) {
		v, ok := n.Text()
		if ok {
			if mistake := check(v); mistake != "" {
				n.Errorf("the value %s", mistake)
				ok = false
			}
		}
		if ok {
			*field(s) = v
		}
		return []string{v}, ok
	}
}

func texts(check func(string) string, field func(*Service) *[]string) reader {
	return func(n *yamlx.Node, _ *Setting, s *Service) ([]string, bool) {
		elements, ok := n.Elements()
		var list []string
		for _, e := range elements {
			v, good := e.Text()
			if good {
				mistake := check(v)
				if mistake == "" && slices.Contains(list, v) {
					mistake = "is named twice"
				}
				if mistake != "" {
					e.Errorf("%s %s", e.Shown(), mistake)
					good = false
				}
			}
			list, ok = append(list, v), ok && good
		}
		if ok {
			*field(s) = list
		}
		return list, ok
	}
}

// unavailable refuses whatever is given, a mapping included.
func unavailable(n *yamlx.Node, _ *Setting, _ *Service) ([]string, bool) {
	n.Errorf("not available yet; leave the key out")
	return nil, false
}

// interval knows the word that turns checkpoints off.
func interval(n *yamlx.Node, set *Setting, s *Service) ([]string, bool) {
	if n.IsScalar() && n.Is(disabled) {
		s.Checkpointing.Disabled, s.Checkpointing.Interval = true, 0
		return []string{disabled}, true
	}
	texts, ok := duration(func(s *Service) *time.Duration { return &s.Checkpointing.Interval })(n.Or(disabled), set, s)
	if ok {
		s.Checkpointing.Disabled = false
	}
	return texts, ok
}

// jitter keeps no jitter apart from none given, as package restart does.
func jitter(n *yamlx.Node, set *Setting, s *Service) ([]string, bool) {
	texts, ok := fraction(func(s *Service) *float64 { return &s.Restart.Exponential.Jitter })(n, set, s)
	if ok && s.Restart.Exponential.Jitter == 0 {
		s.Restart.Exponential.Jitter = -1
	}
	return texts, ok
}

// disabled is the word that turns checkpoints off.
const disabled = "disabled"

// strategy reads the restart strategy; Flink has three words for none.
func strategy(n *yamlx.Node, set *Setting, s *Service) ([]string, bool) {
	if n.IsScalar() && (n.Is("off") || n.Is("disable")) {
		s.Restart.Strategy = restart.None
		return []string{string(restart.None)}, true
	}
	return enum(func(s *Service) *restart.Kind { return &s.Restart.Strategy }, restart.Kinds...)(n, set, s)
}

// of gives the condition that a strategy is the chosen one. The type stands before the options in the table.
func of(kind restart.Kind) func(*Service) bool {
	return func(s *Service) bool { return s.Restart.Strategy == kind }
}
