package processor

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	tb, fake := testbed.NewFake(t, "a broker that is slow, on demand")
	b := bedOn(t, tb)
	const app = "one-moment"
	b.groups[app] = true
	leaving, left := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	slowly(fake, kmsg.LeaveGroup, func(req kmsg.Request) time.Duration {
		m := req.(*kmsg.LeaveGroupRequest).Members
		if len(m) == 1 && m[0].InstanceID != nil && *m[0].InstanceID == "b" && once.CompareAndSwap(false, true) {
			close(leaving)
			return time.Second
		}
		return 0
	})
	done := map[string]chan error{}
	at := map[string]outside{}
	var cfg Config
	for _, name := range []string{"a", "b"} {
		c, o := b.instance(name)
		c.InstanceID, c.Retention, c.MemoryThreshold = name, DeleteOnCancellation, -1
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
	b.put(100) // a has something to commit
	first, err := at["a"].client().Cancel(t.Context(), admin.Cancel{})
	require.NoError(t, err)
	require.Contains(t, first.Kept, "the group still has b (")
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
