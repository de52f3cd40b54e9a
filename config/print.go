package config

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Print gives the effective configuration as a service file: every setting with a comment that says where its value
// came from, then the topology with variables replaced. Loading it gives an equal Service. Settings without a value
// are shown as comments, and of secrets only that they are there.
func (s *Service) Print() string {
	root := &yaml.Node{Kind: yaml.MappingNode}
	var unset, hidden []string
	for _, v := range s.values {
		if len(v.Texts) == 0 {
			if set := v.Setting; !set.Only && set.gap().mayBeGiven() && (set.applies == nil || set.applies(s)) {
				unset = append(unset, v.Setting.Path)
			}
			continue
		}
		if v.Setting.Secret {
			hidden = append(hidden, fmt.Sprintf("# %s is set (%s) and not shown\n", v.Setting.Path, v.Origin))
			continue
		}
		put(root, strings.Split(v.Setting.Path, "."), v)
	}
	root.Content = append(root.Content, s.topology...)
	var b bytes.Buffer
	for _, path := range unset {
		fmt.Fprintf(&b, "# %s is not set\n", path)
	}
	b.WriteString(strings.Join(hidden, ""))
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return fmt.Sprintf("# cannot be shown: %v\n", err) // the encoder writes to memory; there is no case known
	}
	_ = enc.Close()
	return b.String()
}

// put places a value at a path below a mapping, making the mappings on the way.
func put(m *yaml.Node, path []string, v Value) {
	for len(path) > 1 {
		m, path = child(m, path[0]), path[1:]
	}
	if len(children(v.Setting.Path)) > 0 {
		m, path = child(m, path[0]), []string{"type"}
	}
	value := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle, LineComment: v.Origin}
	for _, t := range v.Texts {
		value.Content = append(value.Content, textNode(t))
	}
	if !strings.HasPrefix(v.Setting.Type, "list") {
		value = textNode(v.Texts[0])
		value.LineComment = v.Origin
	}
	m.Content = append(m.Content, keyNode(path[0]), value)
}

func child(m *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return m.Content[i+1]
		}
	}
	c := &yaml.Node{Kind: yaml.MappingNode}
	m.Content = append(m.Content, keyNode(key), c)
	return c
}

// keyNode shows a key; nothing is replaced in keys.
func keyNode(key string) *yaml.Node {
	n := textNode(key)
	n.Value = key
	return n
}

// textNode shows a text so that reading gives the same text back: no variable in it, and in quotes unless it is a word
// or a figure that every YAML reader takes as it stands.
func textNode(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: strings.ReplaceAll(text, "${", "$${")}
	if !plainWord.MatchString(text) || otherWord.MatchString(text) {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

var (
	plainWord = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9-]*|0|[1-9][0-9]*|([0-9]+[a-z]+)+)$`)
	// otherWord are the words that some YAML reader takes for a boolean or for nothing, but for true and false, which
	// are meant so where they stand.
	otherWord = regexp.MustCompile(`^(?i:y|n|yes|no|on|off|null|[0-9]+e[0-9]+)$|^0[xob]`)
)
