package config

import (
	"regexp"
	"slices"
	"strings"

	"github.com/millweir/millweir/internal/yamlx"
)

// Problems is what Load found wrong, all of it.
type Problems = yamlx.Problems

// topologyKeys are the top-level keys that package pipeline reads.
var topologyKeys = []string{"sources", "steps", "sinks"}

// Load reads the service file at path. overrides are the --set arguments (path=value, the last of a path counts);
// environ is the environment as os.Environ gives it, both for ${VAR} and for MILLWEIR_… settings. The Service is nil
// when there are problems, and then Problems.Err gives an error with code BadFile.
func Load(path string, overrides, environ []string) (*Service, *Problems) {
	ps := &Problems{}
	data, ok := yamlx.ReadFile(path, ps)
	if !ok {
		return nil, ps
	}
	return Parse(path, data, overrides, environ, ps), ps
}

// Parse is Load for a file that was read already; path names it in messages, and paths in the topology are relative
// to its directory.
func Parse(path string, data []byte, overrides, environ []string, ps *Problems) *Service {
	env := variables(environ)
	root := yamlx.Parse(path, data, func(name string) (string, bool) { v, ok := env[name]; return v, ok }, ps)
	in := newInputs(ps)
	in.environment(environ)
	in.overrides(overrides)
	if root == nil {
		return nil
	}
	in.file(root, "")
	s := &Service{}
	readAll(s, in, root)
	derive(s, in, root, ps)
	buildTopology(s, root, path, ps)
	if ps.Len() > 0 {
		return nil
	}
	return s
}

func variables(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			env[name] = value
		}
	}
	return env
}

// input is one given value of a setting; later ones win.
type input struct {
	node   *yamlx.Node
	origin string
}

// inputs collects the given values by path of the setting, in rising precedence.
type inputs struct {
	ps     *Problems
	given  map[string][]input
	lately map[string][]input // environment and --set, appended after the file
}

func newInputs(ps *Problems) *inputs {
	return &inputs{ps: ps, given: map[string][]input{}, lately: map[string][]input{}}
}

// of gives the values of a setting from the weakest to the strongest.
func (in *inputs) of(path string) []input { return slices.Concat(in.given[path], in.lately[path]) }

// file collects the settings of the mapping at n. At the root the keys of the topology are left to package pipeline.
func (in *inputs) file(n *yamlx.Node, path string) {
	allowed := children(path)
	if path == "" {
		allowed = append(allowed, topologyKeys...)
	} else if find(path) != nil {
		allowed = append(allowed, "type") // the setting itself, beside those below it
	}
	o := n.Object(func(key string) string { return misplaced(path, key, allowed) }, allowed...)
	for _, key := range allowed {
		v := o.Get(key)
		sub := strings.TrimPrefix(path+"."+key, ".")
		switch {
		case v == nil || path == "" && slices.Contains(topologyKeys, key):
		case find(sub) == nil && find(path) != nil && key == "type":
			in.given[path] = append(in.given[path], input{v, v.Pos().String()})
		case find(sub) != nil && (v.IsScalar() || len(children(sub)) == 0):
			in.given[sub] = append(in.given[sub], input{v, v.Pos().String()})
		default:
			in.file(v, sub)
		}
	}
}

// environment collects the MILLWEIR_… variables. One that names no setting is a mistake like an unknown key.
func (in *inputs) environment(environ []string) {
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, envPrefix) || serviceLink.MatchString(name) {
			continue
		}
		origin := "environment " + name
		i := slices.IndexFunc(table, func(s Setting) bool {
			return s.Env() == strings.TrimSuffix(name, "_TYPE") && len(children(s.Path)) > 0 || s.Env() == name
		})
		if i < 0 {
			in.ps.Add(yamlx.Pos{File: origin}, "", "names no setting%s", near(name, func(s Setting) string { return s.Env() }))
			continue
		}
		p := table[i].Path
		in.lately[p] = append(in.lately[p], input{yamlx.Literal(origin, p, value, in.ps), origin})
	}
}

// serviceLink matches the variables that Kubernetes sets in every pod for services whose name begins with millweir.
var serviceLink = regexp.MustCompile(`^MILLWEIR_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// overrides collects the --set arguments.
func (in *inputs) overrides(args []string) {
	for _, arg := range args {
		path, value, ok := strings.Cut(arg, "=")
		if !ok {
			in.ps.Add(yamlx.Pos{File: "--set " + arg}, "", "has no value; write --set path=value, for example --set checkpointing.interval=1s")
			continue
		}
		if p, ok := strings.CutSuffix(path, ".type"); ok && find(p) != nil && len(children(p)) > 0 {
			path = p
		}
		if find(path) == nil {
			in.ps.Add(yamlx.Pos{File: "--set " + path}, "", "names no setting%s", near(path, func(s Setting) string { return s.Path }))
			continue
		}
		in.lately[path] = append(in.lately[path], input{yamlx.Literal("--set", path, value, in.ps), "--set"})
	}
}

func find(path string) *Setting {
	if i := slices.IndexFunc(table, func(s Setting) bool { return s.Path == path }); i >= 0 {
		return &table[i]
	}
	return nil
}

// children gives the keys that may stand in the mapping at a path, in the order of the table.
func children(path string) []string {
	prefix := ""
	if path != "" {
		prefix = path + "."
	}
	var out []string
	for _, s := range table {
		rest, ok := strings.CutPrefix(s.Path, prefix)
		if !ok || rest == "" {
			continue
		}
		if key, _, _ := strings.Cut(rest, "."); !slices.Contains(out, key) {
			out = append(out, key)
		}
	}
	return out
}

func near(word string, form func(Setting) string) string {
	var all []string
	for _, s := range table {
		all = append(all, form(s))
	}
	if s := yamlx.Suggest(word, all); s != "" {
		return "; did you mean " + s + "?"
	}
	return "; docs/settings.md lists them"
}

// misplaced explains a key that is a setting of another place, or is spelled with dots; "" leaves it to the near miss.
func misplaced(path, key string, allowed []string) string {
	full := strings.TrimPrefix(path+"."+key, ".")
	if strings.Contains(key, ".") && find(full) != nil {
		return "unknown key; settings are nested, write " + nested(full)
	}
	var at []string
	for _, s := range table {
		if strings.HasSuffix(s.Path, "."+key) || key == s.Path {
			at = append(at, s.Path)
		}
	}
	for _, k := range topologyKeys {
		if k == key && path != "" {
			return "unknown key; " + key + " stands at the top level"
		}
	}
	if len(at) > 0 && yamlx.Suggest(key, allowed) == "" {
		return "unknown key here; it is the setting " + strings.Join(at, " or ")
	}
	return ""
}

// nested shows a dotted path the way the file wants it.
func nested(path string) string {
	keys := strings.Split(path, ".")
	last := len(keys) - 1
	return strings.Join(keys[:last], ": {") + ": {" + keys[last] + ": …" + strings.Repeat("}", last)
}

// readAll reads every given value, checking also those that a stronger one overrides, and notes the effective one.
func readAll(s *Service, in *inputs, root *yamlx.Node) {
	for i := range table {
		set := &table[i]
		v := Value{Setting: set, Origin: "default"}
		given := in.of(set.Path)
		switch {
		case len(given) == 0 && set.Default != "" && (set.applies == nil || set.applies(s)):
			texts, _ := set.read(yamlx.Literal("default", set.Path, set.Default, in.ps), set, s)
			if set.gap().mayBeGiven() {
				v.Texts = texts
			}
		case len(given) == 0 && set.Required:
			in.ps.Add(root.Pos(), set.Path, "is required")
		}
		for _, g := range given {
			if texts, ok := set.take(g.node, s); ok {
				v.Texts, v.Origin = texts, g.origin
			}
		}
		s.values = append(s.values, v)
	}
}
