package admin

import (
	"fmt"
	"net"
	"net/http"
	"sync"
)

// limited bounds how many connections are open at once. When there are as many, the one that has gone longest without a request
// makes room for the next: who opens connections and asks nothing keeps nobody out, a liveness probe least of all. Only when
// all are being answered the next one waits.
func limited(l net.Listener, n int) *limitedListener {
	return &limitedListener{Listener: l, slots: make(chan struct{}, n), closed: make(chan struct{}), silent: map[*limitedConn]uint64{}}
}

type limitedListener struct {
	net.Listener
	slots  chan struct{}
	closed chan struct{}

	mu      sync.Mutex
	silent  map[*limitedConn]uint64 // those without a request, and when they began to be, in the order of states
	states  uint64
	wanting bool // a connection waits for a slot
}

// Accept waits for a free slot, too.
func (l *limitedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	select {
	case l.slots <- struct{}{}:
		return &limitedConn{Conn: c, of: l}, nil
	default:
	}
	l.makeRoom()
	defer l.enough()
	select {
	case l.slots <- struct{}{}:
		return &limitedConn{Conn: c, of: l}, nil
	case <-l.closed:
		_ = c.Close()
		return nil, fmt.Errorf("accept: %w", net.ErrClosed)
	}
}

// makeRoom ends the connection that has been silent longest, or else lets the next one that falls silent be ended.
func (l *limitedListener) makeRoom() {
	l.mu.Lock()
	var longest *limitedConn
	for c, since := range l.silent {
		if longest == nil || since < l.silent[longest] {
			longest = c
		}
	}
	l.wanting = longest == nil
	l.mu.Unlock()
	if longest != nil {
		_ = longest.Close()
	}
}

func (l *limitedListener) enough() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanting = false
}

// state is http.Server's ConnState.
func (l *limitedListener) state(conn net.Conn, to http.ConnState) {
	c, ok := conn.(*limitedConn)
	if !ok {
		return
	}
	l.mu.Lock()
	delete(l.silent, c)
	falls := to == http.StateNew || to == http.StateIdle
	end := falls && l.wanting
	if falls && !end {
		l.states++
		l.silent[c] = l.states
	}
	if end {
		l.wanting = false
	}
	l.mu.Unlock()
	if end {
		_ = c.Close()
	}
}

// Close ends Accept, too. http.Server calls it once.
func (l *limitedListener) Close() error {
	close(l.closed)
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	of   *limitedListener
	once sync.Once
}

// Close frees the slot.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.of.mu.Lock()
		delete(c.of.silent, c)
		c.of.mu.Unlock()
		<-c.of.slots
	})
	return err
}
