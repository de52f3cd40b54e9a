package engine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
	"github.com/millweir/millweir/snapshot"
)

// small is a world whose checkpoints lie on a volume with room for three whole states and a bit.
type small struct {
	*world
	disk *vfs.Mem
	sick atomic.Bool // no commit succeeds
	// surely: it is known that none that failed happens later.
	surely bool
	// refused counts those that did not, full the attempts that found no room.
	refused, full, attempts atomic.Int64
}

func newSmall(t *testing.T) *small {
	s := &small{world: newWorld(t, 2), disk: vfs.NewMem()}
	s.onCommit = func(c checkpoint.Commit) (bool, error) {
		if c.Name.ID == 0 || !s.sick.Load() {
			return true, nil
		}
		s.refused.Add(1)
		if s.surely {
			return false, &checkpoint.RefusedError{Err: errPlanted}
		}
		return false, errPlanted
	}
	s.reopen()
	return s
}

// reopen makes a further process of the instance.
func (s *small) reopen() {
	repo, err := snapshot.OpenRepository(s.t.Context(), snapshot.Config{Storage: snapshot.NewLocal(s.disk, "/small"), Application: app, Instance: "i1",
		NumRetained: 1, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(s.t, err)
	s.repo = repo
}

func (s *small) whole() Config {
	cfg := s.config()
	cfg.FullSnapshots = true
	return cfg
}

func (s *small) begin(cfg Config) (stop func() error) {
	return s.start(cfg, &Listener{
		AttemptStarted: func(AttemptInfo) { s.attempts.Add(1) },
		AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) {
			if errors.Is(err, syscall.ENOSPC) {
				s.full.Add(1)
			}
		},
		CheckpointAbandoned: func(_ []element.CheckpointID, _ checkpoint.FailureReason, err error) {
			if errors.Is(err, syscall.ENOSPC) {
				s.full.Add(1)
			}
		},
	})
}

// fill processes so much that the state has its size, and gives the volume its own.
func (s *small) fill(cfg Config) {
	stop := s.begin(cfg)
	s.produce(1200, 600)
	s.caughtUp()
	require.NoError(s.t, stop())
	s.disk.SetLimit(s.bytes() * 7 / 2)
}

// files are those of checkpoints.
func (s *small) files() (out []snapshot.FileInfo) {
	list, err := snapshot.NewLocal(s.disk, "/small").List(context.Background(), app+"/")
	require.NoError(s.t, err)
	for _, f := range list {
		if strings.Contains(f.Name, "/chk-") {
			out = append(out, f)
		}
	}
	return out
}

func (s *small) bytes() (sum int64) {
	for _, f := range s.files() {
		sum += f.Length
	}
	return sum
}

func (s *small) wait(what string, cond func() bool) {
	s.t.Helper()
	require.Eventually(s.t, cond, 20*time.Second, time.Millisecond, what)
}

// healed lets commits succeed again, and everything has to come out right.
func (s *small) healed(cfg Config) {
	s.sick.Store(false)
	stop := s.begin(cfg)
	s.caughtUp()
	require.NoError(s.t, stop())
	s.exact()
}

// While no commit succeeds nothing but the start of the next attempt removes what the failed ones wrote.
func TestASmallVolumeIsNotFilledByRefusedCommits(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	s.fill(s.whole())
	s.sick.Store(true)
	stop := s.begin(s.whole())
	s.produce(600, 600)
	s.wait("refused commits", func() bool { return s.refused.Load() >= 12 })
	require.NoError(t, stop())
	require.Zero(t, s.full.Load(), "the volume was full")
	s.healed(s.whole())
}

// The same before anything but start positions is committed.
func TestFailedFirstCheckpointsDoNotPileUp(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	s.sick.Store(true)
	stop := s.begin(s.whole())
	s.produce(600, 600)
	s.wait("refused commits", func() bool { return s.refused.Load() >= 12 })
	require.NoError(t, stop())
	require.LessOrEqual(t, len(s.files()), 2)
	s.healed(s.whole())
}

// dying removes nothing any more and writes no roots, as a process that is killed before it can.
type dying struct{ Checkpoints }

func (d dying) WriteRoot(context.Context, *snapshot.Root) (snapshot.RootRef, error) {
	return snapshot.RootRef{}, errPlanted
}

func (d dying) Discard(context.Context, element.CheckpointName) (snapshot.CleanReport, error) {
	return snapshot.CleanReport{}, nil
}

// Every process leaves the files of one checkpoint, with a root or without, before its only attempt is over.
func TestASmallVolumeIsNotFilledByProcessesThatAreKilled(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(Checkpoints) Checkpoints{
		"behind the root": nil,
		"before the root": func(c Checkpoints) Checkpoints { return dying{c} },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSmall(t)
			s.fill(s.whole())
			whole := int64(0) // bytes of a state
			for _, f := range s.files() {
				whole = max(whole, f.Length)
			}
			s.sick.Store(true)
			s.wrap = wrap
			s.produce(600, 600)
			for range 6 {
				cfg := s.whole()
				cfg.Restart.Exponential.InitialBackoff, cfg.Restart.Exponential.MaxBackoff = time.Hour, time.Hour
				ended := make(chan error, 1)
				s.reopen()
				stop := s.start(cfg, &Listener{AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) {
					ended <- err
				}})
				require.NotErrorIs(t, <-ended, syscall.ENOSPC)
				require.NoError(t, stop())
				require.Greater(t, s.bytes(), whole*3/2, "something is left of it")
			}
			require.Less(t, s.bytes(), whole*5/2)
			s.wrap = nil
			s.reopen()
			s.healed(s.whole())
		})
	}
}

// A commit that has no answer may have happened: what is committed is there.
func TestFilesOfACommitWithoutAnAnswerStay(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	var unheard atomic.Int64
	s.onCommit = func(c checkpoint.Commit) (bool, error) {
		switch {
		case c.Name.ID == 0 || !s.sick.Load():
			return true, nil
		case c.Name.ID%2 == 0:
			return false, errPlanted
		}
		unheard.Add(1)
		return true, errPlanted
	}
	s.sick.Store(true)
	stop := s.begin(s.config())
	s.produceUntil(func() bool { return unheard.Load() >= 10 })
	require.NoError(t, stop())
	s.reopen()
	s.healed(s.config())
}

// unrooted fails most roots when all of a checkpoint's changes are on disk.
type unrooted struct {
	Checkpoints
	calls *atomic.Int64
}

func (u unrooted) WriteRoot(ctx context.Context, root *snapshot.Root) (snapshot.RootRef, error) {
	ref, err := u.Checkpoints.WriteRoot(ctx, root)
	if u.calls.Add(1)%6 != 0 {
		return snapshot.RootRef{}, fault.Restartf(fault.Failed, "planted: no answer")
	}
	return ref, err
}

// Checkpoints that fail and are tolerated leave the room to the next try, in the same attempt.
func TestASmallVolumeIsNotFilledByToleratedFailures(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	cfg := s.whole()
	cfg.TolerableFailures, cfg.TransactionTimeout = checkpoint.Unlimited, time.Hour
	s.fill(cfg)
	s.attempts.Store(0)
	calls := new(atomic.Int64)
	s.wrap = func(c Checkpoints) Checkpoints { return unrooted{c, calls} }
	stop := s.begin(cfg)
	s.wait("written roots", func() bool { s.produce(10, 600); return calls.Load() >= 18 })
	s.caughtUp()
	require.NoError(t, stop())
	s.exact()
	require.Zero(t, s.full.Load(), "the volume was full")
	require.EqualValues(t, 1, s.attempts.Load())
}

// Without transactions a commit that failed may still arrive: its files stay. What was never sent goes.
func TestAtLeastOnceKeepsTheFilesOfCommitsThatMayArrive(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	s.plain, s.others = true, true
	cfg := s.whole()
	cfg.AtLeastOnce = true
	s.sick.Store(true)
	stop := s.begin(cfg)
	s.produce(600, 600)
	s.wait("refused commits", func() bool { return s.refused.Load() >= 3 })
	require.NoError(t, stop())
	require.GreaterOrEqual(t, len(s.files()), 6)
	s.sick.Store(false)
	stop = s.begin(cfg)
	s.caughtUp()
	require.NoError(t, stop())
}

// A commit that was surely refused does not arrive: without transactions, too, what it would have committed leaves the room to the
// next attempt.
func TestAtLeastOnceRemovesTheFilesOfCommitsThatWereSurelyRefused(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	s.plain, s.others = true, true
	s.surely = true
	cfg := s.whole()
	cfg.AtLeastOnce = true
	s.fill(cfg)
	s.sick.Store(true)
	stop := s.begin(cfg)
	s.produce(600, 600)
	s.wait("refused commits", func() bool { return s.refused.Load() >= 12 })
	require.NoError(t, stop())
	require.Zero(t, s.full.Load(), "the volume was full")
	s.sick.Store(false)
	stop = s.begin(cfg)
	s.caughtUp()
	require.NoError(t, stop())
}
