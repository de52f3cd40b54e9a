package topology

import "slices"

const kindMerge kind = "merge"

// Merge makes one stream of several, which may come from different sources and exchanges. Records of each keep their
// order; between them there is none.
//
// Steps behind a merge belong to every stage that reaches it, and run in the tasks of all of them. Keyed state behind a
// merge of several stages needs a GroupBy between, which brings the records of one key together.
func Merge[K, V any](name string, first Stream[K, V], more ...Stream[K, V]) Stream[K, V] {
	if first.b == nil {
		return Stream[K, V]{}
	}
	n := &node{kind: kindMerge, name: name}
	n.compile = newMergeOp[K, V]
	first.b.attach(n, first.n)
	n.keyCodec, n.valueCodec = first.n.keyCodec, first.n.valueCodec
	for _, s := range more {
		switch {
		case s.b == nil:
			first.b.problem(n.kind, n.name, "one of its streams belongs to no topology")
			continue
		case s.b != first.b:
			first.b.problem(n.kind, n.name, "stream %q belongs to another topology", s.n.name)
			continue
		case slices.Contains(n.parents, s.n):
			first.b.problem(n.kind, n.name, "stream %q is merged with itself", s.n.name)
			continue
		}
		n.merge(s.n)
	}
	return Stream[K, V]{b: first.b, n: n}
}

// merge adds a parent. Bytes carried along beside the records are of use where all parents have them in one codec.
func (n *node) merge(parent *node) {
	n.parents = append(n.parents, parent)
	parent.kids = append(parent.kids, n)
	if parent.keyCodec != n.keyCodec {
		n.keyCodec = ""
	}
	if parent.valueCodec != n.valueCodec {
		n.valueCodec = ""
	}
}

// mergeOp stands in front of what is behind a merge, for all its parents in a task. Where streams part and merge again and
// again, the ways to an operator are too many for each of them to release and close it.
type mergeOp[K, V any] struct {
	port[K, V]
	task   *Task
	round  uint64 // of the task's releases, the last one that was here
	closed bool
}

func newMergeOp[K, V any](c *compiler, _ *node, down []any) (any, error) {
	return &mergeOp[K, V]{port: joinPorts[K, V](down), task: c.task}, nil
}

func (m *mergeOp[K, V]) release() {
	if m.round != m.task.round {
		m.round = m.task.round
		m.port.release()
	}
}

func (m *mergeOp[K, V]) close() error {
	if m.closed {
		return nil
	}
	m.closed = true
	return m.port.close()
}
