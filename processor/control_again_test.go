package processor

import (
	"context"
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/testbed"
)

func TestTheNewestCommandsAreKnown(t *testing.T) {
	var r requests
	for i := range 3 * maxControlKnown {
		require.True(t, r.add(strconv.Itoa(i)), i)
		for j := max(0, i-maxControlKnown+1); j <= i; j++ {
			require.False(t, r.add(strconv.Itoa(j)), "%d after %d", j, i)
		}
	}
	require.True(t, r.add("0"), "it was forgotten")
}

// An instance hears commands again when the control topic was deleted and made again, and obeys none twice: neither those
// that somebody puts back, nor one that is in the topic twice.
func TestCommandsReachAnInstanceWhenTheirTopicIsMadeAgain(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "commands-again"
	b.groups[app] = true
	cfg, o := b.instance("a")
	var log logBuffer
	cfg.Logger = log.logger()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- Run(ctx, countPlan(t, app), cfg) }()
	o.says("/readyz", 200, "processing")
	command := func(request string) *kgo.Record {
		v, err := json.Marshal(controlRecord{Version: controlVersion, Request: request, Command: CheckpointCommand, Patience: 10_000})
		require.NoError(t, err)
		return &kgo.Record{Topic: ControlTopic(app), Value: v}
	}
	require.NoError(t, b.cl.ProduceSync(t.Context(), command("first"), command("first")).FirstErr())
	require.Empty(t, b.replyTo(app, "first").Error)

	_, err := kadm.NewClient(b.cl).DeleteTopics(t.Context(), ControlTopic(app))
	require.NoError(t, err)
	b.cl.PurgeTopicsFromClient(ControlTopic(app))
	require.Eventually(t, func() bool {
		out, err := SendAll(t.Context(), app, cfg, Send{Command: CheckpointCommand, Timeout: time.Second})
		return err == nil && out.Err() == nil
	}, 30*time.Second, 10*time.Millisecond, "commands do not reach the instance any more")
	require.NoError(t, b.cl.ProduceSync(t.Context(), command("first"), command("last")).FirstErr())
	require.Empty(t, b.replyTo(app, "last").Error)
	require.Equal(t, 1, log.count("command=checkpoint request=first"), "it was obeyed once")
	require.Equal(t, 2, log.count("command=checkpoint again=first"), "once before and once after")
	require.Equal(t, 1, log.count("command=checkpoint request=last"))
	cancel()
	require.NoError(t, <-done)
}
