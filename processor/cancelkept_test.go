package processor

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// Two instances are cancelled by themselves at one moment: b has taken its last checkpoint and is about to leave, a commits behind
// it and leaves first. a sees b, and b sees what a has committed: neither may delete. Both say so, and who was the last one does
// not say that all is done. Another cancel deletes.
func TestTwoThatAreCancelledAtOneMomentSayThatTheCheckpointsStay(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	app := "one-moment" + inTopic()
	b.groups[app] = true
	leaving, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var tap testbed.Tap
	leaves := sync.OnceFunc(func() { close(leaving) })
	tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.LeaveGroup}, Before: func(kmsg.Request) error { leaves(); <-leave; return nil }})
	done := map[string]chan error{}
	at := map[string]outside{}
	var cfg Config
	for _, name := range []string{"a", "b"} {
		c, o := b.instance(name)
		c.InstanceID, c.Retention, c.MemoryThreshold = name, DeleteOnCancellation, -1
		if name == "b" {
			c.ClientOptions = []kgo.Opt{tap.Opt()}
		}
		ended := make(chan error, 1)
		cfg, at[name], done[name] = c, o, ended
		go func() { ended <- Run(t.Context(), countByKey(t, app), c) }()
		o.says("/readyz", 200, "processing")
	}
	b.put(100)
	require.Eventually(t, func() bool { return len(b.counts()) >= 100 && b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
	var second admin.Part
	var behind error
	go func() {
		defer close(left)
		second, behind = at["b"].client().Cancel(t.Context(), admin.Cancel{})
	}()
	<-leaving
	b.put(100)
	require.Eventually(t, func() bool { return b.lag(app) < 100 }, 20*time.Second, 20*time.Millisecond, "a commits behind b")
	first, err := at["a"].client().Cancel(t.Context(), admin.Cancel{})
	require.NoError(t, err)
	require.Contains(t, first.Kept, "the group still has b (")
	close(leave)
	<-left
	require.Equal(t, fault.NotRunning, fault.CodeOf(behind), "%v", behind)
	require.ErrorContains(t, behind, "the instance has ended after a last checkpoint, and the checkpoints stay: ")
	require.ErrorContains(t, behind, "cancel again")
	require.Empty(t, second.Kept)
	for name, ended := range done {
		require.NoError(t, <-ended, name)
	}
	roots := func() []string {
		found, err := filepath.Glob(filepath.Join(cfg.CheckpointsDir, app, "*", "chk-*"))
		require.NoError(t, err)
		return found
	}
	require.NotEmpty(t, roots())
	out, err := SendAll(t.Context(), app, cfg, Send{Command: CancelCommand, Timeout: 20 * time.Second})
	require.NoError(t, err)
	require.NoError(t, out.Err())
	require.NotZero(t, out.Deleted.Files)
	require.Empty(t, roots())
}
