package topology

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Describe gives the graph as text, stage by stage: every source and exchange with what hangs from it up to the next
// exchanges and the sinks, in the order of definition. What stands behind a merge of several stages is in each of them.
//
//	application order-totals
//	source orders: topic orders, key string, value json, start committed
//	└─ filter paid
//	   └─ to group-by country
//	group-by country: from orders, parallelism default, key string, value json
//	└─ aggregate totals: state totals/aggregate@json
//	   └─ sink totals: topic order-totals, key string, value json
func (p *Plan) Describe() string {
	var out strings.Builder
	fmt.Fprintf(&out, "application %s\n", p.Application)
	for i, n := range p.roots {
		fmt.Fprintf(&out, "%s %s: %s\n", n.kind, n.name, strings.Join(p.rootDetails(i), ", "))
		describeKids(&out, n, "", map[*node]bool{})
	}
	return out.String()
}

// rootDetails gives what there is to say about a stage beside kind and name.
func (p *Plan) rootDetails(i int) []string {
	s := p.Stages[i]
	if s.Kind == SourceStage {
		return p.roots[i].details()
	}
	parallelism := "default"
	if s.Parallelism > 0 {
		parallelism = strconv.Itoa(s.Parallelism)
	}
	return []string{"from " + strings.Join(s.From, " and "), "parallelism " + parallelism, "key " + s.KeyCodec, "value " + s.ValueCodec}
}

// describeKids writes what hangs from n; seen are the merges of the stage that were written before.
func describeKids(out *strings.Builder, n *node, indent string, seen map[*node]bool) {
	for i, kid := range n.kids {
		branch, below := "├─ ", "│  "
		if i == len(n.kids)-1 {
			branch, below = "└─ ", "   "
		}
		out.WriteString(indent + branch)
		switch {
		case kid.kind.isExchange():
			fmt.Fprintf(out, "to %s %s\n", kid.kind, kid.name)
			continue
		case seen[kid]:
			fmt.Fprintf(out, "%s %s (above)\n", kid.kind, kid.name)
			continue
		}
		fmt.Fprintf(out, "%s %s", kid.kind, kid.name)
		if d := kid.details(); len(d) > 0 {
			fmt.Fprintf(out, ": %s", strings.Join(d, ", "))
		}
		out.WriteByte('\n')
		if kid.kind == kindMerge {
			seen[kid] = true
		}
		describeKids(out, kid, indent+below, seen)
	}
}

// details gives what there is to say about a node beside its kind and name.
func (n *node) details() []string {
	var d []string
	switch n.kind {
	case kindSource:
		d = append(d, "topic "+n.reads(), "key "+n.keyCodec, "value "+n.valueCodec, "start "+n.start.String())
		if n.end.Bounded() {
			d = append(d, "end "+n.end.String())
		}
		if n.onMissing != MissingFail {
			d = append(d, "on missing "+n.onMissing.String())
		}
		if n.onDecode != Fail {
			d = append(d, "on decode error "+n.onDecode.String())
		}
		if n.onError != Fail {
			d = append(d, "on error "+n.onError.String())
		}
	case kindSink:
		d = append(d, "topic "+n.topic, "key "+asRead(n.keyCodec, n.writesReadKey()), "value "+asRead(n.valueCodec, n.writesReadValue()))
		if n.dropHeaders {
			d = append(d, "without headers")
		}
		if n.loop {
			d = append(d, "loop")
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

// writesReadKey says that the sink writes the key bytes of a source's records.
func (n *node) writesReadKey() bool {
	return n.passesKey() && n.fromSource(map[*node]bool{}, func(p *node) bool {
		return p.kind != kindGroupBy && (!p.kind.isExchange() || p.passesKey())
	})
}

// writesReadValue says that the sink writes the value bytes of a source's records.
func (n *node) writesReadValue() bool {
	return n.passesValue() && n.fromSource(map[*node]bool{}, func(p *node) bool {
		return p.kind == kindFilter || (p.kind == kindMerge || p.kind.isExchange()) && p.passesValue()
	})
}

// fromSource says that all nodes between the sources and n pass something on as it is.
func (n *node) fromSource(seen map[*node]bool, passes func(*node) bool) bool {
	for _, p := range n.parents {
		if p.kind == kindSource || seen[p] {
			continue
		}
		seen[p] = true
		if !passes(p) || !p.fromSource(seen, passes) {
			return false
		}
	}
	return true
}

// edge is one arrow of the drawn graph, between ids. exchange is the kind of the exchange that it leads into, and subtasks
// how many are asked for.
type edge struct {
	from, to string
	exchange kind
	subtasks int
}

// label gives what stands at an arrow into an exchange.
func (e edge) label() string {
	if e.subtasks > 0 {
		return fmt.Sprintf("× %d", e.subtasks)
	}
	return "× default"
}

// drawing is the graph as Mermaid and Dot show it: topics, sources, steps, exchanges and sinks, each once.
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
	// enter gives the id of a node, and true when it is new.
	enter := func(n *node) (string, bool) {
		id, known := ids[n]
		if !known {
			id = fmt.Sprintf("n%d", len(d.nodes))
			ids[n] = id
			d.nodes = append(d.nodes, n)
		}
		return id, !known
	}
	var walk func(id string, n *node)
	walk = func(id string, n *node) {
		switch n.kind {
		case kindSource:
			d.edges = append(d.edges, edge{from: topic(n.reads()), to: id})
		case kindSink:
			d.edges = append(d.edges, edge{from: id, to: topic(n.topic)})
		}
		for _, kid := range n.kids {
			to, first := enter(kid)
			e := edge{from: id, to: to}
			if kid.kind.isExchange() {
				e.exchange, e.subtasks = kid.kind, kid.parallelism
			}
			d.edges = append(d.edges, e)
			if first {
				walk(to, kid)
			}
		}
	}
	for _, n := range p.roots {
		if id, first := enter(n); first {
			walk(id, n)
		}
	}
	return d
}

// Mermaid gives the graph as a Mermaid flowchart. Stateful steps are drawn as stadiums, topics as cylinders, exchanges as
// hexagons with thick arrows into them, which name the parallelism; the arrows into a feedback are dotted.
func (p *Plan) Mermaid() string {
	d := p.draw()
	var out strings.Builder
	out.WriteString("flowchart LR\n")
	for i, t := range d.topics {
		fmt.Fprintf(&out, "  t%d[(\"%s\")]\n", i, strings.ReplaceAll(t, `"`, "#quot;")) // a pattern may have them
	}
	for i, n := range d.nodes {
		left, right := "[", "]"
		switch {
		case len(n.states) > 0:
			left, right = "([", "])"
		case n.kind.isExchange():
			left, right = "{{", "}}"
		}
		fmt.Fprintf(&out, "  n%d%s\"%s %s\"%s\n", i, left, n.kind, n.name, right)
	}
	for _, e := range d.edges {
		arrow := "-->"
		switch {
		case e.exchange == kindFeedback:
			arrow = `-.->|"` + e.label() + `"|`
		case e.exchange != "":
			arrow = `==>|"` + e.label() + `"|`
		}
		fmt.Fprintf(&out, "  %s %s %s\n", e.from, arrow, e.to)
	}
	return out.String()
}

// Dot gives the graph in Graphviz's language. Stateful steps have a double border, topics are cylinders, exchanges are
// hexagons with bold arrows into them, which name the parallelism; the arrows into a feedback are dashed.
func (p *Plan) Dot() string {
	d := p.draw()
	var out strings.Builder
	fmt.Fprintf(&out, "digraph %q {\n  rankdir=LR;\n  node [shape=box];\n", p.Application)
	for i, t := range d.topics {
		fmt.Fprintf(&out, "  t%d [label=%q, shape=cylinder];\n", i, t)
	}
	for i, n := range d.nodes {
		style := ""
		switch {
		case len(n.states) > 0:
			style = ", peripheries=2"
		case n.kind.isExchange():
			style = ", shape=hexagon"
		}
		fmt.Fprintf(&out, "  n%d [label=%q%s];\n", i, string(n.kind)+" "+n.name, style)
	}
	for _, e := range d.edges {
		style := ""
		switch {
		case e.exchange == kindFeedback:
			style = fmt.Sprintf(" [label=%q, style=dashed, constraint=false]", e.label())
		case e.exchange != "":
			style = fmt.Sprintf(" [label=%q, style=bold]", e.label())
		}
		fmt.Fprintf(&out, "  %s -> %s%s;\n", e.from, e.to, style)
	}
	out.WriteString("}\n")
	return out.String()
}
