package txn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// mostCuts is how often in a row, and cutsFor how long, one broker may end connections at a produce request before that is
// taken for a refusal.
const (
	mostCuts = 5
	cutsFor  = time.Second
)

// errCut is the cause when a broker seems to take no request as large as those that are sent.
var errCut = errors.New("the broker ends the connection at each produce request: its socket.request.max.bytes may be less than it was, and is read anew")

// cuts is a client's hook, and ends the client when there were too many of them. A broker answers nothing to a request that is larger than its socket.request.max.bytes, it ends
// the connection, and the client would send the same one again for ever. A broker that dies does that once, and takes no
// connection afterwards.
type cuts struct {
	over   context.Context // ends when there were too many
	end    context.CancelCauseFunc
	stop   func() bool   // takes watch back; nil before it
	closed chan struct{} // closed when watch has ended the client

	mu      sync.Mutex
	brokers map[int32]*cutsOf // under mu
}

// cutsOf counts those of one broker. Several requests may be under way over one connection: together they count once.
type cutsOf struct {
	inRow int
	since time.Time
	fresh bool // a connection was opened since the last one that counted
}

func newCuts() *cuts {
	c := &cuts{brokers: make(map[int32]*cutsOf), closed: make(chan struct{})}
	c.over, c.end = context.WithCancelCause(context.Background())
	return c
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (c *cuts) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.brokers[meta.NodeID] == nil {
		c.brokers[meta.NodeID] = new(cutsOf)
	}
	c.brokers[meta.NodeID].fresh = true
}

// OnBrokerE2E implements kgo.HookBrokerE2E.
func (c *cuts) OnBrokerE2E(meta kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	if key != int16(kmsg.Produce) {
		return
	}
	err := errors.Join(e2e.WriteErr, e2e.ReadErr)
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.brokers[meta.NodeID]
	var slow net.Error
	switch {
	case b == nil:
		return
	case err == nil:
		b.inRow = 0
		return
	case !b.fresh, errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrClientClosed), errors.As(err, &slow) && slow.Timeout():
		return
	}
	b.fresh = false
	if b.inRow++; b.inRow == 1 {
		b.since = time.Now()
	}
	if b.inRow >= mostCuts && time.Since(b.since) >= cutsFor {
		c.end(fmt.Errorf("broker %d, %d bytes written: %w: %w", meta.NodeID, e2e.BytesWritten, errCut, err))
	}
}

// watch ends the client when there are too many: its records fail, and whoever waits for them or for room is let out. That
// runs on a goroutine of its own, which close waits for.
func (c *cuts) watch(cl *kgo.Client) {
	c.stop = context.AfterFunc(c.over, func() {
		defer close(c.closed)
		cl.Close()
	})
}

// close ends the client in any case.
func (c *cuts) close(cl *kgo.Client) {
	if c.stop != nil && !c.stop() {
		<-c.closed
	}
	c.end(nil)
	cl.Close()
}

// err gives the reason once there were too many, else nil.
func (c *cuts) err() error {
	if err := context.Cause(c.over); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
