package testbed

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// errCut is what a client sees of a connection that a Tap broke.
var errCut = errors.New("connection cut by the test")

// Tap watches the requests of the clients that were made with its Opt. Its rules apply on the client's side of the
// connection, so they work with any broker. The zero value has no rules.
type Tap struct {
	mu    sync.Mutex
	rules []*Rule
}

// Rule is one thing that a Tap does with requests.
type Rule struct {
	// Keys are the requests that the rule is about; none means all.
	Keys []kmsg.Key
	// When narrows it down further; nil takes all. The request must not be kept.
	When func(kmsg.Request) bool
	// Before is called before the request is written, and may take its time; an error breaks the connection instead.
	Before func(kmsg.Request) error
	// Cut breaks the connection right after the request went out: the broker does the work, the answer is lost.
	Cut bool
	// Mute holds back the answer, and all later ones of the connection, until the channel is closed; nil holds nothing.
	Mute <-chan struct{}

	hits atomic.Int64
	off  atomic.Bool
}

// Hits is how many requests the rule has met.
func (r *Rule) Hits() int { return int(r.hits.Load()) }

// Remove ends the rule.
func (r *Rule) Remove() { r.off.Store(true) }

// Add makes a rule hold from now on.
func (t *Tap) Add(r *Rule) *Rule {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rules = append(t.rules, r)
	return r
}

// Watch adds a rule that only counts.
func (t *Tap) Watch(when func(kmsg.Request) bool, keys ...kmsg.Key) *Rule {
	return t.Add(&Rule{Keys: keys, When: when})
}

// Opt puts the Tap into a client's connections.
func (t *Tap) Opt() kgo.Opt {
	return kgo.Dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &tapped{Conn: conn, tap: t, closed: make(chan struct{})}, nil
	})
}

// of gives the rules that a request meets, and counts it.
func (t *Tap) of(b []byte) ([]*Rule, kmsg.Request) {
	t.mu.Lock()
	rules := slices.Clone(t.rules)
	t.mu.Unlock()
	var met []*Rule
	var req kmsg.Request
	for _, r := range rules {
		if r.off.Load() || len(b) < 8 {
			continue
		}
		key := kmsg.Key(int16(binary.BigEndian.Uint16(b[4:])))
		if len(r.Keys) > 0 && !slices.Contains(r.Keys, key) {
			continue
		}
		if req == nil {
			req = parse(b)
		}
		if req == nil || (r.When != nil && !r.When(req)) {
			continue
		}
		r.hits.Add(1)
		met = append(met, r)
	}
	return met, req
}

// parse reads a request as kgo writes it: in one piece, with four bytes of length, key, version, correlation id, client
// id and, in the newer form, an empty list of tags.
func parse(b []byte) kmsg.Request {
	if len(b) < 14 {
		return nil
	}
	req := kmsg.RequestForKey(int16(binary.BigEndian.Uint16(b[4:])))
	if req == nil {
		return nil
	}
	req.SetVersion(int16(binary.BigEndian.Uint16(b[6:])))
	body := b[14:]
	if n := int16(binary.BigEndian.Uint16(b[12:])); n > 0 {
		if int(n) > len(body) {
			return nil
		}
		body = body[n:]
	}
	if req.IsFlexible() {
		if len(body) == 0 || body[0] != 0 {
			return nil
		}
		body = body[1:]
	}
	if err := req.ReadFrom(slices.Clone(body)); err != nil {
		return nil
	}
	return req
}

// tapped is a connection under a Tap.
type tapped struct {
	net.Conn
	tap    *Tap
	broken atomic.Bool
	mute   atomic.Pointer[<-chan struct{}]

	once   sync.Once
	closed chan struct{} // closed with the connection, or by a deadline in the past, which is how kgo wakes a reader
}

func (c *tapped) Write(b []byte) (int, error) {
	rules, req := c.tap.of(b)
	for _, r := range rules {
		if r.Before == nil {
			continue
		}
		if err := r.Before(req); err != nil {
			_ = c.Close()
			return 0, err
		}
	}
	for _, r := range rules {
		if r.Cut {
			c.broken.Store(true)
		}
		if r.Mute != nil {
			c.mute.Store(&r.Mute)
		}
	}
	return c.Conn.Write(b)
}

func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.broken.Load() {
		return 0, errCut
	}
	if m := c.mute.Load(); m != nil {
		select {
		case <-*m:
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	return n, err
}

func (c *tapped) SetDeadline(t time.Time) error {
	c.wake(t)
	return c.Conn.SetDeadline(t)
}

func (c *tapped) SetReadDeadline(t time.Time) error {
	c.wake(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *tapped) wake(deadline time.Time) {
	if !deadline.IsZero() && !deadline.After(time.Now()) {
		c.end()
	}
}

func (c *tapped) Close() error {
	c.end()
	return c.Conn.Close()
}

func (c *tapped) end() { c.once.Do(func() { close(c.closed) }) }
