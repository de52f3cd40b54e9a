package engine

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// slowReads is a checkpoint directory whose second reader waits.
type slowReads struct {
	Checkpoints
	reads *atomic.Int64
	wait  func(context.Context) error
}

func (s slowReads) LoadRoots(ctx context.Context, refs []snapshot.RootRef) (map[snapshot.RootRef]snapshot.LoadedRoot, error) {
	if s.reads.Add(1) == 2 {
		if err := s.wait(ctx); err != nil {
			return nil, err
		}
	}
	return s.Checkpoints.LoadRoots(ctx, refs)
}

// tellingSource says when it has stopped.
type tellingSource struct {
	Source
	stopped func()
}

func (s tellingSource) Run(ctx context.Context, deliver func(context.Context, element.Delivery) error) error {
	defer s.stopped()
	return s.Source.Run(ctx, deliver)
}

// A partition that comes when all others have ended is read as well, however far its restore is when the last checkpoint is
// taken, and whoever has it while the group is being shared out. What others have is left to them.
func TestABoundedRunReadsWhatComesAtItsEnd(t *testing.T) {
	const atStart, atSeal, atEnd, never = "start", "seal", "end", "never"
	for _, c := range []struct {
		name   string
		gained string
		ready  bool // before the last checkpoint is complete
	}{
		{"taken in during the last checkpoint", atStart, true},
		{"not taken in before the last checkpoint", atStart, false},
		{"assigned during the last checkpoint", atSeal, true},
		{"assigned behind the last checkpoint", atEnd, true},
		{"of another instance", never, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			w.produce(200, 10)
			w.assign(1)
			for p := range int32(2) {
				w.ends[tp(p)] = 100
			}
			var once sync.Once
			gain := func(when string) {
				if when == c.gained {
					once.Do(func() {
						w.mu.Lock()
						defer w.mu.Unlock()
						w.gain(func(yield func(int32) bool) { yield(1) })
					})
				}
			}
			stopped, read := make(chan struct{}), make(chan struct{})
			var reads, seals, asked atomic.Int64
			w.wrap = func(cp Checkpoints) Checkpoints {
				return slowReads{cp, &reads, func(ctx context.Context) error {
					wait := stopped
					if !c.ready {
						wait = nil
					}
					defer close(read)
					select {
					case <-wait:
					case <-ctx.Done():
					}
					return ctx.Err()
				}}
			}
			w.onSeal = func(element.CheckpointID) error {
				if !isClosed(stopped) || seals.Add(1) > 1 {
					return nil
				}
				if gain(atSeal); c.gained == atStart && c.ready {
					<-read
				}
				time.Sleep(20 * time.Millisecond) // the loop hears of it
				return nil
			}
			ports := w.ports()
			stop := sync.OnceFunc(func() { close(stopped) })
			ports.NewSource = func(p []element.Position) (Source, error) {
				src, err := w.ports().NewSource(p)
				return tellingSource{src, stop}, err
			}
			ports.OthersHave = func(context.Context) ([]element.TopicPartition, error) {
				if c.gained == never {
					return []element.TopicPartition{tp(1)}, nil
				}
				if asked.Add(1) == 1 {
					time.AfterFunc(10*time.Millisecond, func() { gain(atEnd) })
				}
				return nil, nil
			}
			var over []bool
			cfg := w.config()
			cfg.Interval = time.Hour
			r, err := New(boundedPlan(t, 0), cfg, ports, &Listener{
				AttemptStarted: func(AttemptInfo) { gain(atStart) },
				Finished:       func(o bool) { over = append(over, o) },
			})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			require.NoError(t, r.Run(ctx))
			require.NoError(t, ctx.Err(), "it ended by itself")
			require.Equal(t, []bool{c.gained != never}, over)
			if c.gained == never {
				require.Equal(t, 100, w.done())
				return
			}
			require.Equal(t, 200, w.done())
			w.exact()
		})
	}
}

// Where the group has given a partition to nobody yet, the last instance that has ended waits for it, until it is told to stop
// or somebody has it.
func TestABoundedRunWaitsForWhatNobodyHas(t *testing.T) {
	for _, taken := range []bool{false, true} {
		w := newWorld(t, 2)
		w.produce(200, 10)
		w.assign(1)
		ports := w.ports()
		waits, over := make(chan []element.TopicPartition, 10), make(chan bool, 1)
		var others atomic.Bool
		ports.OthersHave = func(context.Context) ([]element.TopicPartition, error) {
			if others.Load() {
				return []element.TopicPartition{tp(1)}, nil
			}
			return nil, nil
		}
		w.ends[tp(0)], w.ends[tp(1)] = 100, 100
		stop := w.startPlan(boundedPlan(t, 0), w.config(), ports, &Listener{
			Unassigned: func(tps []element.TopicPartition) { waits <- tps },
			Finished:   func(o bool) { over <- o },
		})
		select {
		case tps := <-waits:
			require.Equal(t, []element.TopicPartition{tp(1)}, tps)
			st, err := w.r.Status(t.Context())
			require.NoError(t, err)
			require.Equal(t, Running, st.State, "it may wait for long, and puts nothing away")
		case <-over:
			t.Fatal("it has ended, and nobody has read what is left")
		}
		if others.Store(taken); taken {
			require.False(t, <-over)
		}
		require.NoError(t, stop())
		require.Empty(t, over)
		require.Equal(t, 100, w.done())
	}
}

// The last partition that has not ended goes to another instance: what is left here is over, and so is the run of this
// instance, whether it had ended before that or ends while the last checkpoint of what leaves is taken.
func TestABoundedRunIsOverWhenWhatHasNotEndedLeaves(t *testing.T) {
	for name, late := range map[string]bool{"ended before": false, "ends meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			w.ends[tp(0)], w.ends[tp(1)] = 100, 1<<40
			w.produce(150, 10)
			var leaving atomic.Bool
			sealing := make(chan struct{})
			w.onSeal = func(element.CheckpointID) error {
				if leaving.CompareAndSwap(true, false) {
					close(sealing)
					time.Sleep(20 * time.Millisecond) // the loop hears that the partition is to leave
					w.produce(30, 10)
					time.Sleep(20 * time.Millisecond) // and of the other one's end
				}
				return nil
			}
			ports := w.ports()
			ports.OthersHave = func(context.Context) ([]element.TopicPartition, error) { return []element.TopicPartition{tp(1)}, nil }
			over := make(chan bool, 1)
			stop := w.startPlan(boundedPlan(t, 0), w.config(), ports, &Listener{Finished: func(o bool) { over <- o }})
			w.caughtUp()
			if leaving.Store(late); !late {
				w.produce(50, 10)
				w.caughtUp()
			} else {
				w.produce(20, 10)
				<-sealing
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			w.r.Revoke(ctx, []element.TopicPartition{tp(1)})
			require.NoError(t, ctx.Err())
			w.mu.Lock()
			w.lose(1)
			w.mu.Unlock()
			select {
			case o := <-over:
				require.False(t, o, "another instance has the rest")
			case <-ctx.Done():
				require.Fail(t, "it idles")
			}
			require.NoError(t, stop())
			require.EqualValues(t, 100, w.committed[tp(0)].Offset)
			require.EqualValues(t, 100+w.committed[tp(1)].Offset, w.done(), "what is behind its last barrier is the other one's")
		})
	}
}

// An end that comes behind the halt is dropped with the records before it: it is the next owner's.
func TestAHaltedInboxDropsTheEnd(t *testing.T) {
	q := newInbox(10)
	q.halt()
	require.True(t, popNow(t, q).halted)
	hand(q, element.Delivery{From: tp(0), Records: make([]element.Record, 1), Next: 1, Ended: true})
	_, ok := takeAny(q)
	require.False(t, ok)
}

// An end that is reached behind the barrier of the last checkpoint is not covered by it. A stop that does not come about, since
// its savepoint cannot be written, leaves that to the next attempt.
func TestAnEndBehindTheLastBarrierIsNotTheEndOfTheRun(t *testing.T) {
	w := newWorld(t, 1)
	w.ends[tp(0)] = 200
	w.produce(200, 10)
	boundedPace.Store(int64(5 * time.Millisecond))
	defer boundedPace.Store(0)
	var asked atomic.Bool
	w.onSeal = func(element.CheckpointID) error {
		if asked.Load() && boundedPace.Swap(0) > 0 {
			time.Sleep(100 * time.Millisecond) // it comes to its end
		}
		return nil
	}
	cfg := w.config()
	cfg.Interval = time.Hour
	var opened, attempts atomic.Int64
	over := make(chan bool, 1)
	r, err := New(boundedPlan(t, 0), cfg, withSavepoints(w.ports(), &opened), &Listener{
		AttemptStarted: func(AttemptInfo) { attempts.Add(1) },
		Finished:       func(o bool) { over <- o },
	})
	require.NoError(t, err)
	stop := w.run(r)
	require.Eventually(t, func() bool { return r.running.Load() != nil }, patient, time.Millisecond)
	time.Sleep(20 * time.Millisecond) // some of them
	asked.Store(true)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	wait, err := r.StopWithSavepoint(t.Context(), "", file)
	require.NoError(t, err)
	_, err = wait(t.Context())
	require.ErrorContains(t, err, "savepoint directory "+file)
	require.True(t, <-over, "all is read and committed")
	require.NoError(t, stop())
	require.EqualValues(t, 2, attempts.Load())
	require.Equal(t, 200, w.done())
	w.exact()
}
