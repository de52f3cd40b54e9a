package kafkasrc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/fault"
)

// foreigner consumes the topic in a group by the newer protocol, until the test ends it.
func (b *bed) foreigner(t *testing.T, group string) *kgo.Client {
	t.Helper()
	cl := client(t, b.cfg, kgo.ClientID("foreigner"), kgo.ConsumerGroup(group), kgo.ConsumeTopics(b.in), kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()), kgo.DisableAutoCommit())
	go func() {
		for ctx := t.Context(); ctx.Err() == nil && !cl.PollFetches(ctx).IsClientClosed(); {
		}
	}()
	return cl
}

// Brokers let the members of an application into a group in which somebody uses the newer protocol, and share the partitions out
// between the two. The other way round they keep it out.
func TestAConsumerOfTheNewerProtocolIsNoMember(t *testing.T) {
	t.Parallel()
	b := newBed(t, 2)
	cl := client(t, b.cfg)
	group := b.Name("g")
	require.NoError(t, Foreign(t.Context(), cl, group))
	other := b.foreigner(t, group)
	foreign := func() bool { return fault.CodeOf(Foreign(t.Context(), cl, group)) == fault.BadFile }
	require.Eventually(t, foreign, 20*time.Second, 50*time.Millisecond)
	require.ErrorContains(t, Foreign(t.Context(), cl, group), "group "+group+" is used by consumers of another kind, of the protocol group.protocol=consumer: foreigner (")
	g := b.join(t, "behind-the-look")
	require.Eventually(t, func() bool { return fault.CodeOf(g.Err()) == fault.BadFile }, 20*time.Second, 50*time.Millisecond)
	require.NoError(t, g.Leave(t.Context()))

	other.Close()
	require.Eventually(t, func() bool { return !foreign() }, 20*time.Second, 50*time.Millisecond)
	group += "-of-its-own"
	g = b.join(t, "one", func(gc *GroupConfig) { gc.Group = group })
	owns(t, 2, g)
	b.foreigner(t, group)
	time.Sleep(500 * time.Millisecond)
	require.NoError(t, Foreign(t.Context(), cl, group))
	require.NoError(t, g.Err())
	require.Len(t, g.Current().Partitions, 2)
}
