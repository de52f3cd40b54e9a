package engine

import (
	"context"
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
