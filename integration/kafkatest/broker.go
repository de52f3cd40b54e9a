//go:build unix

package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	// DefaultVersion is the Kafka that is started unless KAFKA_VERSION or Options say otherwise.
	DefaultVersion = "4.4.0"

	defaultHeap  = "512m"
	startTimeout = 90 * time.Second // after the jars are there
	stopTimeout  = 30 * time.Second
	maxNodes     = 9
	portTries    = 3
)

// TB is what Start needs of testing.TB.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Failed() bool
}

// Options say what to start; the zero value is one node of the default version.
type Options struct {
	// Nodes is the number of brokers, each also a controller; 0 means 1.
	Nodes int
	// Version of Kafka; empty means KAFKA_VERSION or DefaultVersion.
	Version string
	// Properties go into every node's server.properties and win over the defaults.
	Properties map[string]string
	// Heap of each node, as java's -Xmx takes it; empty means 512m.
	Heap string
	// Port of the first node, the next ones follow; 0 picks free ones.
	Port int
	// Dir keeps the cluster; one that exists is started again on its data. Empty means a new temporary one.
	Dir string
	// Log gets progress lines; may be nil.
	Log func(format string, args ...any)
}

// Broker is a cluster that runs, of one or more nodes, which are numbered from 1.
type Broker struct {
	// Addr has the addresses of all nodes, host:port, separated by commas.
	Addr string
	// Dir has the data and logs; empty when External.
	Dir string
	// External says that KAFKA_BROKERS named the cluster: Stop and Kill are errors.
	External bool

	nodes   []*node
	ownsDir bool
	java    jre
	log     func(format string, args ...any)
}

// ErrExternal is what Stop, Kill and Restart give for a cluster that this process did not start.
var ErrExternal = errors.New("the cluster was not started here (KAFKA_BROKERS is set)")

// Start starts a cluster for a test and ends it with the test. It fails the test when the cluster does not come up.
func Start(tb TB, o Options) *Broker {
	tb.Helper()
	if o.Log == nil {
		o.Log = tb.Logf
	}
	b, err := Run(context.Background(), o)
	if err != nil {
		tb.Fatalf("kafkatest: %v", err)
		return nil
	}
	tb.Cleanup(func() {
		keep := false
		if tb.Failed() && !b.External {
			for _, n := range b.nodes {
				tb.Logf("end of the log of Kafka node %d:\n%s", n.id, tail(n.logPath(), 40))
			}
			keep = os.Getenv("KAFKATEST_KEEP") != ""
		}
		b.close(keep)
	})
	return b
}

// Run starts a cluster and returns when every node answers; Close ends it. ctx bounds the start only.
func Run(ctx context.Context, o Options) (*Broker, error) {
	if addr := os.Getenv("KAFKA_BROKERS"); addr != "" {
		return &Broker{Addr: addr, External: true}, nil
	}
	if o.Nodes == 0 {
		o.Nodes = 1
	}
	if o.Nodes < 0 || o.Nodes > maxNodes {
		return nil, fmt.Errorf("%d nodes: between 1 and %d are possible", o.Nodes, maxNodes)
	}
	if o.Version == "" {
		o.Version = cmpOr(os.Getenv("KAFKA_VERSION"), DefaultVersion)
	}
	o.Heap = cmpOr(o.Heap, defaultHeap)
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	java, err := findRuntime(ctx, o.Version, o.Log)
	if err != nil {
		return nil, err
	}
	b := &Broker{Dir: o.Dir, java: java, log: o.Log}
	if b.Dir == "" {
		if b.Dir, err = os.MkdirTemp("", "kafkatest-"); err != nil {
			return nil, err
		}
		b.ownsDir = true
	}
	started := time.Now()
	for try := 1; ; try++ {
		err = b.start(ctx, o)
		if err == nil {
			o.Log("Kafka %s, %d nodes, at %s after %v (%s)", o.Version, o.Nodes, b.Addr, time.Since(started).Round(time.Millisecond), b.Dir)
			return b, nil
		}
		b.kill(b.nodes)
		taken := strings.Contains(err.Error(), "Address already in use") || strings.Contains(err.Error(), "BindException")
		if !taken || !b.ownsDir || try == portTries {
			b.close(false)
			return nil, err
		}
		// Between picking a port and binding it another process was faster.
		if err := b.wipe(); err != nil {
			return nil, err
		}
	}
}

func (b *Broker) start(ctx context.Context, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	nodes, err := layOut(b.Dir, o, b.java)
	if err != nil {
		return err
	}
	b.nodes = nodes
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.addr)
	}
	b.Addr = strings.Join(addrs, ",")
	return b.up(ctx, nodes)
}

// up formats and launches nodes and waits for them.
func (b *Broker) up(ctx context.Context, nodes []*node) error {
	for _, n := range nodes {
		if err := n.format(ctx); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if err := n.launch(); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if err := n.await(ctx); err != nil {
			return err
		}
	}
	return awaitMembers(ctx, b.Addr, b.running())
}

// Stop asks nodes to end (SIGTERM), all at once, and waits for them; no number means all. Those that have not ended after
// 30 s, as the last ones of a cluster without a quorum may, are killed, which is an error.
func (b *Broker) Stop(nodes ...int) error {
	if err := b.each(nodes, func(n *node) error { n.term(); return nil }); err != nil {
		return err
	}
	end := time.Now().Add(stopTimeout)
	return b.each(nodes, func(n *node) error { return n.stop(time.Until(end)) })
}

// Kill ends nodes at once (SIGKILL) and waits for them; no number means all.
func (b *Broker) Kill(nodes ...int) error {
	return b.each(nodes, func(n *node) error { n.kill(); return nil })
}

// Restart launches nodes that are down again, on their data, and waits until they answer; no number means all. Markers of
// transactions that the brokers lost thereby are written.
func (b *Broker) Restart(ctx context.Context, nodes ...int) error {
	if err := b.RestartUnmended(ctx, nodes...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return b.mendMarkers(ctx)
}

// RestartUnmended is Restart without the markers.
func (b *Broker) RestartUnmended(ctx context.Context, nodes ...int) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var down []*node
	err := b.each(nodes, func(n *node) error {
		if !n.alive() {
			down = append(down, n)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return b.up(ctx, down)
}

// Pids gives the process ids of the nodes that run, by number.
func (b *Broker) Pids() map[int]int {
	pids := make(map[int]int)
	for _, n := range b.nodes {
		if n.alive() {
			pids[n.id] = n.pid()
		}
	}
	return pids
}

// Close kills what runs and removes the Dir if the package made it.
func (b *Broker) Close() { b.close(false) }

func (b *Broker) close(keep bool) {
	b.kill(b.nodes)
	if b.ownsDir && !keep {
		_ = os.RemoveAll(b.Dir) // a leftover in the temporary folder is all that could go wrong
	}
}

func (b *Broker) wipe() error {
	if err := os.RemoveAll(b.Dir); err != nil {
		return err
	}
	return os.MkdirAll(b.Dir, 0o755)
}

func (b *Broker) kill(nodes []*node) {
	for _, n := range nodes {
		n.kill()
	}
}

func (b *Broker) running() int { return len(b.Pids()) }

func (b *Broker) each(ids []int, do func(*node) error) error {
	if b.External {
		return ErrExternal
	}
	if len(ids) == 0 {
		for _, n := range b.nodes {
			ids = append(ids, n.id)
		}
	}
	var errs []error
	for _, id := range ids {
		if id < 1 || id > len(b.nodes) {
			return fmt.Errorf("there is no node %d, only 1 to %d", id, len(b.nodes))
		}
		errs = append(errs, do(b.nodes[id-1]))
	}
	return errors.Join(errs...)
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
