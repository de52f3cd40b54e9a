//go:build synctests

package synctests

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Network is the in-memory network between the hosts of clients and the brokers.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	ports     int
}

func newNetwork() *Network { return &Network{listeners: map[string]*listener{}, ports: 9092} }

// Listen is kfake's listen function.
func (n *Network) Listen(_, address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &listener{n: n, addr: addr(net.JoinHostPort(host, strconv.Itoa(n.ports))), conns: make(chan net.Conn), closed: make(chan struct{})}
	n.ports++
	n.listeners[string(l.addr)] = l
	return l, nil
}

type listener struct {
	n      *Network
	addr   addr
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return l.addr }

// Host is where the clients of one process are. Its connections can be slow, broken, cut off for a while or for good,
// and frozen.
type Host struct {
	n    *Network
	name string

	mu  sync.Mutex
	rng *rand.Rand
	// base is the latency of one message, give or take. Zero is for the world's own clients only: a client that asks again
	// and again without a pause would stop the bubble's clock.
	base  time.Duration
	conns []*conn // the clients' ends
	down  bool    // no connection is possible
	dead  bool    // for good
	died  time.Time
	thaw  chan struct{} // closed at the thaw; nil when not frozen
	rules []*Rule
	dials int
}

// Rule does something to the next requests of a kind that a host sends.
type Rule struct {
	Key   kmsg.Key
	Count int // how many
	// Delay holds the request up on its way to the broker, and all that follows on the connection.
	Delay time.Duration
	// Cut breaks the connection: before the request is on its way, or after it. A request that is on its way arrives
	// after Delay, although its sender knows already that the connection is broken.
	Cut Cut
	// Skip lets that many pass first.
	Skip int
	// Then is called at the request, before it is on its way with CutBefore, behind it otherwise. nil = nothing.
	Then func()
}

// Cut says when a connection is broken.
type Cut int

// The ways to break a connection at a request.
const (
	NoCut Cut = iota
	CutBefore
	CutAfter
)

// String names the way.
func (c Cut) String() string { return [...]string{"slow", "cut-before", "cut-after"}[c] }

// Host adds a host.
func (n *Network) Host(name string, latency time.Duration, seed uint64) *Host {
	return &Host{n: n, name: name, base: latency, rng: rand.New(rand.NewPCG(seed, 0x6e6574))}
}

// latency of the next message.
func (h *Host) latency() time.Duration {
	if h.base == 0 { // the world's own clients
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.base/2 + time.Duration(h.rng.Int64N(int64(h.base)))
}

// frozen gives nil, or a channel that is closed at the thaw.
func (h *Host) frozen() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.thaw == nil {
		return nil
	}
	return h.thaw
}

var (
	errRefused     = syscall.ECONNREFUSED
	errUnreachable = syscall.EHOSTUNREACH
)

// Dial is kgo's dial function.
func (h *Host) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	for thaw := h.frozen(); thaw != nil; thaw = h.frozen() {
		select {
		case <-thaw:
		case <-ctx.Done():
			return nil, opErr("dial", ctx.Err())
		}
	}
	h.n.mu.Lock()
	l := h.n.listeners[address]
	h.n.mu.Unlock()
	if l == nil {
		return nil, opErr("dial", errRefused)
	}
	client, server, err := h.connect(l)
	if err != nil {
		return nil, opErr("dial", err)
	}
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		err = errRefused
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = client.Close()
	return nil, opErr("dial", err)
}

func (h *Host) connect(l *listener) (client, server *conn, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down || h.dead {
		return nil, nil, errUnreachable
	}
	h.dials++
	there, back := newWire(h), newWire(h)
	own := addr(fmt.Sprintf("%s:%d", h.name, 40000+h.dials))
	client = &conn{in: back, out: there, local: own, remote: l.addr, host: h}
	server = &conn{in: there, out: back, local: l.addr, remote: own, host: h, broker: true}
	h.conns = append(h.conns, client)
	return client, server, nil
}

func (h *Host) forget(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = slices.DeleteFunc(h.conns, func(o *conn) bool { return o == c })
}

// send puts a request on its way, or what the rules make of it. kgo writes a request in one piece.
func (h *Host) send(c *conn, b []byte) error {
	delay, cut, then := h.latency(), NoCut, func() {}
	if len(b) >= 8 {
		if r := h.rule(kmsg.Key(int16(binary.BigEndian.Uint16(b[4:])))); r != nil {
			delay, cut = delay+r.Delay, r.Cut
			if r.Then != nil {
				then = r.Then
			}
		}
	}
	if cut == CutBefore {
		then()
		c.reset(true)
		return errReset
	}
	err := c.out.send(b, delay)
	then()
	if cut == CutAfter && err == nil {
		c.out.finish(io.EOF, false)
		c.in.finish(errReset, true)
	}
	if errors.Is(err, io.EOF) {
		err = net.ErrClosed
	}
	return err
}

func (h *Host) rule(key kmsg.Key) *Rule {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, r := range h.rules {
		if r.Key == key {
			if r.Skip > 0 {
				r.Skip--
				continue
			}
			if r.Count--; r.Count <= 0 {
				h.rules = slices.Delete(h.rules, i, i+1)
			}
			return r
		}
	}
	return nil
}

// AddRule makes a rule hold.
func (h *Host) AddRule(r Rule) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rules = append(h.rules, &r)
}

// Down cuts the host off, or connects it again. Connections break; with lose, what is on its way is lost too.
func (h *Host) Down(down, lose bool) {
	h.mu.Lock()
	h.down = down
	conns := slices.Clone(h.conns)
	if down {
		h.conns = nil
	}
	h.mu.Unlock()
	if down {
		for _, c := range conns {
			c.reset(lose)
		}
	}
}

// Kill cuts the host off for good.
func (h *Host) Kill(lose bool) {
	h.mu.Lock()
	if !h.dead {
		h.dead, h.died = true, time.Now()
	}
	h.mu.Unlock()
	h.Down(true, lose)
	h.Freeze(false)
}

// Freeze stops every message on its way, or lets them go on. Connections stay.
func (h *Host) Freeze(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case on && h.thaw == nil && !h.dead:
		h.thaw = make(chan struct{})
	case !on && h.thaw != nil:
		close(h.thaw)
		h.thaw = nil
	}
}

// Heal ends what is not for good.
func (h *Host) Heal() {
	h.Freeze(false)
	h.Down(false, false)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rules = nil
}
