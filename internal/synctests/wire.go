//go:build synctests

package synctests

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// wire is one direction of a connection: bytes that are on their way, each piece with the moment of its arrival. A
// reader waits on channels and timers only, so a bubble sees it as durably blocked. A writer never waits.
type wire struct {
	host *Host // whose freezing holds this direction up

	mu       sync.Mutex
	pieces   []piece
	last     time.Time // arrival of the last piece: the order is kept
	end      error     // what the reader gets behind the last piece; nil while the writer is there
	deadline time.Time // of the reader
	changed  chan struct{}
}

type piece struct {
	b  []byte
	at time.Time
}

func newWire(h *Host) *wire { return &wire{host: h, changed: make(chan struct{})} }

// notify wakes the reader. Called with mu held.
func (w *wire) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// send puts bytes on their way.
func (w *wire) send(b []byte, delay time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end != nil {
		return w.end
	}
	at := time.Now().Add(delay)
	if at.Before(w.last) {
		at = w.last
	}
	w.last = at
	w.pieces = append(w.pieces, piece{append([]byte(nil), b...), at})
	w.notify()
	return nil
}

// finish lets what is on its way arrive, and then the error. lose takes away what is on its way.
func (w *wire) finish(err error, lose bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if lose {
		w.pieces = nil
	}
	if w.end == nil {
		w.end = err
	}
	w.notify()
}

func (w *wire) setDeadline(t time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline = t
	w.notify()
}

// read takes what has arrived.
func (w *wire) read(b []byte) (int, error) {
	for {
		n, wait, err := w.take(b)
		if wait.until == nil {
			return n, err
		}
		wait.wait()
	}
}

// pause is what a reader waits for: a change of the wire, the host's thaw, or a moment.
type pause struct {
	until <-chan struct{} // nil: no need to wait
	thaw  <-chan struct{}
	at    time.Time // zero: none
}

func (p pause) wait() {
	var timer <-chan time.Time
	if !p.at.IsZero() {
		t := time.NewTimer(time.Until(p.at))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-p.until:
	case <-p.thaw:
	case <-timer:
	}
}

func (w *wire) take(b []byte) (int, pause, error) {
	thaw := w.host.frozen()
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if !w.deadline.IsZero() && !w.deadline.After(now) {
		return 0, pause{}, os.ErrDeadlineExceeded
	}
	wait := pause{until: w.changed, thaw: thaw, at: w.deadline}
	sooner := func(t time.Time) {
		if wait.at.IsZero() || t.Before(wait.at) {
			wait.at = t
		}
	}
	switch {
	case len(w.pieces) == 0 && w.end != nil:
		return 0, pause{}, w.end
	case thaw != nil || len(w.pieces) == 0:
	case w.pieces[0].at.After(now):
		sooner(w.pieces[0].at)
	default:
		n := copy(b, w.pieces[0].b)
		if w.pieces[0].b = w.pieces[0].b[n:]; len(w.pieces[0].b) == 0 {
			w.pieces = w.pieces[1:]
		}
		return n, pause{}, nil
	}
	return 0, wait, nil
}

// conn is one end of a connection.
type conn struct {
	in, out       *wire
	local, remote addr

	host   *Host // of the client
	broker bool  // the broker's end
}

type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

var errReset = os.NewSyscallError("read", syscall.ECONNRESET)

func opErr(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Err: err}
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.in.read(b)
	return n, opErr("read", err)
}

func (c *conn) Write(b []byte) (int, error) {
	if c.broker {
		return len(b), opErr("write", c.out.send(b, c.host.latency()))
	}
	if err := c.host.send(c, b); err != nil {
		return 0, opErr("write", err)
	}
	return len(b), nil
}

// Close ends this end: what it has sent still arrives, what is on its way to it does not.
func (c *conn) Close() error {
	c.out.finish(io.EOF, false)
	c.in.finish(net.ErrClosed, true)
	if !c.broker {
		c.host.forget(c)
	}
	return nil
}

// reset breaks both directions. With lose, nothing that is on its way arrives any more; without, the broker still gets
// what the client has sent.
func (c *conn) reset(lose bool) {
	c.in.finish(errReset, true)
	c.out.finish(errReset, lose)
}

func (c *conn) LocalAddr() net.Addr                { return c.local }
func (c *conn) RemoteAddr() net.Addr               { return c.remote }
func (c *conn) SetReadDeadline(t time.Time) error  { c.in.setDeadline(t); return nil }
func (c *conn) SetWriteDeadline(t time.Time) error { return nil }
func (c *conn) SetDeadline(t time.Time) error      { c.in.setDeadline(t); return nil }
