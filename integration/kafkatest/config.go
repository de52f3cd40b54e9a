//go:build unix

package kafkatest

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const clusterFile = "cluster.id"

// layOut writes the properties of all nodes into dir, or finds those of an earlier start.
func layOut(dir string, o Options, java jre) ([]*node, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	cluster, err := clusterID(dir)
	if err != nil {
		return nil, err
	}
	nodes := make([]*node, o.Nodes)
	for i := range nodes {
		nodes[i] = &node{id: i + 1, dir: dir, cluster: cluster, heap: o.Heap, java: java}
	}
	if found, err := readAddrs(nodes); found || err != nil {
		return nodes, err
	}
	ports, err := choosePorts(o.Port, o.Nodes)
	if err != nil {
		return nil, err
	}
	var quorum []string
	for i := range nodes {
		quorum = append(quorum, fmt.Sprintf("%d@127.0.0.1:%d", i+1, ports[i].controller))
	}
	for i, n := range nodes {
		n.addr = "127.0.0.1:" + strconv.Itoa(ports[i].client)
		props := properties(n, ports[i], strings.Join(quorum, ","), o.Nodes)
		for k, v := range o.Properties {
			props[k] = v
		}
		if err := writeProperties(n.propertiesPath(), props); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

type ports struct{ client, controller int }

// choosePorts asks the kernel for free ports, or counts up from the given one with the controllers 100 above.
func choosePorts(first, nodes int) ([]ports, error) {
	out := make([]ports, nodes)
	if first > 0 {
		for i := range out {
			out[i] = ports{first + i, first + 100 + i}
		}
		return out, nil
	}
	var held []net.Listener // all are held until all are chosen, else the kernel may give one twice
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	next := func() (int, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, err
		}
		held = append(held, l)
		return l.Addr().(*net.TCPAddr).Port, nil
	}
	for i := range out {
		var err error
		if out[i].client, err = next(); err != nil {
			return nil, err
		}
		if out[i].controller, err = next(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// properties are those of a small test cluster: internal topics with few partitions, no waiting before the first
// rebalance, failures noticed in seconds, nothing deleted by age.
func properties(n *node, p ports, quorum string, nodes int) map[string]string {
	replicas, isr := strconv.Itoa(min(nodes, 3)), "1"
	if nodes >= 3 {
		isr = "2"
	}
	client := "PLAINTEXT://" + n.addr
	return map[string]string{
		"process.roles":                                    "broker,controller",
		"node.id":                                          strconv.Itoa(n.id),
		"listeners":                                        fmt.Sprintf("%s,CONTROLLER://127.0.0.1:%d", client, p.controller),
		"advertised.listeners":                             client,
		"inter.broker.listener.name":                       "PLAINTEXT",
		"controller.listener.names":                        "CONTROLLER",
		"listener.security.protocol.map":                   "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"controller.quorum.voters":                         quorum,
		"log.dirs":                                         n.dataPath(),
		"num.partitions":                                   "1",
		"default.replication.factor":                       replicas,
		"min.insync.replicas":                              isr,
		"offsets.topic.replication.factor":                 replicas,
		"offsets.topic.num.partitions":                     "8",
		"transaction.state.log.replication.factor":         replicas,
		"transaction.state.log.min.isr":                    isr,
		"transaction.state.log.num.partitions":             "8",
		"share.coordinator.state.topic.replication.factor": replicas,
		"share.coordinator.state.topic.min.isr":            isr,
		"group.initial.rebalance.delay.ms":                 "0",
		"auto.create.topics.enable":                        "false",
		"log.retention.hours":                              "-1",
		"broker.session.timeout.ms":                        "6000",
		"broker.heartbeat.interval.ms":                     "1000",
	}
}

func writeProperties(path string, props map[string]string) error {
	keys := make([]string, 0, len(props))
	for k := range props {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "%s=%s\n", k, props[k])
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// readAddrs fills the nodes' addresses from properties that exist; found is false when none does.
func readAddrs(nodes []*node) (found bool, err error) {
	for i, n := range nodes {
		b, err := os.ReadFile(n.propertiesPath())
		if os.IsNotExist(err) && i == 0 {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "advertised.listeners=PLAINTEXT://"); ok {
				n.addr = v
			}
		}
		if n.addr == "" {
			return false, fmt.Errorf("%s names no listener", n.propertiesPath())
		}
	}
	return true, nil
}

// clusterID reads the id of a cluster's folder or draws one: 16 bytes in the URL alphabet, as Kafka wants it. One that
// begins with a dash would be taken for an option by the format tool.
func clusterID(dir string) (string, error) {
	path := filepath.Join(dir, clusterFile)
	if b, err := os.ReadFile(path); err == nil {
		return strings.TrimSpace(string(b)), nil
	} else if !os.IsNotExist(err) {
		return "", err
	}
	var raw [16]byte
	for {
		_, _ = rand.Read(raw[:]) // never fails
		if id := base64.RawURLEncoding.EncodeToString(raw[:]); id[0] != '-' {
			return id, os.WriteFile(path, []byte(id+"\n"), 0o644)
		}
	}
}
