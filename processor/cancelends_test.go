package processor

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/kafkasrc"
)

// slowly has a broker take its time for some requests, while it answers others.
func slowly(fake *kfake.Cluster, key kmsg.Key, by func(kmsg.Request) time.Duration) {
	fake.ControlKey(key.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's signature
		fake.KeepControl()
		if d := by(req); d > 0 {
			fake.SleepControl(func() { time.Sleep(d) })
		}
		return nil, nil, false
	})
}

// An empty group takes seconds to let one in (group.initial.rebalance.delay.ms). Of the instances that are cancelled together one
// deletes, the others see that before they wait as long, and nobody counts as gone without a reply.
func TestRepliesOfInstancesThatDeleteAreAwaited(t *testing.T) {
	testbed.Alongside(t)
	tb, fake := testbed.NewFake(t, "a broker that is slow, on demand")
	b := bedOn(t, tb)
	const app = "await-deletion"
	b.groups[app] = true
	slowly(fake, kmsg.SyncGroup, func(req kmsg.Request) time.Duration {
		if req.(*kmsg.SyncGroupRequest).InstanceID == nil { // no instance's
			return memberGone + time.Second
		}
		return 0
	})
	done := make(chan error, 2)
	var cfg Config
	for _, name := range []string{"a", "b"} {
		c, o := b.instance(name)
		c.Retention, c.MemoryThreshold = DeleteOnCancellation, -1
		cfg = c
		go func() { done <- Run(context.Background(), countByKey(t, app), c) }()
		o.says("/readyz", 200, "processing")
	}
	b.put(100)
	require.Eventually(t, func() bool { return len(b.counts()) >= 100 && b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
	out, err := SendAll(t.Context(), app, cfg, Send{Command: CancelCommand, Timeout: 30 * time.Second})
	require.NoError(t, err)
	require.NoError(t, out.Err())
	require.Len(t, out.Replies, 2)
	require.Empty(t, out.Notes)
	for range 2 {
		require.NoError(t, <-done)
	}
}

// Who is in the group to delete is no instance: no reply is awaited from it, and as long as it is there those of others are.
func TestWhoDeletesIsNoInstance(t *testing.T) {
	b := newBed(t)
	app := "who-deletes" + inTopic()
	cl, err := kafka.NewClient(kafka.Config{Brokers: []string{b.addr}, ClientID: app + "-" + forgetClient})
	require.NoError(t, err)
	defer cl.Close()
	s := &sender{application: app, cl: cl, members: []groupMember{{instance: "left"}}, got: map[string]Reply{}, gone: map[string]time.Time{}}
	s.look(t.Context())
	require.Len(t, s.gone, 1)
	member, err := kafkasrc.JoinAlone(t.Context(), cl, app, kafkasrc.DefaultSessionTimeout)
	require.NoError(t, err)
	s.look(t.Context())
	require.Empty(t, s.gone, "who deletes has not replied yet")
	_, err = settledMembers(t.Context(), cl, app)
	require.ErrorIs(t, err, errNobody, "it is no instance that replies")
	member.Leave(t.Context())
	s.look(t.Context())
	require.Len(t, s.gone, 1)
}

// The broker does not say for a long time who is in the group. Replies are read all the same.
func TestRepliesAreReadWhileTheGroupIsNotDescribed(t *testing.T) {
	testbed.Alongside(t)
	tb, fake := testbed.NewFake(t, "a broker that is slow, on demand")
	b := bedOn(t, tb)
	cl, err := kafka.NewClient(kafka.Config{Brokers: []string{b.addr}})
	require.NoError(t, err)
	defer cl.Close()
	slowly(fake, kmsg.DescribeGroups, func(kmsg.Request) time.Duration { return 20 * time.Second })
	s := &sender{application: "app", cl: cl, members: []groupMember{{instance: "mute"}}, got: map[string]Reply{}, gone: map[string]time.Time{}}
	begun := time.Now()
	s.look(t.Context())
	require.Less(t, time.Since(begun), memberPoll+time.Second)
	require.Empty(t, s.gone, "nothing was seen")
}

// The time of a cancel bounds the deletion, too, and what then is the case is said.
func TestACancelThatDeletesKeepsToItsTimeout(t *testing.T) {
	testbed.Alongside(t)
	tb, fake := testbed.NewFake(t, "a broker that is slow, on demand")
	b := bedOn(t, tb)
	const app, timeout = "late", 2 * time.Second
	b.groups[app] = true
	cfg := b.config()
	cfg.Retention, cfg.MemoryThreshold = DeleteOnCancellation, -1
	stop := b.start(countByKey(t, app), cfg)
	b.put(100)
	require.Eventually(t, func() bool { return len(b.counts()) >= 100 && b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	var slow atomic.Bool
	slow.Store(true)
	slowly(fake, kmsg.JoinGroup, func(kmsg.Request) time.Duration {
		if slow.Load() {
			return 6 * time.Second
		}
		return 0
	})
	begun := time.Now()
	out, err := SendAll(t.Context(), app, cfg, Send{Command: CancelCommand, Timeout: timeout})
	require.Less(t, time.Since(begun), timeout+time.Second)
	require.NoError(t, err)
	require.Equal(t, fault.NotRunning, fault.CodeOf(out.Err()))
	require.ErrorContains(t, out.Err(), "not done in time: nothing is deleted; cancel again: ")
	slow.Store(false)
	require.Eventually(t, func() bool {
		out, err = SendAll(t.Context(), app, cfg, Send{Command: CancelCommand, Timeout: 20 * time.Second})
		return err == nil && out.Err() == nil
	}, 30*time.Second, 100*time.Millisecond)
	require.NotZero(t, out.Deleted.Files)
}

// Nothing is committed that says whose the checkpoints are: brokers of another cluster, say. They stay, and it is said what
// deletes them.
func TestACancelDeletesNoCheckpointsThatNothingCommittedNames(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "named-by-none"
	cfg := b.config()
	cfg.Retention, cfg.MemoryThreshold, cfg.CheckpointsDir = DeleteOnCancellation, -1, filepath.Join(b.dir, "checkpoints")
	stop := b.start(countByKey(t, app), cfg)
	b.put(100)
	require.Eventually(t, func() bool { return len(b.counts()) >= 100 && b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	files := func() []string {
		found, err := filepath.Glob(filepath.Join(cfg.CheckpointsDir, app, "*", "chk-*"))
		require.NoError(t, err)
		return found
	}
	all := files()
	require.NotEmpty(t, all)
	other, _ := testbed.NewFake(t, "another cluster, where nothing is committed")
	elsewhere := cfg
	elsewhere.Brokers = other.Brokers
	out, err := SendAll(t.Context(), app, elsewhere, Send{Command: CancelCommand, Timeout: 10 * time.Second})
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(err), "%v %v", err, out)
	require.ErrorContains(t, err, "processor reset")
	require.Equal(t, all, files())
	require.NoError(t, os.RemoveAll(filepath.Join(cfg.CheckpointsDir, app)))
	out, err = SendAll(t.Context(), app, elsewhere, Send{Command: CancelCommand, Timeout: 10 * time.Second})
	require.NoError(t, err)
	require.NoError(t, out.Err(), "nothing is there")
}

// A directory for a savepoint that is not asked for is refused, by whatever way it comes.
func TestACancelWithADirectoryAndNoSavepointIsRefused(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "contradicts"
	cfg, o := b.instance("a")
	stop := b.start(countByKey(t, app), cfg)
	o.says("/readyz", 200, "processing")
	dir := filepath.Join(b.dir, "savepoints")
	_, viaAdmin := o.client().Cancel(t.Context(), admin.Cancel{Dir: dir})
	_, viaTopic := SendAll(t.Context(), app, cfg, Send{Command: CancelCommand, Dir: dir, Timeout: 10 * time.Second})
	for _, err := range []error{viaAdmin, viaTopic} {
		require.Equal(t, fault.Usage, fault.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "names a directory for a savepoint")
	}
	require.NoDirExists(t, dir)
	o.says("/readyz", 200, "processing")
	require.NoError(t, stop())
}
