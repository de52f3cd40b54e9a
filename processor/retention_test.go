package processor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// With checkpointing.retention a cancel keeps the checkpoints, and the next run goes on, or deletes them, and it starts
// empty at the committed offsets and says so. A stop by signal deletes nothing.
func TestCancelKeepsOrDeletesTheCheckpoints(t *testing.T) {
	testbed.Alongside(t)
	for name, c := range map[string]struct {
		retention Retention
		savepoint bool
		want      int64
	}{
		"retain":                           {RetainOnCancellation, false, 20},
		"delete":                           {DeleteOnCancellation, false, 10},
		"a savepoint, and nothing deleted": {DeleteOnCancellation, true, 20},
	} {
		t.Run(name, func(t *testing.T) {
			retention, deletes := c.retention, c.want == 10
			b := newBed(t)
			const app = "cancelled"
			var log logBuffer
			cfg, at := b.instance("a")
			cfg.Retention, cfg.Logger, cfg.MemoryThreshold, cfg.CheckpointsDir = retention, log.logger(), -1, filepath.Join(b.dir, "checkpoints")
			ended := make(chan error, 1)
			go func() { ended <- Run(t.Context(), countByKey(t, app), cfg) }()
			b.put(100)
			require.Eventually(t, func() bool { return len(b.counts()) >= 100 && b.lag(app) == 0 }, 30*time.Second, 50*time.Millisecond)
			cancel := admin.Cancel{Savepoint: c.savepoint}
			if c.savepoint {
				cancel.Dir = filepath.Join(b.dir, "savepoints")
			}
			part, err := at.client().Cancel(t.Context(), cancel)
			require.NoError(t, err)
			require.Equal(t, c.savepoint, part.Retention == "", "whoever cancels hears what becomes of the checkpoints")
			require.Equal(t, c.savepoint, part.Path != "")
			require.NoError(t, <-ended)
			var files []string
			require.NoError(t, filepath.WalkDir(cfg.CheckpointsDir, func(path string, d os.DirEntry, err error) error {
				if err == nil && strings.HasPrefix(d.Name(), "chk-") {
					files = append(files, path)
				}
				return err
			}))
			require.Equal(t, deletes, len(files) == 0, "%v", files)

			stop := b.start(countByKey(t, app), cfg)
			b.put(100)
			require.Eventually(t, func() bool { return len(b.counts()) >= 200 && b.lag(app) == 0 }, 30*time.Second, 50*time.Millisecond)
			require.NoError(t, stop())
			highest := int64(0)
			for _, c := range b.counts() {
				highest = max(highest, c.n)
			}
			require.Equal(t, c.want, highest)
			require.Equal(t, deletes, log.count("starts without state") > 1)
		})
	}
}

// Instances are cancelled one after the other. What the first one had goes on in the second, with its state; the last one
// deletes all of it.
func TestTheLastInstanceThatIsCancelledDeletes(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "onebyone"
	b.groups[app] = true
	done := map[string]chan error{}
	at := map[string]outside{}
	var cfg Config
	for _, name := range []string{"a", "b"} {
		c, o := b.instance(name)
		c.Retention, c.MemoryThreshold = DeleteOnCancellation, -1
		ended := make(chan error, 1)
		cfg, at[name], done[name] = c, o, ended
		go func() { ended <- Run(t.Context(), countByKey(t, app), c) }()
		o.says("/readyz", 200, "processing")
	}
	files := func() (n int) {
		require.NoError(t, filepath.WalkDir(cfg.CheckpointsDir, func(_ string, d os.DirEntry, err error) error {
			if err == nil && strings.HasPrefix(d.Name(), "chk-") {
				n++
			}
			return err
		}))
		return n
	}
	highest := func(all int) (n int64) {
		require.Eventually(t, func() bool { return len(b.counts()) >= all && b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
		for _, c := range b.counts() {
			n = max(n, c.n)
		}
		return n
	}
	b.put(100)
	require.EqualValues(t, 10, highest(100))
	_, err := at["a"].client().Cancel(t.Context(), admin.Cancel{})
	require.NoError(t, err)
	require.NoError(t, <-done["a"])
	require.NotZero(t, files())
	b.put(100)
	require.EqualValues(t, 20, highest(200), "with the whole state")
	_, err = at["b"].client().Cancel(t.Context(), admin.Cancel{})
	require.NoError(t, err)
	require.NoError(t, <-done["b"])
	require.Zero(t, files())
	out, err := SendAll(t.Context(), app, cfg, Send{Command: CancelCommand, Timeout: time.Second})
	require.NoError(t, err)
	require.NoError(t, out.Err(), "again: nothing is left to do")
	cfg.Retention = RetainOnCancellation
	_, err = SendAll(t.Context(), app, cfg, Send{Command: CancelCommand, Timeout: time.Second})
	require.Equal(t, fault.NotRunning, fault.CodeOf(err), "%v", err)
}

// What a cancel deletes is what the running instances are configured with, whatever the file of the command says meanwhile;
// that is what counts when none runs.
func TestCancelGoesByTheRetentionOfTheRunningInstances(t *testing.T) {
	testbed.Alongside(t)
	for running, file := range map[Retention]Retention{RetainOnCancellation: DeleteOnCancellation, DeleteOnCancellation: RetainOnCancellation} {
		t.Run(string(running), func(t *testing.T) {
			b := newBed(t)
			const app = "differs"
			b.groups[app] = true
			cfg, _ := b.instance("a")
			cfg.Retention, cfg.MemoryThreshold = running, -1
			ended := make(chan error, 1)
			go func() { ended <- Run(t.Context(), countByKey(t, app), cfg) }()
			b.put(100)
			require.Eventually(t, func() bool { return len(b.counts()) >= 100 && b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
			cfg.Retention = file
			cancel := func() Outcome {
				out, err := SendAll(t.Context(), app, cfg, Send{Command: CancelCommand, Timeout: 20 * time.Second})
				require.NoError(t, err)
				return out
			}
			roots := func() bool {
				found, err := filepath.Glob(filepath.Join(cfg.CheckpointsDir, app, "*", "chk-*"))
				require.NoError(t, err)
				return len(found) > 0
			}
			out := cancel()
			require.NoError(t, <-ended)
			require.Empty(t, out.Replies[0].Error)
			require.EqualValues(t, running, out.Replies[0].Retention)
			require.Equal(t, running == DeleteOnCancellation, out.Deleted != nil)
			require.Equal(t, running == RetainOnCancellation, roots())
			if running == DeleteOnCancellation {
				require.NoError(t, out.Err())
				require.Len(t, out.Notes, 1, "it is said")
				require.Contains(t, out.Notes[0], "retain-on-cancellation")
				return
			}
			require.Equal(t, fault.NotRunning, fault.CodeOf(out.Err()))
			require.ErrorContains(t, out.Err(), "has checkpointing.retention: retain-on-cancellation")
			out = cancel()
			require.NoError(t, out.Err())
			require.NotZero(t, out.Deleted.Files)
			require.False(t, roots())
		})
	}
}

// A cancel with a savepoint deletes nothing, neither the instance nor the command behind it.
func TestACancelWithASavepointDeletesNothing(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "saved"
	cfg, _ := b.instance("a")
	cfg.Retention, cfg.MemoryThreshold = DeleteOnCancellation, -1
	ended := make(chan error, 1)
	go func() { ended <- Run(t.Context(), countByKey(t, app), cfg) }()
	b.put(100)
	require.Eventually(t, func() bool { return len(b.counts()) >= 100 && b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
	out, err := Cancel(t.Context(), app, cfg, Send{Savepoint: true, Dir: filepath.Join(b.dir, "savepoints"), Timeout: 20 * time.Second})
	require.NoError(t, err)
	require.NoError(t, out.Err())
	require.NoError(t, <-ended)
	require.Nil(t, out.Deleted)
	require.NotEmpty(t, out.Replies[0].Path)
	found, err := filepath.Glob(filepath.Join(cfg.CheckpointsDir, app, "*", "chk-*"))
	require.NoError(t, err)
	require.NotEmpty(t, found)
}

// One that keeps the checkpoints is enough to keep them; one that has not said what it does with them says nothing.
func TestTheRetentionOfSeveralInstances(t *testing.T) {
	reply := func(name string, r Retention) Reply {
		return Reply{Part: admin.Part{Instance: name, Retention: string(r)}}
	}
	const keep, drop = RetainOnCancellation, DeleteOnCancellation
	for name, c := range map[string]struct {
		replies       []Reply
		file          Retention
		deletes       bool
		problem, note string
	}{
		"nobody, kept":         {file: keep},
		"nobody, deleted":      {file: drop, deletes: true},
		"earlier version":      {replies: []Reply{reply("a", "")}, file: drop, deletes: true},
		"alike, kept":          {replies: []Reply{reply("a", keep), reply("b", keep)}, file: keep},
		"alike, deleted":       {replies: []Reply{reply("a", drop), reply("b", "")}, file: drop, deletes: true},
		"file deletes":         {replies: []Reply{reply("a", keep), reply("b", keep)}, file: drop, problem: "a and b have checkpointing.retention: retain-on-cancellation"},
		"file keeps":           {replies: []Reply{reply("a", drop)}, file: keep, deletes: true, note: "a has checkpointing.retention: delete-on-cancellation"},
		"differ, file deletes": {replies: []Reply{reply("a", keep), reply("b", drop)}, file: drop, problem: "a has checkpointing.retention: retain-on-cancellation, b has delete-on-cancellation"},
		"differ, file keeps":   {replies: []Reply{reply("a", keep), reply("b", drop)}, file: keep, problem: "a has checkpointing.retention: retain-on-cancellation, b has delete-on-cancellation"},
	} {
		t.Run(name, func(t *testing.T) {
			out := Outcome{Replies: c.replies}
			require.Equal(t, c.deletes, out.settleRetention(c.file))
			require.Equal(t, c.problem != "", len(out.Problems) == 1)
			require.Contains(t, strings.Join(out.Problems, ""), c.problem)
			require.Equal(t, c.note != "", len(out.Notes) == 1)
			require.Contains(t, strings.Join(out.Notes, ""), c.note)
		})
	}
}
