package config

import (
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millweir/millweir/internal/yamlx"
)

// reader reads one value into the service and gives it as texts, in the form in which Print shows it.
type reader func(n *yamlx.Node, s *Service) (texts []string, ok bool)

// Setting is one row of the table.
type Setting struct {
	Path    string // dotted
	Type    string // what may be written, for the reference
	Default string // as it would be written; "" = none, or derived as Doc says
	Doc     string // one sentence
	Flink   string // the same setting in Flink, "" when it has none
	// Only says that the setting is known but not built yet: the default is the single value that is accepted, none
	// when Default is "".
	Only     bool
	Required bool

	read reader
}

// Env is the environment variable of the setting.
func (s *Setting) Env() string {
	return envPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(s.Path))
}

func duration(min, max time.Duration, field func(*Service) *time.Duration) reader {
	return func(n *yamlx.Node, s *Service) ([]string, bool) {
		d, ok := n.Duration(min, max)
		if ok {
			*field(s) = d
		}
		return []string{yamlx.FormatDuration(d)}, ok
	}
}

func size(min, max int64, field func(*Service) *int64) reader {
	return func(n *yamlx.Node, s *Service) ([]string, bool) {
		v, ok := n.Size(min, max)
		if ok {
			*field(s) = v
		}
		return []string{yamlx.FormatSize(v)}, ok
	}
}

func integer(min, max int64, field func(*Service) *int) reader {
	return func(n *yamlx.Node, s *Service) ([]string, bool) {
		v, ok := n.Int(min, max)
		if ok {
			*field(s) = int(v)
		}
		return []string{strconv.FormatInt(v, 10)}, ok
	}
}

func enum[T ~string](field func(*Service) *T, allowed ...string) reader {
	return func(n *yamlx.Node, s *Service) ([]string, bool) {
		v, ok := n.Enum(allowed...)
		if ok {
			*field(s) = T(v)
		}
		return []string{v}, ok
	}
}

func yesNo(field func(*Service) *bool) reader {
	return func(n *yamlx.Node, s *Service) ([]string, bool) {
		v, ok := n.Bool()
		if ok {
			*field(s) = v
		}
		return []string{strconv.FormatBool(v)}, ok
	}
}

// text reads a text; check, when not nil, gives what is wrong with it.
func text(check func(string) string, field func(*Service) *string) reader {
	return func(n *yamlx.Node, s *Service) ([]string, bool) {
		v, ok := n.Text()
		if ok && check != nil {
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

func texts(check func(string) string, field func(*Service) *[]string) reader {
	return func(n *yamlx.Node, s *Service) ([]string, bool) {
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

// only reads a value by its type and accepts the one that the process implements. What the type refuses is reported
// as such, so that a slip is not taken for a missing feature.
func only(value string, read func(n *yamlx.Node) (string, bool)) reader {
	return func(n *yamlx.Node, _ *Service) ([]string, bool) {
		got, ok := read(n)
		if ok && got != value {
			n.Errorf("%s is not available yet; allowed: %s", n.Shown(), value)
			ok = false
		}
		return []string{got}, ok
	}
}

// unavailable refuses whatever is given, a mapping included.
func unavailable(n *yamlx.Node, _ *Service) ([]string, bool) {
	n.Errorf("not available yet; leave the key out")
	return nil, false
}

func oneOf(words ...string) func(*yamlx.Node) (string, bool) {
	return func(n *yamlx.Node) (string, bool) { return n.Enum(words...) }
}

func boolean(n *yamlx.Node) (string, bool) {
	v, ok := n.Bool()
	return strconv.FormatBool(v), ok
}

func count(min, max int64) func(*yamlx.Node) (string, bool) {
	return func(n *yamlx.Node) (string, bool) {
		v, ok := n.Int(min, max)
		return strconv.FormatInt(v, 10), ok
	}
}

func anyDuration(n *yamlx.Node) (string, bool) {
	v, ok := n.Duration(0, 0)
	return yamlx.FormatDuration(v), ok
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// checkName gives what keeps a text from being a name: names become parts of topics, ids and file names.
func checkName(s string) string {
	if s == "." || s == ".." || !namePattern.MatchString(s) {
		return "is not a name: 1 to 128 letters, digits, dots, underscores or hyphens"
	}
	return ""
}

func checkBroker(s string) string {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return "is not host:port, for example localhost:9092"
	}
	if p, err := strconv.ParseUint(port, 10, 16); err != nil || p == 0 {
		return "has no port from 1 to 65535"
	}
	if strings.ContainsAny(host, "/@ ") {
		return "is not host:port, for example localhost:9092"
	}
	return ""
}

// checkDir accepts a path or a file URL.
func checkDir(s string) string {
	scheme, _, isURL := strings.Cut(s, "://")
	switch {
	case strings.ContainsRune(s, 0):
		return "is not a path"
	case !isURL:
		return ""
	case scheme != "file":
		return "is not available yet; allowed: a directory, or file:///directory"
	}
	if u, err := url.Parse(s); err != nil || u.Host != "" || !strings.HasPrefix(u.Path, "/") || u.RawQuery != "" || u.Fragment != "" {
		return "is not a file URL; write file:///directory"
	}
	return ""
}

// dirOf gives the path that a checked directory setting means.
func dirOf(s string) string {
	if !strings.HasPrefix(s, "file://") {
		return s
	}
	u, err := url.Parse(s)
	if err != nil {
		return s // checkDir refuses it before
	}
	return u.Path
}

func checkPath(s string) string {
	if strings.ContainsRune(s, 0) || strings.Contains(s, "://") {
		return "is not a path"
	}
	return ""
}

// interval knows the word that turns checkpoints off, to refuse it as what it is.
func interval(n *yamlx.Node, s *Service) ([]string, bool) {
	if n.IsScalar() && n.Is("disabled") {
		n.Errorf("disabled is not available yet; allowed: a duration of at least 10ms")
		return nil, false
	}
	return duration(10*time.Millisecond, time.Hour, func(s *Service) *time.Duration { return &s.Checkpointing.Interval })(n, s)
}

func countOrUnlimited(n *yamlx.Node) (string, bool) {
	if n.IsScalar() && n.Is("unlimited") {
		return "unlimited", true
	}
	return count(0, 1_000_000)(n)
}

func checkpointsDir(n *yamlx.Node, s *Service) ([]string, bool) {
	return text(checkDir, func(s *Service) *string { return &s.State.Checkpoints.Dir })(n, s)
}

// both applies a reader that only checks, then one that stores.
func both(check, store reader) reader {
	return func(n *yamlx.Node, s *Service) ([]string, bool) {
		if texts, ok := check(n, s); !ok {
			return texts, false
		}
		return store(n, s)
	}
}
