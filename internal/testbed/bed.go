package testbed

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// adminBound is what one request about topics or groups may take.
const adminBound = 20 * time.Second

// Bed is one test's corner of a broker.
type Bed struct {
	// Brokers are the addresses, host:port.
	Brokers []string

	t    testing.TB
	id   string
	fake *kfake.Cluster
	cl   *kgo.Client
}

// New gives a bed on the broker that the tests were asked to run on. opts are those of kfake and are ignored by a real
// broker: what a test relies on must hold on both.
func New(t testing.TB, opts ...kfake.Opt) *Bed {
	t.Helper()
	b := &Bed{t: t, id: strings.ToLower(rand.Text()[:8])}
	if Real() {
		b.Brokers = realBrokers(t)
	} else {
		c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
		require.NoError(t, err)
		t.Cleanup(c.Close)
		b.fake, b.Brokers = c, c.ListenAddrs()
	}
	var err error
	b.cl, err = kgo.NewClient(kgo.SeedBrokers(b.Brokers...), kgo.MetadataMinAge(20*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(b.end)
	return b
}

// NewFake gives a bed on kfake, with its cluster, for a test of something that only kfake does on demand: errors of the
// broker's own, old versions, several nodes. On a real broker the test is skipped with the reason.
func NewFake(t testing.TB, reason string, opts ...kfake.Opt) (*Bed, *kfake.Cluster) {
	t.Helper()
	needsFake(t, reason)
	b := New(t, opts...)
	return b, b.fake
}

// Fake gives the kfake behind the bed. On a real broker the test is skipped with the reason.
func (b *Bed) Fake(reason string) *kfake.Cluster {
	b.t.Helper()
	needsFake(b.t, reason)
	return b.fake
}

// Name makes a name that no other test and no other run has.
func (b *Bed) Name(s string) string { return s + "-" + b.id }

// Topic creates a topic and gives its name, Name(s). It returns when the topic can be written to. config may be nil.
func (b *Bed) Topic(s string, partitions int32, config map[string]*string) string {
	b.t.Helper()
	name := b.Name(s)
	b.CreateTopic(name, partitions, config)
	return name
}

// CreateTopic is Topic with the full name, for one that was deleted meanwhile: it waits until the old one is gone.
func (b *Bed) CreateTopic(name string, partitions int32, config map[string]*string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), adminBound)
	defer cancel()
	adm := kadm.NewClient(b.cl)
	var err error
	for ctx.Err() == nil {
		if _, err = adm.CreateTopic(ctx, partitions, 1, config, name); err == nil {
			break
		}
		pause(ctx)
	}
	require.NoError(b.t, err)
	for ctx.Err() == nil {
		var topics kadm.TopicDetails
		topics, err = adm.ListTopics(ctx, name)
		if d := topics[name]; err == nil && d.Err == nil && led(d.Partitions) == int(partitions) {
			return
		}
		pause(ctx)
	}
	b.t.Fatalf("topic %s was created and has no leaders: %v", name, err)
}

// DeleteTopic deletes a topic by its full name and returns when the metadata does not list it any more. A broker may take
// records of clients that know it for some moments longer.
func (b *Bed) DeleteTopic(name string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), adminBound)
	defer cancel()
	adm := kadm.NewClient(b.cl)
	_, err := adm.DeleteTopic(ctx, name)
	require.NoError(b.t, err)
	for ctx.Err() == nil {
		topics, err := adm.ListTopics(ctx, name)
		if d, ok := topics[name]; err == nil && (!ok || d.Err != nil) {
			return
		}
		pause(ctx)
	}
	b.t.Fatalf("topic %s was deleted and is still there", name)
}

func led(ps kadm.PartitionDetails) int {
	n := 0
	for _, p := range ps {
		if p.Err == nil && p.Leader >= 0 {
			n++
		}
	}
	return n
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond):
	}
}

// TopicID gives the id of a topic by its full name.
func (b *Bed) TopicID(name string) [16]byte {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), adminBound)
	defer cancel()
	topics, err := kadm.NewClient(b.cl).ListTopics(ctx, name)
	require.NoError(b.t, err)
	require.Contains(b.t, topics, name)
	return topics[name].ID
}

// Admin gives a client for requests about topics and groups.
func (b *Bed) Admin() *kadm.Client { return kadm.NewClient(b.cl) }

// end removes from a real broker what has the bed's suffix. It is housekeeping: what cannot be removed, as a group whose
// members have not left, does not fail the test.
func (b *Bed) end() {
	defer b.cl.Close()
	if b.fake != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminBound)
	defer cancel()
	adm := kadm.NewClient(b.cl)
	topics, err := adm.ListTopics(ctx)
	if err != nil {
		b.t.Logf("topics of the test are left: %v", err)
		return
	}
	var mine []string
	for _, name := range topics.Names() {
		if strings.Contains(name, b.id) {
			mine = append(mine, name)
		}
	}
	if len(mine) > 0 {
		if _, err := adm.DeleteTopics(ctx, mine...); err != nil {
			b.t.Logf("topics of the test are left: %v", err)
		}
	}
	groups, err := adm.ListGroups(ctx)
	if err != nil {
		return
	}
	for _, g := range groups.Groups() {
		if strings.Contains(g, b.id) {
			_, _ = adm.DeleteGroups(ctx, g)
		}
	}
}
