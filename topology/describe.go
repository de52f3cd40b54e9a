package topology

import (
	"fmt"
	"slices"
	"strings"
)

// Describe gives the graph as text: every source with what hangs from it, in the order of definition.
//
//	application order-totals
//	source orders: topic orders, key string, value json, start committed
//	└─ filter paid
//	   └─ aggregate totals: state totals/aggregate@json
//	      └─ sink totals: topic order-totals, key string (as read), value json
func (p *Plan) Describe() string {
	var out strings.Builder
	fmt.Fprintf(&out, "application %s\n", p.Application)
	for _, n := range p.sources {
		fmt.Fprintf(&out, "%s %s: %s\n", n.kind, n.name, strings.Join(n.details(), ", "))
		describeKids(&out, n, "")
	}
	return out.String()
}

func describeKids(out *strings.Builder, n *node, indent string) {
	for i, kid := range n.kids {
		branch, below := "├─ ", "│  "
		if i == len(n.kids)-1 {
			branch, below = "└─ ", "   "
		}
		fmt.Fprintf(out, "%s%s%s %s", indent, branch, kid.kind, kid.name)
		if d := kid.details(); len(d) > 0 {
			fmt.Fprintf(out, ": %s", strings.Join(d, ", "))
		}
		out.WriteByte('\n')
		describeKids(out, kid, indent+below)
	}
}

// details gives what there is to say about a node beside its kind and name.
func (n *node) details() []string {
	var d []string
	switch n.kind {
	case kindSource:
		d = append(d, "topic "+n.topic, "key "+n.keyCodec, "value "+n.valueCodec, "start "+n.start.String())
		if n.onDecode != Fail {
			d = append(d, "on decode error "+n.onDecode.String())
		}
		if n.onError != Fail {
			d = append(d, "on error "+n.onError.String())
		}
	case kindSink:
		d = append(d, "topic "+n.topic, "key "+asRead(n.keyCodec, n.passesKey()), "value "+asRead(n.valueCodec, n.valuePassesUnchanged()))
		if n.dropHeaders {
			d = append(d, "without headers")
		}
	}
	for _, s := range n.states {
		d = append(d, "state "+StatePlan{Step: n.name, Name: s.name, Codec: s.codec}.String())
	}
	return d
}

func asRead(codec string, passes bool) string {
	if passes {
		return codec + " (as read)"
	}
	return codec
}

// valuePassesUnchanged says that the sink writes the value bytes of the source.
func (n *node) valuePassesUnchanged() bool {
	for p := n.parent; ; p = p.parent {
		if p.kind == kindSource {
			return n.passesValue()
		}
		if p.kind != kindFilter {
			return false
		}
	}
}

// edge is one arrow of the drawn graph, between ids.
type edge struct{ from, to string }

// drawing is the graph as Mermaid and Dot show it: topics, sources, steps and sinks.
type drawing struct {
	topics []string // in the order of first use
	nodes  []*node
	edges  []edge
}

func (p *Plan) draw() drawing {
	var d drawing
	ids := map[*node]string{}
	topic := func(name string) string {
		i := slices.Index(d.topics, name)
		if i < 0 {
			i = len(d.topics)
			d.topics = append(d.topics, name)
		}
		return fmt.Sprintf("t%d", i)
	}
	var walk func(n *node)
	walk = func(n *node) {
		ids[n] = fmt.Sprintf("n%d", len(d.nodes))
		d.nodes = append(d.nodes, n)
		switch n.kind {
		case kindSource:
			d.edges = append(d.edges, edge{topic(n.topic), ids[n]})
		case kindSink:
			d.edges = append(d.edges, edge{ids[n.parent], ids[n]}, edge{ids[n], topic(n.topic)})
		default:
			d.edges = append(d.edges, edge{ids[n.parent], ids[n]})
		}
		for _, kid := range n.kids {
			walk(kid)
		}
	}
	for _, n := range p.sources {
		walk(n)
	}
	return d
}

// Mermaid gives the graph as a Mermaid flowchart. Stateful steps are drawn as stadiums, topics as cylinders.
func (p *Plan) Mermaid() string {
	d := p.draw()
	var out strings.Builder
	out.WriteString("flowchart LR\n")
	for i, t := range d.topics {
		fmt.Fprintf(&out, "  t%d[(\"%s\")]\n", i, t)
	}
	for i, n := range d.nodes {
		left, right := "[", "]"
		if len(n.states) > 0 {
			left, right = "([", "])"
		}
		fmt.Fprintf(&out, "  n%d%s\"%s %s\"%s\n", i, left, n.kind, n.name, right)
	}
	for _, e := range d.edges {
		fmt.Fprintf(&out, "  %s --> %s\n", e.from, e.to)
	}
	return out.String()
}

// Dot gives the graph in Graphviz's language. Stateful steps have a double border, topics are cylinders.
func (p *Plan) Dot() string {
	d := p.draw()
	var out strings.Builder
	fmt.Fprintf(&out, "digraph %q {\n  rankdir=LR;\n  node [shape=box];\n", p.Application)
	for i, t := range d.topics {
		fmt.Fprintf(&out, "  t%d [label=%q, shape=cylinder];\n", i, t)
	}
	for i, n := range d.nodes {
		border := ""
		if len(n.states) > 0 {
			border = ", peripheries=2"
		}
		fmt.Fprintf(&out, "  n%d [label=%q%s];\n", i, string(n.kind)+" "+n.name, border)
	}
	for _, e := range d.edges {
		fmt.Fprintf(&out, "  %s -> %s;\n", e.from, e.to)
	}
	out.WriteString("}\n")
	return out.String()
}
