//go:build unix

package integration

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/config"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/processor"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// inside is a service that runs in the test's own process, so that the test can get between its parts.
type inside struct {
	s      *site
	log    output
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of Run, after done

	mu        sync.Mutex
	triggered map[element.CheckpointID]bool // that did not complete
	failures  []error                       // what ended attempts
	restored  int                           // tasks whose state was read from files
	reused    int                           // tasks whose state was rolled back in memory
}

// inside runs a service file in this process. change may be nil.
func (s *site) inside(file string, change func(*processor.Config)) *inside {
	s.t.Helper()
	svc, problems := config.Load(file, nil, nil)
	require.NoError(s.t, problems.Err())
	return s.insideJob(svc.Plan, svc.Processor(), change)
}

// insideJob runs a plan in this process. change may be nil.
func (s *site) insideJob(plan *topology.Plan, cfg processor.Config, change func(*processor.Config)) *inside {
	s.t.Helper()
	in := &inside{s: s, done: make(chan struct{}), triggered: map[element.CheckpointID]bool{}}
	cfg.Logger = slog.New(slog.NewTextHandler(&in.log, nil))
	cfg.Listener = engine.Listener{
		CheckpointTriggered: func(id element.CheckpointID) { in.note(func() { in.triggered[id] = true }) },
		CheckpointCompleted: func(c checkpoint.CheckpointStats) { in.note(func() { delete(in.triggered, c.ID) }) },
		AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) {
			if err != nil {
				in.note(func() { in.failures = append(in.failures, err) })
			}
		},
		Restored: func(element.TaskID, snapshot.RootRef, snapshot.Stats, time.Duration) {
			in.note(func() { in.restored++ })
		},
		Reused: func(element.TaskID, snapshot.RootRef) { in.note(func() { in.reused++ }) },
	}
	if change != nil {
		change(&cfg)
	}
	var ctx context.Context
	ctx, in.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(in.done)
		in.err = processor.Run(ctx, plan, cfg)
	}()
	s.t.Cleanup(func() {
		in.cancel()
		select {
		case <-in.done:
		case <-time.After(30 * time.Second):
			s.t.Error("the service does not end")
		}
		if s.t.Failed() {
			s.t.Logf("end of the log:\n%s", in.log.tail(25))
		}
	})
	return in
}

func (in *inside) note(f func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	f()
}

// failed gives what ended attempts so far.
func (in *inside) failed() []error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return append([]error{}, in.failures...)
}

// lost is how many checkpoints were triggered and did not complete.
func (in *inside) lost() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.triggered)
}

// until waits for a condition while the service runs.
func (in *inside) until(within time.Duration, cond func() bool, what string) {
	in.s.t.Helper()
	for end := time.Now().Add(within); !cond(); time.Sleep(10 * time.Millisecond) {
		select {
		case <-in.done:
			require.Fail(in.s.t, "the service has ended", "%v", in.err)
		default:
		}
		require.True(in.s.t, time.Now().Before(end), "within %v not: %s", within, what)
	}
}

// caughtUp waits until everything in the input is committed.
func (in *inside) caughtUp() {
	in.s.t.Helper()
	in.until(30*time.Second, func() bool { return in.s.lag() == 0 && len(in.s.committed()) == int(in.s.parts) }, "the group's lag is 0")
}

// stop wants a graceful end.
func (in *inside) stop() {
	in.s.t.Helper()
	in.cancel()
	select {
	case <-in.done:
	case <-time.After(30 * time.Second):
		require.Fail(in.s.t, "the service does not end")
	}
	require.NoError(in.s.t, in.err)
}

// tell writes n records of a few keys to the input.
func (s *site) tell(n int) {
	s.t.Helper()
	recs := make([]*kgo.Record, n)
	for i := range recs {
		recs[i] = &kgo.Record{Key: []byte{'a' + byte(i%7)}, Value: []byte("x")}
	}
	s.put(recs...)
}

// countedOnce wants COUNT's outputs to be 1, 2, … of each key for n inputs.
func (s *site) countedOnce(n int) {
	s.t.Helper()
	inputs, sum := s.inputs(), 0
	for _, k := range inputs {
		sum += k
	}
	require.Equal(s.t, n, sum)
	s.nothingOpen(nil, time.Now().Add(5*time.Second))
	s.countsAreExact(inputs)
}

// brief has the broker believe in a shorter transaction timeout than the service does: the number in the requests that
// initialise an id is replaced on their way. No setting allows it, but a clock that runs fast, or a stall that nobody
// watches, comes to the same.
func brief(timeout time.Duration) kgo.Opt {
	return kgo.Dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &briefConn{Conn: conn, timeout: timeout}, nil
	})
}

type briefConn struct {
	net.Conn
	timeout time.Duration
}

// Write finds the number behind the request's header (size, key, version, correlation, client id, tags) and the id, which
// is a length of one byte, since it is short, and its text.
func (c *briefConn) Write(b []byte) (int, error) {
	if kmsg.Key(binary.BigEndian.Uint16(b[4:])) == kmsg.InitProducerID {
		b = append([]byte{}, b...)
		at := 14 + int(binary.BigEndian.Uint16(b[12:])) + 1
		at += int(b[at])
		binary.BigEndian.PutUint32(b[at:], uint32(c.timeout.Milliseconds()))
	}
	return c.Conn.Write(b)
}
