package testbed

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// errCut is what a client sees of a connection that a Tap broke: it does not send the request again by itself.
var errCut = errors.New("connection cut by the test")

// errClosed is what a client sees of a connection that the other side has closed.
var errClosed = io.EOF

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
	// Closed breaks it as the other side does when it closes it: the client may send the request again by itself.
	Closed bool
	// Mute holds back the answer, and all later ones of the connection, until the channel is closed; nil holds nothing.
	Mute <-chan struct{}
	// Answer gives an error that is answered in the broker's place, which never sees the request; nil lets it pass. It can
	// be answered to the requests that refusal knows. The first rule that gives one wins.
	Answer func(kmsg.Request) *kerr.Error
	// After is called with the broker's own answer, and may take its time: until it returns the client has none. It runs on
	// another goroutine than Before. The answer must not be kept.
	After func(kmsg.Request, kmsg.Response)
	// Rewrite is asked when the broker has answered with success, and gives an error in place of it: the broker has done what
	// it was asked for, and the client is told that it has not. nil leaves the answer alone. It runs where
	// After does. The first rule that gives an error wins.
	Rewrite func(kmsg.Request) *kerr.Error
	// Partitions narrows down which results Rewrite replaces, in answers that have one per partition, and so which answers it
	// is asked about; none means all.
	Partitions []int32

	hits, told atomic.Int64
	off        atomic.Bool
}

// Hits is how many requests the rule has met.
func (r *Rule) Hits() int { return int(r.hits.Load()) }

// Told is how many errors of Answer and Rewrite the rule has put into the connections.
func (r *Rule) Told() int { return int(r.told.Load()) }

// Times gives an error for the first n requests and nil for those after it: an Answer or a Rewrite.
func Times(n int, err *kerr.Error) func(kmsg.Request) *kerr.Error {
	left := atomic.Int64{}
	left.Store(int64(n))
	return func(kmsg.Request) *kerr.Error {
		if left.Add(-1) < 0 {
			return nil
		}
		return err
	}
}

// Always gives an error for every request.
func Always(err *kerr.Error) func(kmsg.Request) *kerr.Error {
	return func(kmsg.Request) *kerr.Error { return err }
}

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
		return &tapped{Conn: conn, tap: t, more: make(chan struct{}, 1), closed: make(chan struct{})}, nil
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
