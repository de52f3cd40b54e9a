package processor

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/kafkasrc"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
	"github.com/millweir/millweir/txn"
)

// A control topic that somebody has made may have any number of partitions: commands and replies are in the one that is read.
func TestCommandsReachInstancesThroughATopicOfSeveralPartitions(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "commands-of-three"
	b.groups[app] = true
	_, err := kadm.NewClient(b.cl).CreateTopic(t.Context(), 3, 1, nil, ControlTopic(app))
	require.NoError(t, err)
	cfg, o := b.instance("a")
	stop := b.start(countPlan(t, app), cfg)
	o.says("/readyz", 200, "processing")
	for range 5 { // whose keys are of several partitions
		out, err := SendAll(t.Context(), app, cfg, Send{Command: CheckpointCommand, Timeout: 5 * time.Second})
		require.NoError(t, err)
		require.NoError(t, out.Err())
		require.Len(t, out.Replies, 1)
	}
	require.NoError(t, stop())
}

// The timeout of a command bounds all of it, whatever it waits for, and the code is that of one that may be given again.
func TestACommandKeepsToItsTimeout(t *testing.T) {
	const app, timeout = "kept", 2 * time.Second
	for _, c := range []struct {
		name  string
		fault kfake.Fault
	}{
		{"the group is not described", kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeGroups}, Err: kerr.CoordinatorLoadInProgress}},
		{"the topic is not made", kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: kerr.NotController}},
		{"the topic is not listed", kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: ControlTopic(app), Err: kerr.UnknownTopicOrPartition}},
		{"the end of the topic is not known", kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: ControlTopic(app), Err: kerr.NotLeaderForPartition}},
		{"the command is not taken", kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotLeaderForPartition}},
		{"nobody replies", kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeCluster}, Err: kerr.UnknownServerError}}, // which nobody asks for
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tb, fake := testbed.NewFake(t, "a broker that is not ready, on demand")
			b := bedOn(t, tb)
			g, err := kafkasrc.JoinGroup(t.Context(), kafkasrc.GroupConfig{Kafka: kafka.Config{Brokers: []string{b.addr}}, Group: app, InstanceID: "mute", Topics: []string{inTopic()}})
			require.NoError(t, err)
			defer g.Close()
			require.Eventually(t, func() bool { return g.Current().Member }, 20*time.Second, 10*time.Millisecond)
			c.fault.Count = -1
			fake.Fault(c.fault)
			begun := time.Now()
			out, err := SendAll(t.Context(), app, b.config().withDefaults(), Send{Command: SavepointCommand, Dir: t.TempDir(), Timeout: timeout})
			require.Less(t, time.Since(begun), timeout+time.Second)
			if err == nil {
				err = out.Err()
			}
			require.Equal(t, fault.NotRunning, fault.CodeOf(err), "%v", err)
		})
	}
}

// Where no broker answers at all, that is what the command says, however short its timeout is.
func TestAShortCommandWithoutABroker(t *testing.T) {
	testbed.Alongside(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for _, c := range []Command{CheckpointCommand, SavepointCommand, CancelCommand} {
		cfg := Config{Brokers: []string{l.Addr().String()}, Retention: DeleteOnCancellation}
		_, err := SendAll(t.Context(), "unreached", cfg, Send{Command: c, Timeout: time.Second})
		require.Equal(t, fault.Unreachable, fault.CodeOf(err), "%s: %v", c, err)
	}
}

// refusing gives a dialer to which an address is closed for a while.
func refusing(address string, until time.Time) kgo.Opt {
	return kgo.Dialer(func(ctx context.Context, network, to string) (net.Conn, error) {
		if to == address && time.Now().Before(until) {
			return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		}
		var d net.Dialer
		return d.DialContext(ctx, network, to)
	})
}

// The broker that coordinates the group has died, and no other one has its place yet: what is begun then waits for that.
func TestStartsAndCommandsWhileTheCoordinatorIsDown(t *testing.T) {
	testbed.Alongside(t)
	tb, fake := testbed.NewFake(t, "one of several brokers is down on demand", kfake.NumBrokers(3))
	b := bedOn(t, tb)
	const app, down = "coordinated", 600 * time.Millisecond
	b.groups[app] = true
	cfg, o := b.instance("a")
	cfg.Brokers = tb.Brokers
	without := func() Config {
		cfg := cfg
		cfg.ClientOptions = []kgo.Opt{refusing(tb.Brokers[fake.CoordinatorFor(app)], time.Now().Add(down))}
		return cfg
	}
	stop := b.start(countPlan(t, app), without())
	o.says("/readyz", 200, "processing")
	b.produce(0, 100)
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)

	out, err := SendAll(t.Context(), app, without(), Send{Command: SavepointCommand, Dir: filepath.Join(b.dir, "savepoints"), Timeout: 20 * time.Second})
	require.NoError(t, err)
	require.NoError(t, out.Err())
	require.Len(t, out.Replies, 1)
	_, err = PlanReset(t.Context(), app, without())
	require.Equal(t, fault.GroupActive, fault.CodeOf(err), "%v", err)
	leaveOpen(t, b, "of-somebody", app)
	long := cfg
	long.ClientOptions = []kgo.Opt{refusing(tb.Brokers[fake.CoordinatorFor(app)], time.Now().Add(2500*time.Millisecond))}
	_, err = HangingTransactions(t.Context(), countPlan(t, app), long, false)
	require.NoError(t, err)
	long.ClientOptions = []kgo.Opt{refusing(tb.Brokers[fake.CoordinatorFor(app)], time.Now().Add(time.Hour))}
	_, err = SendAll(t.Context(), app, long, Send{Command: CheckpointCommand, Timeout: time.Second})
	require.Equal(t, fault.NotRunning, fault.CodeOf(err), "other brokers answer: %v", err)
	require.NoError(t, stop())

	r, err := PlanReset(t.Context(), app, without())
	require.NoError(t, err)
	r.cfg = without()
	require.NoError(t, r.Do(t.Context()))
}

// Who was killed has left a transaction open. Nothing names its instance after a reset, so the reset ends it.
func TestAResetEndsWhatIsLeftOpen(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	app := "left" + inTopic()
	b.groups[app] = true
	cfg, _ := b.instance("b")
	repo, err := snapshot.OpenRepository(t.Context(), snapshot.Config{Dir: cfg.CheckpointsDir, Application: app, Instance: "a", NumRetained: 1})
	require.NoError(t, err)
	require.NoError(t, repo.Announce(t.Context()))
	require.NoError(t, repo.Close())
	leaveOpen(t, b, txn.TransactionalID(app, "a", 0), app)
	other := txn.TransactionalID(app, "of-another-application", 0) // which begins alike
	leaveOpen(t, b, other, app+"-x")

	r, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	require.NoError(t, r.Do(t.Context()))
	open, err := kadm.NewClient(b.cl).ListTransactions(t.Context(), nil, []string{"Ongoing"})
	require.NoError(t, err)
	require.NotContains(t, open, txn.TransactionalID(app, "a", 0))
	require.Contains(t, open, other)
	_, err = txn.Config{Kafka: kafka.Config{Brokers: cfg.Brokers}, Application: app, Timeout: time.Minute}.FenceGone(t.Context(), []string{"of-another-application"}, func(context.Context) ([]string, error) { return nil, nil })
	require.NoError(t, err)
	out := element.TopicPartition{Topic: outTopic()}
	require.Eventually(t, func() bool {
		stable, err := kafka.StableEndOffsets(t.Context(), b.cl, []element.TopicPartition{out})
		require.NoError(t, err)
		end, err := kafka.EndOffsets(t.Context(), b.cl, []element.TopicPartition{out})
		require.NoError(t, err)
		return stable[out].Offset == end[out].Offset
	}, 5*time.Second, 20*time.Millisecond, "readers wait")
}

// The reply of an instance with very many partitions is larger than a record of the control topic may be.
func TestAReplyWithManyPartitions(t *testing.T) {
	testbed.Alongside(t)
	tb, _ := testbed.NewFake(t, "a thousand partitions, which take long on a real one")
	b := bedOn(t, tb)
	const app, n = "wide", 1100
	b.groups[app] = true
	topic := strings.Repeat("w", 249)
	tb.CreateTopic(topic, n, nil)
	plan := topology.New(app)
	topology.ToTopic(topology.FromTopic(plan, "in", topic, serde.Bytes(), serde.Bytes()), "out", outTopic(), serde.Bytes(), serde.Bytes())
	p, err := plan.Plan()
	require.NoError(t, err)
	cfg, o := b.instance("a")
	stop := b.start(p, cfg)
	o.says("/readyz", 200, "processing")
	out, err := SendAll(t.Context(), app, cfg, Send{Command: SavepointCommand, Dir: t.TempDir(), Timeout: 10 * time.Second})
	require.NoError(t, err)
	require.NoError(t, out.Err())
	require.Len(t, out.Replies, 1)
	require.Len(t, out.Replies[0].Partitions, n)
	require.True(t, slices.IsSorted(out.Replies[0].Partitions))
	require.NotEmpty(t, out.Replies[0].Digest)
	require.NoError(t, stop())
}

// An error is cut to what a record has room for, and a piece of a reply that comes twice counts once.
func TestAReplyIsBounded(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "bounded"
	p := countPlan(t, app)
	require.NoError(t, ensureControlTopic(t.Context(), b.cl, app))
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.addr), controlPartition)
	require.NoError(t, err)
	defer cl.Close()
	rep := Reply{Part: admin.Part{Instance: "a"}, Error: strings.Repeat("<é", maxControlRecord), Code: fault.Failed}
	for i := range 3000 {
		rep.Partitions = append(rep.Partitions, fmt.Sprintf("%s/%04d", strings.Repeat("w", 249), i))
	}
	c := &control{s: &service{plan: p, log: slog.New(slog.DiscardHandler)}, cl: cl, work: t.Context()}
	c.reply("r", rep)
	s := &sender{cl: cl, request: "r", members: []groupMember{{instance: "a"}}, got: map[string]Reply{}, partitions: map[string][]string{}, gone: map[string]time.Time{}}
	s.take(Reply{Part: admin.Part{Instance: "a", Partitions: slices.Clone(rep.Partitions[:500])}}, true)
	cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{ControlTopic(app): {0: kgo.NewOffset().At(0)}})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s.collect(ctx)
	require.Equal(t, rep.Partitions, s.got["a"].Partitions)
	require.Equal(t, fault.Failed, s.got["a"].Code)
	require.True(t, strings.HasPrefix(rep.Error, s.got["a"].Error))
	require.Greater(t, len(s.got["a"].Error), maxControlText-4)
}
