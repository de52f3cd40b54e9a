package processor

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/kafkasrc"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

func TestCommandsReachAllInstances(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "commands"
	plan := countPlan(t, app)
	b.groups[app] = true
	cfgA, a := b.instance("a")
	_, err := SendAll(t.Context(), app, cfgA, Send{Command: SavepointCommand, Timeout: 5 * time.Second})
	require.Equal(t, fault.NotRunning, fault.CodeOf(err), err)

	cfgB, o := b.instance("b")
	done := make(chan error, 2)
	go func() { done <- Run(context.Background(), plan, cfgA) }()
	a.says("/readyz", 200, "processing")
	go func() { done <- Run(context.Background(), plan, cfgB) }()
	o.says("/readyz", 200, "processing")
	b.produce(0, 2000)

	out, err := SendAll(t.Context(), app, cfgA, Send{Command: SavepointCommand, Timeout: 10 * time.Second})
	require.NoError(t, err)
	require.Equal(t, fault.BadFile, fault.CodeOf(out.Err()), "no instance has a directory: %v", out.Err())
	require.Len(t, out.Replies, 2)

	dir := filepath.Join(b.dir, "savepoints")
	out, err = SendAll(t.Context(), app, cfgA, Send{Command: SavepointCommand, Dir: dir, Timeout: 10 * time.Second})
	require.NoError(t, err)
	require.NoError(t, out.Err())
	var held []string
	first := out.Replies
	for _, r := range out.Replies {
		held = append(held, r.Partitions...)
		sp, err := snapshot.OpenSavepoint(t.Context(), r.Path)
		require.NoError(t, err)
		_, err = sp.Verify(t.Context())
		require.NoError(t, errors.Join(err, sp.Close()))
	}
	require.ElementsMatch(t, []string{inTopic() + "/0", inTopic() + "/1", inTopic() + "/2", inTopic() + "/3"}, held)

	out, err = SendAll(t.Context(), app, cfgA, Send{Command: "dance", Timeout: 10 * time.Second})
	require.NoError(t, err)
	require.ErrorContains(t, out.Err(), `does not know the command "dance"`)
	// Garbage in the topic is passed over.
	require.NoError(t, b.cl.ProduceSync(t.Context(), &kgo.Record{Topic: ControlTopic(app), Value: []byte("{")}, &kgo.Record{Topic: ControlTopic(app), Value: bytes.Repeat([]byte("x"), maxControlRecord+1)}).FirstErr())

	out, err = SendAll(t.Context(), app, cfgA, Send{Command: CancelCommand, Savepoint: true, Dir: dir, Timeout: 20 * time.Second})
	require.NoError(t, err)
	require.NoError(t, out.Err())
	require.Len(t, out.Replies, 2)
	for range 2 {
		require.NoError(t, <-done)
	}
	list, err := snapshot.ListSavepoints(t.Context(), dir)
	require.NoError(t, err)
	require.Len(t, list, 4)

	// The parts of one request are a savepoint, those of two are not, although the partitions would do.
	require.Len(t, first[0].Requests, 1)
	require.Equal(t, first[0].Requests, first[1].Requests)
	require.Equal(t, out.Replies[0].Requests, out.Replies[1].Requests)
	require.NotEqual(t, first[0].Requests, out.Replies[0].Requests)
	start := func(app string, paths ...string) error {
		b.groups[app] = true
		cfg, _ := b.instance(app)
		cfg.From, cfg.CheckpointsDir = paths, filepath.Join(b.dir, app+"-checkpoints")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cfg.Listener = engine.Listener{StartedFrom: func(engine.FromInfo) { cancel() }}
		return Run(ctx, countPlan(t, app), cfg)
	}
	err = start("mixed", first[0].Path, out.Replies[1].Path)
	require.Equal(t, fault.Usage, fault.CodeOf(err))
	for _, word := range []string{"are not parts of one savepoint", first[0].Path, out.Replies[1].Path, first[0].Requests[0], out.Replies[1].Requests[0]} {
		require.ErrorContains(t, err, word)
	}
	require.NoError(t, start("whole", first[0].Path, first[1].Path))
}

func TestAMemberThatDoesNotReplyIsNamed(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "silent"
	b.groups[app] = true
	g, err := kafkasrc.JoinGroup(t.Context(), kafkasrc.GroupConfig{Kafka: kafka.Config{Brokers: []string{b.addr}}, Group: app, InstanceID: "mute", Topics: []string{inTopic()}})
	require.NoError(t, err)
	defer g.Close()
	require.Eventually(t, func() bool { return g.Current().Member }, 20*time.Second, 10*time.Millisecond)
	out, err := SendAll(t.Context(), app, b.config(), Send{Command: CheckpointCommand, Timeout: time.Second})
	require.NoError(t, err)
	require.Equal(t, fault.NotRunning, fault.CodeOf(out.Err()))
	require.ErrorContains(t, out.Err(), "mute")
	require.ErrorContains(t, out.Err(), "no reply within 1s")
	_, err = PlanReset(t.Context(), app, b.config())
	require.Equal(t, fault.GroupActive, fault.CodeOf(err))
	require.ErrorContains(t, err, "mute")
}

func TestAResetMakesTheNextStartTheFirst(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "resets"
	plan := countPlan(t, app)
	cfg, _ := b.instance("a")
	cfg.Backend = Badger
	cfg = cfg.withDefaults()
	b.produce(0, 500)
	stop := b.start(plan, cfg)
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	_, err := PlanReset(t.Context(), app, cfg)
	require.Equal(t, fault.GroupActive, fault.CodeOf(err))
	require.NoError(t, stop())

	foreign := filepath.Join(cfg.CheckpointsDir, app, "mine")
	require.NoError(t, os.WriteFile(foreign, nil, 0o600))
	b.ends(reads{cl: b.cl, group: app}, topology.EndLatest(), 0, 1, 2, 3) // of a bounded run
	r, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	require.Equal(t, []string{app, app + ".ends"}, r.Groups)
	require.Equal(t, 8, r.Offsets)
	require.Equal(t, []string{app + "-checkpoints", app + "-control"}, r.Topics)
	require.Positive(t, r.Files)
	require.Equal(t, cfg.CheckpointsDir, r.CheckpointsDir)
	require.Len(t, r.Local, 1)
	require.Equal(t, []string{app + "/mine"}, r.Foreign)
	used, err := openDataDir(cfg.DataDir) // by a process that is not in the group yet
	require.NoError(t, err)
	require.Equal(t, fault.Fenced, fault.CodeOf(r.Do(t.Context())))
	require.NoError(t, used.close())
	require.NoError(t, r.Do(t.Context()))
	require.FileExists(t, foreign)
	require.NoDirExists(t, r.Local[0])
	for _, g := range []string{app, app + ".ends"} {
		left, err := kadm.NewClient(b.cl).FetchOffsets(t.Context(), g)
		if !errors.Is(err, kerr.GroupIDNotFound) {
			require.NoError(t, err)
			require.Empty(t, left, "the offsets of group %s are deleted", g)
		}
	}
	again, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	require.True(t, again.Empty(), "%+v", again)
	require.NoError(t, again.Do(t.Context()), "nothing to do is no error")

	var fresh atomic.Int64
	cfg.Listener.AttemptStarted = func(i engine.AttemptInfo) { fresh.Store(int64(i.Fresh)) }
	stop = b.start(plan, cfg)
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	require.EqualValues(t, 4, fresh.Load())
	require.NoError(t, stop())
}
