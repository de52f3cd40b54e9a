package testbed

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// maxFrame is the most that an answer may say it is long.
const maxFrame = 256 << 20

// tapped is a connection under a Tap. A broker answers a connection's requests in their order, so what is known of each
// waits in a queue until its answer is due. kgo reads only while an answer is.
type tapped struct {
	net.Conn
	tap    *Tap
	broken atomic.Pointer[error]
	mute   atomic.Pointer[<-chan struct{}]

	mu   sync.Mutex
	due  []answer      // of the requests that were written, in order
	more chan struct{} // has room for one: due has grown

	rest []byte // of the answer that is being read; only Read uses it

	once   sync.Once
	closed chan struct{} // closed with the connection, or by a deadline in the past, which is how kgo wakes a reader
}

// answer is what becomes of the answer to one request.
type answer struct {
	frame []byte // in the broker's place, nil = the broker's own
	req   kmsg.Request
	rules []*Rule // that want to see the broker's own, or have a say in it
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
			c.broken.Store(&errCut)
		}
		if r.Closed {
			c.broken.Store(&errClosed)
		}
		if r.Mute != nil {
			c.mute.Store(&r.Mute)
		}
	}
	a := decide(rules, req, b)
	if silent(req, b) {
		return c.Conn.Write(b)
	}
	c.mu.Lock()
	c.due = append(c.due, a)
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
	if a.frame != nil {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// decide asks the rules for errors.
func decide(rules []*Rule, req kmsg.Request, b []byte) answer {
	for _, r := range rules {
		if r.Answer != nil {
			if e := r.Answer(req); e != nil {
				if resp := refusal(req, e.Code); resp != nil {
					r.told.Add(1)
					return answer{frame: frameOf(resp, binary.BigEndian.Uint32(b[8:]))}
				}
			}
		}
	}
	a := answer{req: req}
	for _, r := range rules {
		if r.After != nil || r.Rewrite != nil {
			a.rules = append(a.rules, r)
		}
	}
	return a
}

// silent says that a broker gives no answer to the request: a produce without acknowledgement.
func silent(req kmsg.Request, b []byte) bool {
	if len(b) < 8 || kmsg.Key(int16(binary.BigEndian.Uint16(b[4:]))) != kmsg.Produce {
		return false
	}
	if req == nil {
		req = parse(b)
	}
	p, ok := req.(*kmsg.ProduceRequest)
	return ok && p.Acks == 0
}

// frameOf writes an answer as a broker does: length, correlation id, in the newer form an empty list of tags, body.
func frameOf(resp kmsg.Response, correlation uint32) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 4), correlation)
	if headed(resp) {
		b = append(b, 0)
	}
	b = resp.AppendTo(b)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// headed says that the header of an answer has tags. That of ApiVersions never has, since a client may not know its version.
func headed(resp kmsg.Response) bool {
	return resp.IsFlexible() && kmsg.Key(resp.Key()) != kmsg.ApiVersions
}

func (c *tapped) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		frame, err := c.next()
		if broken := c.broken.Load(); broken != nil {
			return 0, *broken
		}
		if m := c.mute.Load(); m != nil {
			select {
			case <-*m:
			case <-c.closed:
				return 0, net.ErrClosed
			}
		}
		if err != nil {
			return 0, err
		}
		c.rest = frame
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// next gives the answer that is due, when it is there.
func (c *tapped) next() ([]byte, error) {
	a, err := c.first()
	if err != nil || a.frame != nil {
		return a.frame, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c.Conn, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n < 4 || n > maxFrame {
		return nil, fmt.Errorf("an answer of %d bytes", n)
	}
	frame := append(make([]byte, 0, 4+n), size[:]...)
	frame = frame[:4+n]
	if _, err := io.ReadFull(c.Conn, frame[4:]); err != nil {
		return nil, err
	}
	if len(a.rules) > 0 {
		return a.judge(frame)
	}
	return frame, nil
}

func (c *tapped) first() (answer, error) {
	for {
		c.mu.Lock()
		if len(c.due) > 0 {
			a := c.due[0]
			c.due = c.due[1:]
			c.mu.Unlock()
			return a, nil
		}
		c.mu.Unlock()
		select {
		case <-c.more:
		case <-c.closed:
			return answer{}, net.ErrClosed
		}
	}
}

// judge shows an answer of the broker to the rules, and puts an error into it, unless it has one.
func (a answer) judge(frame []byte) ([]byte, error) {
	resp := a.req.ResponseKind()
	resp.SetVersion(a.req.GetVersion())
	body := frame[8:]
	if headed(resp) {
		if len(body) == 0 || body[0] != 0 {
			return nil, fmt.Errorf("the header of an answer to %s has tags", kmsg.NameForKey(resp.Key()))
		}
		body = body[1:]
	}
	if err := resp.ReadFrom(body); err != nil {
		return nil, err
	}
	for _, r := range a.rules {
		if r.After != nil {
			r.After(a.req, resp)
		}
	}
	if ErrorOf(resp) != nil {
		return frame, nil
	}
	for _, r := range a.rules {
		if r.Rewrite == nil || !touches(resp, r.Partitions) {
			continue
		}
		if e := r.Rewrite(a.req); e != nil {
			spoil(resp, e.Code, r.Partitions)
			r.told.Add(1)
			return frameOf(resp, binary.BigEndian.Uint32(frame[4:])), nil
		}
	}
	return frame, nil
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
