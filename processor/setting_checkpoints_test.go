package processor

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/testbed"
)

func TestSettingInterval(t *testing.T) {
	testbed.Alongside(t)
	for interval, many := range map[time.Duration]bool{20 * time.Millisecond: true, 10 * time.Minute: false} {
		s := newSettled(t)
		s.cfg.Interval = interval
		s.flow()
		stop := s.start(s.plan(0), s.cfg)
		s.eventually(func() bool { return len(s.done()) > 0 }, "the first one of an attempt comes early")
		if many {
			began := len(s.done())
			s.eventually(func() bool { return len(s.done()) >= began+12 }, "checkpoints")
			least := time.Hour // how close they come is the machine's matter
			for i, c := range s.done()[1:] {
				least = min(least, c.Triggered-s.done()[i].Triggered)
			}
			require.Less(t, least, 500*time.Millisecond)
		} else {
			time.Sleep(2500 * time.Millisecond)
			require.Len(t, s.done(), 1)
		}
		require.NoError(t, stop())
	}
}

// What is written for a checkpoint that has timed out ends at once, in an attempt that goes on, as well as with one that ends.
func TestSettingTimeout(t *testing.T) {
	testbed.Alongside(t)
	t.Run("the attempt goes on", func(t *testing.T) {
		s, written := newHanging(t, 300*time.Millisecond)
		stop := s.start(s.plan(0), s.cfg)
		s.eventually(func() bool { return len(written) == 1 }, "its writing is cancelled")
		w := <-written
		require.ErrorIs(t, w.err, context.Canceled)
		require.GreaterOrEqual(t, w.took, 250*time.Millisecond)
		s.eventually(func() bool { return s.lag(s.app) == 0 }, "the next one covers its work")
		require.Equal(t, 1, s.givenUp())
		require.Empty(t, s.failures(), "no attempt has ended, so nothing was cancelled along with one")
		require.NoError(t, stop())
	})
	t.Run("the attempt ends", func(t *testing.T) {
		s, written := newHanging(t, 300*time.Millisecond)
		s.cfg.TolerableFailures = 0
		done := make(chan error, 1)
		go func() { done <- Run(t.Context(), s.plan(0), s.cfg) }()
		select {
		case err := <-done:
			require.ErrorContains(t, err, "300ms")
			require.Len(t, written, 1, "what was being written for it has ended")
		case <-time.After(20 * time.Second):
			t.Fatal("a checkpoint that hangs is not given up")
		}
	})
	t.Run("there is time", func(t *testing.T) {
		s, written := newHanging(t, 4*time.Minute)
		stop := s.start(s.plan(0), s.cfg)
		s.eventually(func() bool { return s.triggers() == 1 }, "the first one")
		time.Sleep(time.Second)
		require.Empty(t, written)
		require.Zero(t, s.givenUp())
		s.release()
		s.eventually(func() bool { return s.lag(s.app) == 0 }, "it completes after all")
		require.NoError(t, (<-written).err)
		require.NoError(t, stop())
	})
}

// stuckStore is a service whose first checkpoint is not written before release, unless it is given up.
type stuckStore struct {
	*settled
	release func()
}

// written is how the writing of a checkpoint that hung has ended.
type written struct {
	err  error
	took time.Duration
}

func newHanging(t *testing.T, timeout time.Duration) (stuckStore, <-chan written) {
	s := newSettled(t)
	s.cfg.CheckpointTimeout, s.cfg.TransactionTimeout = timeout, 10*time.Minute
	s.cfg.TolerableFailures, s.cfg.Restart = -1, restart.Config{Strategy: restart.None}
	free, out := make(chan struct{}), make(chan written, 10)
	var calls atomic.Int64
	s.beforePersist(func(ctx context.Context) error {
		if calls.Add(1) > 1 {
			return nil
		}
		began, err := time.Now(), error(nil)
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-free:
		}
		out <- written{err, time.Since(began)}
		return err
	})
	s.put(10)
	return stuckStore{s, func() { close(free) }}, out
}

func TestSettingTolerableFailures(t *testing.T) {
	testbed.Alongside(t)
	for tolerable, ends := range map[int]bool{1: true, 2: false, -1: false} {
		s := newSettled(t)
		s.cfg.CheckpointTimeout, s.cfg.TransactionTimeout = 500*time.Millisecond, 10*time.Minute
		s.cfg.TolerableFailures, s.cfg.Restart = tolerable, restart.Config{Strategy: restart.None}
		var calls, returned atomic.Int64
		s.beforePersist(func(ctx context.Context) error {
			if calls.Add(1) > 2 {
				return nil
			}
			defer returned.Add(1)
			return hang(ctx)
		})
		s.put(100)
		stop := s.start(s.plan(0), s.cfg)
		if ends {
			s.eventually(func() bool { return len(s.failures()) == 1 }, "two failures in a row")
			require.Error(t, stop())
			require.Equal(t, 1, s.givenUp())
			continue
		}
		s.eventually(func() bool { return s.lag(s.app) == 0 }, "the third checkpoint covers the work of the two")
		require.Equal(t, 2, s.givenUp())
		s.eventually(func() bool { return returned.Load() == 2 }, "what was being written for them ends with them, the attempt goes on")
		require.Empty(t, s.failures())
		require.NoError(t, stop())
		require.Len(t, s.counts(), 100)
	}
}

// What hangs at the end holds a stop up for the shutdown timeout, not for its default.
func TestSettingShutdownTimeout(t *testing.T) {
	testbed.Alongside(t)
	s := newSettled(t)
	s.cfg.ShutdownTimeout, s.cfg.Restart = time.Second, restart.Config{Strategy: restart.None}
	hangs := make(chan struct{}, 1000)
	s.beforePersist(func(ctx context.Context) error {
		hangs <- struct{}{}
		return hang(ctx)
	})
	s.put(10)
	stop := s.start(s.plan(0), s.cfg)
	<-hangs
	began := time.Now()
	_ = stop() // with the error that the last checkpoint was not taken
	took := time.Since(began)
	require.GreaterOrEqual(t, took, 900*time.Millisecond, "the last checkpoint has its time")
	require.Less(t, took, 8*time.Second)
}

// An instance with a name of its own is expected back: a stop leaves the group only without instance.id.
func TestSettingInstanceIDStaysAMember(t *testing.T) {
	testbed.Alongside(t)
	for id, members := range map[string]int{"": 0, "one": 1} {
		s := newSettled(t)
		s.cfg.InstanceID, s.cfg.SessionTimeout = id, 30*time.Second
		s.put(10)
		stop := s.start(s.plan(0), s.cfg)
		s.eventually(func() bool { return s.lag(s.app) == 0 }, "processed")
		require.NoError(t, stop())
		groups, err := kadm.NewClient(s.cl).DescribeGroups(t.Context(), s.app)
		require.NoError(t, err)
		require.Len(t, groups[s.app].Members, members, "instance.id %q", id)
	}
}

func TestSettingMinPause(t *testing.T) {
	testbed.Alongside(t)
	const pause = 300 * time.Millisecond
	s := newSettled(t)
	s.cfg.Interval, s.cfg.MinPause = 20*time.Millisecond, pause
	s.flow()
	stop := s.start(s.plan(0), s.cfg)
	s.eventually(func() bool { return len(s.done()) >= 5 }, "checkpoints")
	all := s.done()
	require.NoError(t, stop())
	for i, c := range all[1:] {
		require.GreaterOrEqual(t, c.Triggered, all[i].Triggered+all[i].EndToEnd+pause, "checkpoint %d after %d", c.ID, all[i].ID)
	}
}

func TestSettingMaxConcurrent(t *testing.T) {
	testbed.Alongside(t)
	for _, most := range []int{1, 3} {
		s := newSettled(t)
		s.cfg.MaxConcurrent, s.cfg.Interval = most, 20*time.Millisecond
		gate := make(chan struct{})
		s.beforePersist(func(ctx context.Context) error {
			select {
			case <-gate:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		s.flow()
		stop := s.start(s.plan(0), s.cfg)
		s.eventually(func() bool { return s.triggers() >= most }, "checkpoints in flight")
		time.Sleep(300 * time.Millisecond)
		require.Equal(t, most, s.triggers(), "and no more than that")
		require.Empty(t, s.done())
		close(gate)
		s.eventually(func() bool { return len(s.done()) > most }, "they go on")
		for i, c := range s.done() {
			require.EqualValues(t, s.done()[0].ID+element.CheckpointID(i), c.ID, "committed in order")
		}
		require.NoError(t, stop())
	}
}

func TestSettingUnaligned(t *testing.T) {
	testbed.Alongside(t)
	for name, c := range map[string]struct {
		set       func(*Config)
		unaligned bool
	}{
		"aligned":           {func(*Config) {}, false},
		"unaligned":         {func(c *Config) { c.Unaligned = true }, true},
		"patient":           {func(c *Config) { c.Unaligned, c.AlignedTimeout = true, time.Hour }, false},
		"switches to it":    {func(c *Config) { c.Unaligned, c.AlignedTimeout = true, 30*time.Millisecond }, true},
		"not at-least-once": {func(c *Config) { c.Mode = AtLeastOnce }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSettled(t)
			c.set(&s.cfg)
			s.work = func(string) error { time.Sleep(time.Millisecond); return nil }
			for range 10 {
				s.put(100)
			}
			stop := s.start(s.plan(2), s.cfg)
			s.eventually(func() bool { return s.lag(s.app) == 0 && s.seen.Load() >= 1000 }, "all is processed")
			require.NoError(t, stop())
			unaligned, buffered, soonest := 0, int64(0), time.Hour
			for _, c := range s.done() {
				if c.Unaligned {
					unaligned++
					buffered += c.Buffered
					soonest = min(soonest, c.Alignment)
				}
			}
			require.Equal(t, c.unaligned, unaligned > 0)
			require.Equal(t, c.unaligned, buffered > 0, "records are part of the snapshot")
			if timeout := s.cfg.AlignedTimeout; unaligned > 0 && timeout > 0 {
				require.GreaterOrEqual(t, soonest, timeout, "it is aligned for so long")
				require.Less(t, soonest, 10*timeout, "and not longer")
			}
		})
	}
}

// Uncommitted state above its limit takes a checkpoint long before the interval is over.
func TestSettingUncommittedLimit(t *testing.T) {
	testbed.Alongside(t)
	for limit, early := range map[int64]bool{1 << 20: true, 1 << 30: false} {
		s := newSettled(t)
		s.cfg.UncommittedLimit, s.cfg.Interval = limit, 10*time.Minute
		stop := s.start(s.plan(0), s.cfg)
		s.put(1)
		s.eventually(func() bool { return len(s.done()) == 1 }, "the first checkpoint")
		s.putKeys(60_000, 1)
		s.eventually(func() bool { return s.seen.Load() == 60_001 }, "all is processed")
		is := func() bool {
			for _, c := range s.done() {
				if c.Reason == checkpoint.Early {
					return true
				}
			}
			return false
		}
		if early {
			s.eventually(is, "an early checkpoint")
		} else {
			time.Sleep(300 * time.Millisecond)
			require.False(t, is())
		}
		require.NoError(t, stop())
	}
}

// late is a committer whose commits wait.
type late struct {
	engine.Committer
	gate chan struct{}
}

func (l late) Commit(ctx context.Context, c checkpoint.Commit) error {
	<-l.gate
	return l.Committer.Commit(ctx, c)
}

// While a commit waits, output behind the barrier is held back, and processing stops when that is too much.
func TestSettingHoldBackLimit(t *testing.T) {
	testbed.Alongside(t)
	for limit, stops := range map[int64]bool{1 << 20: true, 1 << 30: false} {
		s := newSettled(t)
		s.cfg.HoldBackLimit = limit
		gate := make(chan struct{})
		s.cfg.Decorate = func(p *engine.Ports) { p.Committer = late{p.Committer, gate} }
		stop := s.start(s.plan(0), s.cfg)
		s.put(1)
		s.eventually(func() bool { return s.triggers() == 1 }, "a checkpoint whose commit waits")
		const records = 120_000
		for range 3 {
			s.putKeys(records/3, 1)
		}
		if stops {
			before := int64(-1)
			s.eventually(func() bool {
				now := s.seen.Load()
				still := now == before && now > 1
				before = now
				time.Sleep(300 * time.Millisecond)
				return still
			}, "back-pressure")
			require.Less(t, s.seen.Load(), int64(records/2))
		} else {
			s.eventually(func() bool { return s.seen.Load() == records+1 }, "nothing stops it")
		}
		close(gate)
		require.NoError(t, stop())
	}
}
