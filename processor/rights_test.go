package processor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/millweir/millweir/internal/testbed"
)

// right is one that README.md names for the user of a service.
func right(what kmsg.ACLResourceType, name string, op kmsg.ACLOperation) kfake.ACL {
	return kfake.ACL{Resource: what, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true}
}

// rightsOf gives those of an instance without an end at its sources, and of who commands it.
func rightsOf(app string) []kfake.ACL {
	const topic, group = kmsg.ACLResourceTypeTopic, kmsg.ACLResourceTypeGroup
	ids := right(kmsg.ACLResourceTypeTransactionalId, app+"-", kmsg.ACLOperationWrite)
	ids.Pattern = kmsg.ACLResourcePatternTypePrefixed
	return []kfake.ACL{
		right(topic, inTopic(), kmsg.ACLOperationRead), right(group, app, kmsg.ACLOperationRead),
		right(kmsg.ACLResourceTypeCluster, "kafka-cluster", kmsg.ACLOperationDescribeConfigs),
		right(topic, outTopic(), kmsg.ACLOperationWrite), right(topic, app+"-checkpoints", kmsg.ACLOperationWrite),
		right(topic, app+"-control", kmsg.ACLOperationWrite), right(topic, app+"-control", kmsg.ACLOperationRead),
		right(topic, app+"-checkpoints", kmsg.ACLOperationCreate), right(topic, app+"-control", kmsg.ACLOperationCreate), ids,
	}
}

// restricted gives a bed whose service and commands are of a user with these rights alone; the bed's own client may do anything.
func restricted(t *testing.T, rights []kfake.ACL) (*bed, Config, *logBuffer) {
	t.Helper()
	auth := func(user string) kgo.Opt { return kgo.SASL(plain.Auth{User: user, Pass: "secret"}.AsMechanism()) }
	tb, _ := testbed.NewFake(t, "a cluster with access rights", kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.Superuser("PLAIN", "all", "secret"), kfake.User("PLAIN", "service", "secret", rights...))
	cl, err := kgo.NewClient(kgo.SeedBrokers(tb.Brokers...), kgo.DefaultProduceTopic(inTopic()), auth("all"))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	_, err = kadm.NewClient(cl).CreateTopics(t.Context(), 4, 1, nil, inTopic(), outTopic())
	require.NoError(t, err)
	b := &bed{t: t, addr: tb.Brokers[0], dir: t.TempDir(), cl: cl, groups: map[string]bool{}}
	cfg, _ := b.instance("a")
	var log logBuffer
	cfg.Backend, cfg.Logger, cfg.ClientOptions = Badger, log.logger(), []kgo.Opt{auth("service")}
	return b, cfg, &log
}

// What README.md names is enough for an instance, for who commands it, and with the right to delete for a reset.
func TestTheRightsThatAreNamedAreEnough(t *testing.T) {
	const app = "restricted"
	rights := rightsOf(app)
	for _, name := range []string{app + "-checkpoints", app + "-control"} {
		rights = append(rights, right(kmsg.ACLResourceTypeTopic, name, kmsg.ACLOperationDelete))
	}
	rights = append(rights, right(kmsg.ACLResourceTypeGroup, app, kmsg.ACLOperationDelete))
	b, cfg, _ := restricted(t, rights)
	stop := b.start(countPlan(t, app), cfg)
	b.produce(0, 500)
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
	out, err := SendAll(t.Context(), app, cfg, Send{Command: CheckpointCommand, Timeout: 10 * time.Second})
	require.NoError(t, err)
	require.NoError(t, out.Err())
	require.Len(t, out.Replies, 1)
	require.NoError(t, stop())

	r, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	require.Equal(t, []string{app}, r.Groups)
	require.Len(t, r.Notes, 1)
	require.Contains(t, r.Notes[0], "the group restricted.ends stays, if there is one, since it may not be read")
	require.NoError(t, r.Do(t.Context()))
	require.Len(t, r.Notes, 2)
	require.Contains(t, r.Notes[1], "the life of the application cannot be kept in group restricted:life")
	again, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	require.True(t, again.Empty(), "%+v", again)
}

// An instance that may write to the control topic and not read it works, and says that it hears no command; so does who commands.
func TestAControlTopicThatMayNotBeReadIsToldOf(t *testing.T) {
	const app = "deaf"
	var rights []kfake.ACL
	for _, r := range rightsOf(app) {
		if r.Name != app+"-control" || r.Operation != kmsg.ACLOperationRead {
			rights = append(rights, r)
		}
	}
	b, cfg, log := restricted(t, rights)
	stop := b.start(countPlan(t, app), cfg)
	b.produce(0, 100)
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
	const told = "it may not read the control topic"
	require.Eventually(t, func() bool { return log.count(told) > 0 }, 20*time.Second, 20*time.Millisecond)
	out, err := SendAll(t.Context(), app, cfg, Send{Command: CheckpointCommand, Timeout: 5 * time.Second})
	require.NoError(t, err)
	require.ErrorContains(t, out.Err(), "replies cannot be read here")
	require.NoError(t, stop())
	require.Equal(t, 1, log.count(told), "once in a while")
}
