package yamlx

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The limits of a file.
const (
	// MaxFileBytes is the largest file that is read.
	MaxFileBytes = 1 << 20
	// MaxTokens bounds the structural characters of a file, counted before the parser may build a node for each.
	MaxTokens = 100_000
	// MaxNodes bounds the nodes of a file, every alias counted in full.
	MaxNodes = 100_000
	// MaxDepth bounds the nesting.
	MaxDepth = 64
)

// kind of a tree node.
type kind int

const (
	scalar kind = iota
	mapping
	list
)

func (k kind) String() string { return [...]string{"a single value", "a mapping", "a list"}[k] }

// tree is the checked form of a YAML node. Trees are immutable once built and shared by aliases.
type tree struct {
	kind     kind
	pos      Pos
	text     string // scalar: the value after replacement of variables
	raw      string // scalar: as the file has it, for messages
	plain    bool   // scalar: written without quotes
	replaced bool   // scalar: a variable was used
	bad      bool   // a mistake was already reported for it
	keys     []keyText
	vals     []*tree
	nodes    int // this node and all below, aliases counted in full
}

type keyText struct {
	text string
	pos  Pos
}

// ReadFile reads a service file of at most MaxFileBytes. Problems name it as the user did.
func ReadFile(path string, ps *Problems) ([]byte, bool) {
	f, err := os.Open(path)
	if err != nil {
		ps.Add(Pos{File: path}, "", "cannot be read: %v", errors.Unwrap(err))
		return nil, false
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		ps.Add(Pos{File: path}, "", "cannot be read: %v", err)
		return nil, false
	}
	return data, true
}

// Parse reads one YAML document into a checked tree and gives its root, which is a mapping. file is the name that
// positions carry. When the text is not YAML at all the root is nil; other mistakes are noted and the rest is read on.
func Parse(file string, data []byte, env Lookup, ps *Problems) *Node {
	if len(data) > MaxFileBytes {
		ps.Add(Pos{File: file}, "", "larger than 1 MiB, the limit of a service file")
		return nil
	}
	if tokens(data) > MaxTokens {
		ps.Add(Pos{File: file}, "", "more than %d elements, the limit of a service file", MaxTokens)
		return nil
	}
	doc, err := document(data)
	if err != nil {
		pos, msg := syntaxError(file, data, err)
		ps.Add(pos, "", "%s", msg)
		return nil
	}
	b := builder{file: file, env: env, ps: ps, done: map[*yaml.Node]*tree{}}
	if doc == nil || len(doc.Content) == 0 {
		ps.Add(Pos{file, 1, 1}, "", "the file is empty")
		return nil
	}
	root := b.build(doc.Content[0], "", 0)
	if b.fatal {
		return nil
	}
	n := &Node{tree: root, ps: ps}
	if root.kind != mapping {
		n.Errorf("the file must be a mapping of settings, found %s", root.kind)
		return nil
	}
	return n
}

// tokens is an upper bound, close for ordinary files, of the nodes that the parser would build.
func tokens(data []byte) int {
	n := 0
	for i, c := range data {
		switch c {
		case ',', '[', '{', '\n', '\r':
			n++
		case '-', '?', ':':
			if i+1 == len(data) || data[i+1] == ' ' || data[i+1] == '\t' || data[i+1] == '\n' {
				n++
			}
		}
	}
	return n
}

// document parses exactly one document. nil without error means that there is none.
func document(data []byte) (doc *yaml.Node, err error) {
	// The parser reports malformed text by error; should it ever panic, the text is still only malformed.
	defer func() {
		if r := recover(); r != nil {
			doc, err = nil, fmt.Errorf("not valid YAML: %v", r)
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	switch err := dec.Decode(&first); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, err
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return nil, fmt.Errorf("yaml: line %d: a second document starts here; a service file holds one", max(second.Line, 1))
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	return &first, nil
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(?s:(.*))$`)

// parserMessages begin the messages for which the YAML package counts lines from 0; all others count from 1.
var parserMessages = []string{
	"did not find expected ',' or", "did not find expected key", "did not find expected '-' indicator",
	"did not find expected node content", "did not find expected <", "found undefined tag handle", "found duplicate %",
}

// syntaxError gives the place and the message of what the YAML package says. The line is that where the unfinished
// part begins; there is no column.
func syntaxError(file string, data []byte, err error) (Pos, string) {
	pos, msg := Pos{File: file, Line: 1, Column: 1}, err.Error()
	m := yamlLine.FindStringSubmatch(msg)
	if m == nil {
		return pos, msg
	}
	msg = strings.TrimSpace(m[2])
	line, err := strconv.Atoi(m[1])
	if err == nil {
		pos.Line = line
		if slices.ContainsFunc(parserMessages, func(p string) bool { return strings.HasPrefix(msg, p) }) {
			pos.Line++
		}
	}
	if strings.HasPrefix(msg, parserMessages[0]) && bytes.Contains(data, []byte("${")) {
		msg += "; inside of {} and [] a ${VAR} needs quotes"
	}
	return pos, msg
}

// builder turns YAML nodes into trees, checking what holds for every place.
type builder struct {
	file  string
	env   Lookup
	ps    *Problems
	done  map[*yaml.Node]*tree // anchored nodes; nil while in the making
	fatal bool
}

func (b *builder) pos(n *yaml.Node) Pos { return Pos{b.file, max(n.Line, 1), max(n.Column, 1)} }

func (b *builder) build(n *yaml.Node, path string, depth int) *tree {
	t := &tree{pos: b.pos(n), nodes: 1}
	if b.fatal {
		return t
	}
	if depth > MaxDepth {
		return b.stop(t, path, "nested deeper than %d levels", MaxDepth)
	}
	if n.Kind == yaml.AliasNode {
		target, ok := b.done[n.Alias]
		if !ok || target == nil {
			return b.stop(t, path, "alias *%s stands inside of what it names", n.Value)
		}
		return target
	}
	if n.Anchor != "" {
		b.done[n] = nil
		defer func() { b.done[n] = t }()
	}
	if n.Style&yaml.TaggedStyle != 0 {
		b.ps.Add(t.pos, path, "tag %s: tags are not accepted; write text in quotes", n.Tag)
		t.bad = true
	}
	switch n.Kind {
	case yaml.ScalarNode:
		b.scalar(t, n, path)
	case yaml.SequenceNode:
		t.kind = list
		for i, c := range n.Content {
			b.add(t, b.build(c, path+"["+strconv.Itoa(i)+"]", depth+1), path)
		}
	case yaml.MappingNode:
		t.kind = mapping
		seen := make(map[string]Pos, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			b.entry(t, seen, n.Content[i], n.Content[i+1], path, depth)
		}
	default:
		return b.stop(t, path, "not a value")
	}
	return t
}

func (b *builder) stop(t *tree, path, format string, args ...any) *tree {
	if !b.fatal {
		b.ps.Add(t.pos, path, format, args...)
		b.fatal = true
	}
	return t
}

// add appends a child and counts it in full; the count saturates at the limit, so it cannot overflow.
func (b *builder) add(t, child *tree, path string) {
	t.vals = append(t.vals, child)
	if t.nodes += child.nodes; t.nodes > MaxNodes {
		b.stop(t, path, "expands to more than %d elements (aliases counted in full)", MaxNodes)
	}
}

func (b *builder) entry(t *tree, seen map[string]Pos, k, v *yaml.Node, path string, depth int) {
	pos := b.pos(k)
	switch {
	case k.Kind != yaml.ScalarNode:
		b.ps.Add(pos, path, "a key must be a single word")
		return
	case k.Value == "<<" && k.Style == 0:
		b.ps.Add(pos, path, "merge keys (<<) are not accepted; write the keys out")
		return
	case k.Value == "":
		b.ps.Add(pos, path, "a key is empty")
		return
	case k.Style&yaml.TaggedStyle != 0:
		b.ps.Add(pos, path, "tag %s: tags are not accepted", k.Tag)
		return
	}
	if old, ok := seen[k.Value]; ok {
		b.ps.Add(pos, join(path, k.Value), "repeated key on line %d; it already stands on line %d", pos.Line, old.Line)
		return
	}
	seen[k.Value] = pos
	t.keys = append(t.keys, keyText{k.Value, pos})
	b.add(t, b.build(v, join(path, k.Value), depth+1), path)
}

func (b *builder) scalar(t *tree, n *yaml.Node, path string) {
	t.kind = scalar
	t.raw, t.plain = n.Value, n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
	text, replaced, err := expand(n.Value, b.env)
	if err != nil {
		pos := t.pos
		var ve *variableError
		if errors.As(err, &ve) && n.Style&yaml.LiteralStyle != 0 {
			pos.Line += 1 + strings.Count(n.Value[:ve.at], "\n")
			pos.Column = 1
		}
		b.ps.Add(pos, path, "%s", err)
		t.bad = true
		return
	}
	t.text, t.replaced = text, replaced
}

// join makes the path of a key below path.
func join(path, key string) string {
	if len(key) > 128 {
		key = key[:128] + "…"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}
