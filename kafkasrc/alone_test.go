package kafkasrc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
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
