package avro

import (
	"fmt"
	"regexp"
	"strings"
)

var partRE = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// validPart says that s is a name without a namespace.
func validPart(s string) bool { return partRE.MatchString(s) }

// validFull says that s is a name with or without a namespace.
func validFull(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if !validPart(part) {
			return false
		}
	}
	return true
}

// candidates gives the full names that a reference may mean, the most specific first: a name without a dot belongs to
// the namespace around it, or to none.
func candidates(name, space string) []string {
	if space == "" || strings.Contains(name, ".") {
		return []string{name}
	}
	return []string{space + "." + name, name}
}

// define enters a named type, before its parts are parsed, so that they can refer to it. It gives the namespace inside.
func (b *builder) define(k kind, doc map[string]any, space string) (s *schema, inner string, err error) {
	name, _ := doc["name"].(string)
	if v, has := doc["namespace"]; has {
		ns, ok := v.(string)
		if !ok {
			return nil, "", fmt.Errorf("%s %q: the namespace is not a string", k, name)
		}
		space = ns
	}
	full := name
	if !strings.Contains(name, ".") && space != "" {
		full = space + "." + name
	}
	if !validFull(full) {
		return nil, "", fmt.Errorf("%s with the invalid name %q", k, full)
	}
	if _, reserved := primitives[full]; reserved {
		return nil, "", fmt.Errorf("%s with the name of the type %s", k, full)
	}
	if b.types[full] != nil {
		return nil, "", fmt.Errorf("two types %s", full)
	}
	s = &schema{kind: k, name: full, alias: fmt.Sprintf("t%d", len(b.types))}
	b.types[full] = s
	return s, full[:max(0, strings.LastIndexByte(full, '.'))], nil
}
