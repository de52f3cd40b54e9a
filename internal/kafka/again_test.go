package kafka

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// closedPort gives an address at which nobody listens.
func closedPort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

func refused(t *testing.T) error {
	_, err := net.Dial("tcp", closedPort(t))
	require.Error(t, err)
	return err
}

func TestADialThatFailsMayPass(t *testing.T) {
	slow := &net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded}
	unnamed := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "kafka-2", IsNotFound: true}}
	for _, err := range []error{refused(t), slow, unnamed} {
		require.True(t, IsRetriable(err), "%v", err)
		require.Equal(t, fault.Unreachable, fault.CodeOf(Classify(err, "ask")))
	}
	require.False(t, IsRetriable(context.DeadlineExceeded))
}

// The broker that coordinates the group has died. A client that knows it asks for another one, and for no longer than it takes.
func TestOffsetsAreReadAfterTheCoordinatorHasDied(t *testing.T) {
	b, c := fakeBed(t, 3, "a broker dies on demand", kfake.NumBrokers(3))
	group, cl := b.Name("g"), client(t, b.cfg)
	ask := func() error {
		_, err := StableOffsets(within(t, 8*time.Second), cl, group, []element.TopicPartition{b.tp(0), b.tp(1), b.tp(2)})
		return err
	}
	require.NoError(t, ask())
	require.NoError(t, c.RemoveNode(c.CoordinatorFor(group)))
	require.NoError(t, ask())
}

// The same for the leader of a partition.
func TestPositionsAreReadAfterALeaderHasDied(t *testing.T) {
	b, c := fakeBed(t, 3, "a broker dies on demand", kfake.NumBrokers(3))
	cl := client(t, b.cfg)
	ask := func() error {
		_, err := EndOffsets(within(t, 8*time.Second), cl, []element.TopicPartition{b.tp(0), b.tp(1), b.tp(2)})
		return err
	}
	require.NoError(t, ask())
	require.NoError(t, c.RemoveNode(c.LeaderFor(b.in, 0)))
	require.NoError(t, ask())
}

// As long as any broker answers, the limit is that of errors that may pass; where none does, that for reaching one.
func TestOnlyWhereNoBrokerAnswersItIsCalledSo(t *testing.T) {
	t.Parallel()
	l := limits{total: time.Second, reach: 400 * time.Millisecond, hear: 200 * time.Millisecond}
	b := newBed(t, 1)
	dead := refused(t)
	fails := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	mute := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		brokers []string
		do      func(context.Context) error
		least   time.Duration
		nobody  bool
	}{
		"nobody is there":       {[]string{closedPort(t), closedPort(t)}, fails(dead), l.reach, true},
		"nobody says anything":  {[]string{closedPort(t)}, mute, l.reach, true},
		"one has died":          {b.cfg.Brokers, fails(dead), l.total, false},
		"one of two hangs":      {[]string{hung(t), b.cfg.Brokers[0]}, mute, l.total, false},
		"one says nothing":      {b.cfg.Brokers, mute, l.total, false},
		"one is not ready":      {[]string{closedPort(t)}, fails(kerr.CoordinatorLoadInProgress), l.total, false},
		"one refuses for good":  {b.cfg.Brokers, fails(kerr.GroupAuthorizationFailed), 0, false},
		"the client was closed": {b.cfg.Brokers, fails(kgo.ErrClientClosed), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun := time.Now()
			err := l.again(within(t, 10*time.Second), client(t, Config{Brokers: c.brokers}), c.do)
			require.Error(t, err)
			require.NoError(t, t.Context().Err())
			took := time.Since(begun)
			require.GreaterOrEqual(t, took, c.least)
			require.Less(t, took, c.least+3*time.Second)
			if c.nobody {
				require.ErrorIs(t, err, ErrNoBroker)
				require.Equal(t, fault.Unreachable, fault.CodeOf(err))
			} else {
				require.NotErrorIs(t, err, ErrNoBroker)
			}
		})
	}
}

// hung gives the address of one that takes connections and never answers.
func hung(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String() // the kernel takes them
}

// What takes longer than a broker is waited for is not cut off again and again, as long as brokers answer.
func TestASlowAnswerIsWaitedForLonger(t *testing.T) {
	t.Parallel()
	l := limits{total: 5 * time.Second, reach: 400 * time.Millisecond, hear: 200 * time.Millisecond}
	tries := 0
	require.NoError(t, l.again(within(t, 10*time.Second), client(t, newBed(t, 1).cfg), func(ctx context.Context) error {
		tries++
		return sleep(ctx, 500*time.Millisecond)
	}))
	require.Equal(t, 3, tries, "200, 400 and 800 ms")
}
