package kafkasrc

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/testbed"
)

// Whoever is alone in a group knows from the broker when that is over, and makes room.
func TestAloneUntilSomebodyComes(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "in"))
	require.NoError(t, err)
	defer c.Close()
	client := func() *kgo.Client {
		cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
		require.NoError(t, err)
		t.Cleanup(cl.Close)
		return cl
	}
	a, err := JoinAlone(t.Context(), client(), "g", 10*time.Second)
	require.NoError(t, err)
	require.NoError(t, a.Prove(t.Context()))
	member, generation, err := a.Fence()
	require.NoError(t, err)
	require.NotEmpty(t, member)
	require.Positive(t, generation)

	b, err := JoinAlone(t.Context(), client(), "g", 10*time.Second) // a makes room
	require.NoError(t, err)
	require.ErrorIs(t, a.Prove(t.Context()), ErrNotAlone)
	_, _, err = a.Fence()
	require.ErrorIs(t, err, ErrNotAlone)
	a.Leave(t.Context())
	require.NoError(t, b.Prove(t.Context()), "who is late with leaving disturbs nobody")
	b.Leave(t.Context())

	again, err := JoinAlone(t.Context(), client(), "g", 10*time.Second)
	require.NoError(t, err)
	_, later, err := again.Fence()
	require.NoError(t, err)
	require.Greater(t, later, generation)
	again.Leave(t.Context())
}

// Whoever leaves in a hurry does not wait for the farewell that was said when somebody came.
func TestLeaveDoesNotWaitForAnEarlierFarewell(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "in"))
	require.NoError(t, err)
	defer c.Close()
	tap, release := &testbed.Tap{}, make(chan struct{})
	defer close(release)
	left := tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.LeaveGroup}, Mute: release})
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), tap.Opt())
	require.NoError(t, err)
	defer cl.Close()
	other, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	require.NoError(t, err)
	defer other.Close()
	a, err := JoinAlone(t.Context(), cl, "g", 10*time.Second)
	require.NoError(t, err)
	b, err := JoinAlone(t.Context(), other, "g", 10*time.Second)
	require.NoError(t, err)
	require.EqualValues(t, 1, left.Hits())

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begun := time.Now()
	a.Leave(ctx)
	require.Less(t, time.Since(begun), time.Second)
	require.NoError(t, b.Prove(t.Context()))
	b.Leave(t.Context())
}
