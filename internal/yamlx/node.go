package yamlx

import (
	"slices"
	"strconv"
	"strings"
)

// Node is a value at its place in the file. Its methods note mistakes in the Problems of the reading and say by ok
// whether the result is usable. The methods that give structure accept a nil Node and then give nothing.
type Node struct {
	tree *tree
	path string
	ps   *Problems
	word string // besides numbers, see Or
}

// Or gives the node for the reading of a number where a word is possible, too: messages name it.
func (n *Node) Or(word string) *Node {
	twin := *n
	twin.word = word
	return &twin
}

// orWord ends the list of what is allowed.
func (n *Node) orWord() string {
	if n.word == "" {
		return ""
	}
	return ", or " + n.word
}

// Literal makes a node from a text that came another way than by a file, so that the same readings and messages serve
// all ways in. The text is taken as it is: no variables are replaced in it.
func Literal(origin, path, text string, ps *Problems) *Node {
	return &Node{tree: &tree{kind: scalar, text: text, raw: text, plain: false, pos: Pos{File: origin}, nodes: 1}, path: path, ps: ps}
}

// Pos is where the value stands.
func (n *Node) Pos() Pos { return n.tree.pos }

// Path is the full dotted path of the value.
func (n *Node) Path() string { return n.path }

// Errorf notes a mistake at the value.
func (n *Node) Errorf(format string, args ...any) { n.ps.Add(n.tree.pos, n.path, format, args...) }

// IsMapping reports that the value is a mapping.
func (n *Node) IsMapping() bool { return n != nil && n.tree.kind == mapping }

// IsList reports that the value is a list.
func (n *Node) IsList() bool { return n != nil && n.tree.kind == list }

// IsScalar reports that the value is a single value, null included.
func (n *Node) IsScalar() bool { return n != nil && n.tree.kind == scalar }

// isNull reports YAML's null: ~, null in any of its spellings or nothing at all, written in the file without quotes.
func (n *Node) isNull() bool {
	t := n.tree
	if t.kind != scalar || !t.plain || t.replaced || t.bad {
		return false
	}
	switch t.raw {
	case "", "~", "null", "Null", "NULL":
		return true
	}
	return false
}

// want checks the kind of a value and notes what is wrong. False also for what was reported before.
func (n *Node) want(k kind, example string) bool {
	switch {
	case n.tree.bad:
		return false
	case n.isNull():
		n.noValue()
	case n.tree.kind != k:
		n.Errorf("expected %s%s, found %s", k, example, n.tree.kind)
	default:
		return true
	}
	return false
}

func (n *Node) noValue() {
	switch n.tree.raw {
	case "", "~":
		n.Errorf("a value is required, found nothing; a key that has a default may be left out")
	default:
		n.Errorf(`a value is required, found %s; write "%s" in quotes if the text is meant`, n.tree.raw, n.tree.raw)
	}
}

// Entry is one key of a mapping with its value. Key has the key's own position.
type Entry struct {
	Name  string
	Key   *Node
	Value *Node
}

// Entries gives the entries of a mapping in the order of the file; nothing when it is none.
func (n *Node) Entries() []Entry {
	if n == nil || !n.want(mapping, "") {
		return nil
	}
	out := make([]Entry, len(n.tree.keys))
	for i, k := range n.tree.keys {
		path := join(n.path, k.text)
		key := &tree{kind: scalar, text: k.text, raw: k.text, pos: k.pos, nodes: 1}
		out[i] = Entry{k.text, &Node{tree: key, path: path, ps: n.ps}, &Node{tree: n.tree.vals[i], path: path, ps: n.ps}}
	}
	return out
}

// List gives the elements of a list; nothing when it is none.
func (n *Node) List() []*Node {
	if n == nil || !n.want(list, "") {
		return nil
	}
	out := make([]*Node, len(n.tree.vals))
	for i, v := range n.tree.vals {
		out[i] = &Node{tree: v, path: n.path + "[" + strconv.Itoa(i) + "]", ps: n.ps}
	}
	return out
}

// Object is a mapping with a fixed set of keys.
type Object struct {
	node    *Node
	entries []Entry
}

// Object reads a mapping that may hold the allowed keys only. Every other key is a mistake; hint, when not nil, may
// give a better message for it than the near miss among the allowed keys (for example where the key belongs).
func (n *Node) Object(hint func(key string) string, allowed ...string) *Object {
	o := &Object{node: n}
	for _, e := range n.Entries() {
		if slices.Contains(allowed, e.Name) {
			o.entries = append(o.entries, e)
			continue
		}
		if hint != nil {
			if h := hint(e.Name); h != "" {
				e.Key.Errorf("%s", h)
				continue
			}
		}
		e.Key.Errorf("unknown key%s", didYouMean(e.Name, allowed))
	}
	return o
}

// Get gives the value of a key, nil when the key is absent.
func (o *Object) Get(key string) *Node {
	for _, e := range o.entries {
		if e.Name == key {
			return e.Value
		}
	}
	return nil
}

// Require is Get and notes the absence as a mistake.
func (o *Object) Require(key string) *Node {
	v := o.Get(key)
	if v == nil && o.node != nil && !o.node.tree.bad && o.node.IsMapping() {
		o.node.ps.Add(o.node.tree.pos, join(o.node.path, key), "is required")
	}
	return v
}

// Has gives those of the keys that are present, in the order asked.
func (o *Object) Has(keys ...string) []string {
	var out []string
	for _, k := range keys {
		if o.Get(k) != nil {
			out = append(out, k)
		}
	}
	return out
}

// At gives the value below n at a path of keys, nil when there is none; it notes nothing.
func (n *Node) At(path ...string) *Node {
	for _, key := range path {
		if n == nil || n.tree.kind != mapping {
			return nil
		}
		i := slices.IndexFunc(n.tree.keys, func(k keyText) bool { return k.text == key })
		if i < 0 {
			return nil
		}
		n = &Node{tree: n.tree.vals[i], path: join(n.path, key), ps: n.ps}
	}
	return n
}

// quote shows a text of the file in a message: as written, cut when long.
func quote(s string) string {
	if r := []rune(s); len(r) > 60 {
		s = string(r[:60]) + "…"
	}
	return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"`
}

// Is reports that the value is exactly this text; it notes nothing.
func (n *Node) Is(text string) bool {
	return n != nil && n.tree.kind == scalar && !n.tree.bad && n.tree.text == text
}
