//go:build unix

package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
)

// walkTopology is the service file of a walk.
type walkTopology struct {
	app         string
	exchange    bool // totals behind an exchange, else in the tasks of the source
	sources     []walkSource
	step        string // with the state
	wider       bool   // the aggregate has one function more
	mode        string // "", at-least-once, disabled
	instance    string
	checkpoints string // directory
	deletes     bool   // a cancel deletes the state
}

type walkSource struct{ name, topic string }

func (t walkTopology) topics() (out []string) {
	for _, s := range t.sources {
		out = append(out, s.topic)
	}
	return out
}

func (t walkTopology) clone() walkTopology {
	t.sources = slices.Clone(t.sources)
	return t
}

func (t walkTopology) text(s *site) string {
	var b strings.Builder
	fmt.Fprintf(&b, "application: %s\nkafka: {brokers: %q}\ndata-dir: %s\n", t.app, strings.Join(s.brokers, ","), s.dir)
	interval, mode, retention := s.every.String(), "", ""
	switch t.mode {
	case "at-least-once":
		mode = ", mode: at-least-once"
	case "disabled":
		interval = "disabled"
	}
	if t.deletes {
		retention = ", retention: delete-on-cancellation"
	}
	fmt.Fprintf(&b, "checkpointing: {interval: %s, timeout: 5s%s%s}\n", interval, mode, retention)
	fmt.Fprintf(&b, "transaction: {timeout: %s}\ngroup: {session-timeout: %s}\nadmin: {listen: \"off\"}\n", transactionTimeout, s.session)
	fmt.Fprintf(&b, "state: {checkpoints: {dir: %s}, savepoints: {dir: %s/../savepoints}, backend: {fs: {memory-threshold: 100b}}}\n", t.checkpoints, s.dir)
	if t.instance != "" {
		fmt.Fprintf(&b, "instance: {id: %s}\n", t.instance)
	}
	b.WriteString("sources:\n")
	var names []string
	for _, src := range t.sources {
		fmt.Fprintf(&b, "  %s: {topic: %s, key: string, value: json}\n", src.name, src.topic)
		names = append(names, src.name)
	}
	b.WriteString("steps:\n")
	from, by := names[0], ""
	if len(names) > 1 {
		fmt.Fprintf(&b, "  all: {merge: [%s]}\n", strings.Join(names, ", "))
		from = "all"
	}
	if t.exchange {
		by = "group-by: key, exchange: local, parallelism: 2, "
	}
	wider := ""
	if t.wider {
		wider = ", largest: max(value.amount)"
	}
	fmt.Fprintf(&b, "  %s: {from: %s, %saggregate: {orders: count(), spent: sum(value.amount)%s}}\n", t.step, from, by, wider)
	fmt.Fprintf(&b, "sinks:\n  out: {from: %s, topic: %s, key: string, value: json}\n", t.step, s.out)
	return b.String()
}

// write makes the file that of the topology.
func (w *operatorWalk) write() {
	w.app = w.now.app
	require.NoError(w.t, os.WriteFile(w.file, []byte(w.now.text(w.site)), 0o644))
}

// change changes the file; undone it is as it was.
func (w *operatorWalk) change(what string, f func(t *walkTopology)) {
	old := w.now
	w.now = old.clone()
	f(&w.now)
	w.say("  %s", what)
	w.counts["file changed"]++
	w.undo = append(w.undo, undoing{"topology", func() { w.now = old }})
	w.write()
}
