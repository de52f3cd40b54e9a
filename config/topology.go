package config

import (
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/pipeline"
)

// buildTopology has package pipeline make the plan, and keeps the sections for Print.
func buildTopology(s *Service, root *yamlx.Node, path string, ps *Problems) {
	s.Plan = pipeline.Build(s.Application, root, filepath.Dir(path), ps)
	for _, key := range topologyKeys {
		if n := root.At(key); n != nil {
			s.topology = append(s.topology, keyNode(key), shown(n))
		}
	}
}

// shown gives a section with its final texts: variables replaced, aliases written out.
func shown(n *yamlx.Node) *yaml.Node {
	switch {
	case n.IsMapping():
		m := &yaml.Node{Kind: yaml.MappingNode}
		for _, e := range n.Entries() {
			m.Content = append(m.Content, keyNode(e.Name), shown(e.Value))
		}
		return m
	case n.IsList():
		l := &yaml.Node{Kind: yaml.SequenceNode}
		for _, e := range n.List() {
			l.Content = append(l.Content, shown(e))
		}
		return l
	}
	text, _ := n.Text()
	return textNode(text)
}
