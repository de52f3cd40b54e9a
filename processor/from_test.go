package processor

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// countBehind counts per key behind an exchange; without parallelism as countByKey.
func countBehind(t *testing.T, app string, parallelism int) *topology.Plan {
	if parallelism == 0 {
		return countByKey(t, app)
	}
	b := topology.New(app)
	in := topology.FromTopic(b, "in", inTopic(), serde.String(), serde.String())
	by := topology.GroupBy(in, "by", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(parallelism))
	topology.ToTopic(topology.Count(by, "count"), "out", outTopic(), serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// processed waits until n records have come out and their positions are committed.
func (b *bed) processed(app string, n int) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return b.lag(app) == 0 && len(b.counts()) >= n }, 30*time.Second, 20*time.Millisecond)
}

// saved runs a plan over two times 100 records and gives the savepoint between them.
func (b *bed) saved(plan *topology.Plan, cfg Config) admin.Part {
	b.t.Helper()
	stop := b.start(plan, cfg)
	b.put(100)
	b.processed(plan.Application, 100)
	part, err := outside{b.t, cfg.DataDir}.client().TriggerSavepoint(b.t.Context(), filepath.Join(b.dir, "savepoints"))
	require.NoError(b.t, err)
	b.put(100)
	b.processed(plan.Application, 200)
	require.NoError(b.t, stop())
	return part
}

// byKey gives the counts that came out, in order.
func (b *bed) byKey() map[string][]int64 {
	out := map[string][]int64{}
	for _, c := range b.counts() {
		out[c.key] = append(out[c.key], c.n)
	}
	return out
}

func span(from, to int64) []int64 {
	var out []int64
	for n := from; n <= to; n++ {
		out = append(out, n)
	}
	return out
}

// A fork under another name, with everything else changed, goes on with the counts of the savepoint.
func TestAForkOfAService(t *testing.T) {
	testbed.Alongside(t)
	for name, c := range map[string]struct {
		before, after           Backend
		parallelism, afterwards int
		claim                   ClaimMode
	}{
		"memory to badger, chained":                {Memory, Badger, 0, 0, ""},
		"badger to memory, exchange of 2 to 3":     {Badger, Memory, 2, 3, NoClaim},
		"memory to badger, exchange 3 to 1, claim": {Memory, Badger, 3, 1, Claim},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			cfg := b.config()
			cfg.Backend, cfg.DataDir = c.before, filepath.Join(b.dir, "origin")
			part := b.saved(countBehind(t, "origin", c.parallelism), cfg)

			var log logBuffer
			fork := b.config()
			fork.Backend, fork.DataDir, fork.From, fork.ClaimMode = c.after, filepath.Join(b.dir, "fork"), []string{part.Path}, c.claim
			fork.Logger = slog.New(slog.NewTextHandler(&log, nil))
			for round := range 3 { // the command line stays
				stop := b.start(countBehind(t, "fork", c.afterwards), fork)
				b.put(10)
				b.processed("fork", 300+10*(round+1))
				require.NoError(t, stop())
			}
			for key, got := range b.byKey() {
				require.Equal(t, append(span(1, 20), span(11, 23)...), got, "key %s", key)
			}
			require.Equal(t, 1, log.count("starting from a savepoint"))
			require.Equal(t, 2, log.count("--from is ignored"))
			_, err := os.Stat(part.Path)
			if c.claim == Claim {
				require.Equal(t, 1, log.count("the claimed savepoint is disposed of"))
				require.ErrorIs(t, err, os.ErrNotExist)
				return
			}
			s, err := snapshot.OpenSavepoint(t.Context(), part.Path)
			require.NoError(t, err)
			defer s.Close()
			_, err = s.Verify(t.Context())
			require.NoError(t, err, "it is not touched")
		})
	}
}

// The service itself is not taken back behind what it has put out, until that is accepted.
func TestGoingBackNeedsAWord(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	cfg := b.config()
	part := b.saved(countByKey(t, "back"), cfg)
	var log logBuffer
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	cfg.From = []string{part.Path}
	stop := b.start(countByKey(t, "back"), cfg)
	b.put(10)
	b.processed("back", 210)
	require.NoError(t, stop())
	require.Equal(t, 1, log.count("--from is ignored"), "it lies in its past")
	require.Equal(t, 1, log.count("level=WARN msg=\"--from is ignored"), "whoever wanted to go back must see that nothing did")
	require.Equal(t, 1, log.count("to go back to it, with outputs repeating, add --accept-duplicates"))

	other := b.config()
	other.DataDir = filepath.Join(b.dir, "other")
	stop = b.start(countByKey(t, "other"), other)
	b.processed("other", 420)
	require.NoError(t, stop())
	other.From = cfg.From
	err := Run(t.Context(), countByKey(t, "other"), other)
	require.Equal(t, int(fault.HandleMismatch), ExitCode(err))
	require.ErrorContains(t, err, "another application name, accept that outputs repeat, or reset")

	cfg.AcceptDuplicates = true
	for range 2 {
		stop = b.start(countByKey(t, "back"), cfg)
		b.put(10)
		require.Eventually(t, func() bool { return log.count("checkpoint committed") > 1 && b.lag("back") == 0 }, 20*time.Second, 20*time.Millisecond)
		require.NoError(t, stop())
	}
	for key, got := range b.byKey() {
		require.Equal(t, append(append(span(1, 21), span(1, 21)...), span(11, 23)...), got, "key %s", key)
	}
	require.Equal(t, 4, log.count("GOING BACK TO A SAVEPOINT"), "each partition once")
	require.Equal(t, 1, log.count("level=INFO msg=\"--from is ignored"), "the second time it had gone back")
	require.Equal(t, 1, log.count("level=WARN msg=\"--from is ignored"))
}

func TestTheWishToStartFromASavepointIsChecked(t *testing.T) {
	base := Config{Brokers: []string{"localhost:1"}, From: []string{"/savepoints/savepoint-a-1-0000000000000001"}}
	require.Empty(t, base.Check())
	for want, change := range map[string]func(*Config){
		"--from: excludes --recover-from-store":            func(c *Config) { c.RecoverFromStore = true },
		"--from: excludes checkpointing.interval disabled": func(c *Config) { c.DisabledCheckpoints = true },
		"--from: /savepoints/x is not a savepoint":         func(c *Config) { c.From = []string{"/savepoints/x"} },
		"--from: 257 directories, at most 256":             func(c *Config) { c.From = make257() },
		`--claim-mode: unknown value "mine"; allowed`:      func(c *Config) { c.ClaimMode = "mine" },
		"--claim-mode: claim without --from":               func(c *Config) { c.From, c.ClaimMode = nil, Claim },
		"--accept-duplicates: without --from":              func(c *Config) { c.From, c.AcceptDuplicates = nil, true },
	} {
		c := base
		change(&c)
		require.Len(t, c.Check(), 1, want)
		require.Contains(t, c.Check()[0].String(), want)
	}
}

func make257() []string {
	out := make([]string, 257)
	for i := range out {
		out[i] = "/savepoints/savepoint-a-1-0000000000000001"
	}
	return out
}
