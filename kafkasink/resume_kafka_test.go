package kafkasink

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// TestGivenUpCheckpointsOnABroker runs tasks against a broker while checkpoints are given up before and after their seal,
// alone and with a newer one. A read_committed reader sees each record once and in order; nothing of a checkpoint that
// was given up shows before the next one's commit.
func TestGivenUpCheckpointsOnABroker(t *testing.T) {
	b := newBroker(t)
	s := b.sink(t, 1<<20)
	const tasks, rounds, perEpoch = 4, 12, 20
	rng := rand.New(rand.NewPCG(8, 15))
	barriers := make([]chan element.CheckpointID, tasks)
	passed := make(chan struct{}, tasks)
	written := make([]int, tasks)
	var wg sync.WaitGroup
	for i := range barriers {
		barriers[i] = make(chan element.CheckpointID, 2)
		w := s.Writer(task(int32(i)))
		wg.Go(func() {
			for id := range barriers[i] {
				w.Barrier(id)
				passed <- struct{}{}
				for range perEpoch {
					written[i]++
					if err := w.Write(b.ctx, 0, []element.Record{{Key: fmt.Appendf(nil, "key-%d", i), Value: fmt.Append(nil, written[i])}}); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	trigger := func(id element.CheckpointID) {
		for _, c := range barriers {
			c <- id
		}
		for range tasks {
			<-passed
		}
	}
	id := element.CheckpointID(0)
	commits := 0
	for round := range rounds {
		id++
		trigger(id)
		switch how := rng.IntN(4); {
		case round == rounds-1 || how == 0: // committed, with a newer one that is given up meanwhile
			require.NoError(t, s.Seal(b.ctx, id))
			id++
			trigger(id)
			require.NoError(t, s.Resume(b.ctx, id, id))
			require.NoError(t, b.commit(id-1))
			require.NoError(t, s.Release(id-1))
			commits++
		case how == 1:
			require.NoError(t, s.Resume(b.ctx, id, id))
		default:
			require.NoError(t, s.Seal(b.ctx, id))
			id++
			trigger(id)
			require.NoError(t, s.Resume(b.ctx, id-1, id))
			require.Error(t, b.commit(id-1), "it is not sealed any more")
		}
	}
	require.Positive(t, commits)
	for _, c := range barriers {
		close(c)
	}
	wg.Wait()
	for i := range tasks {
		s.Writer(task(int32(i))).Barrier(id + 1)
	}
	require.NoError(t, s.Seal(b.ctx, id+1))
	require.NoError(t, b.commit(id+1))
	require.NoError(t, s.Release(id+1))
	total := 0
	for _, n := range written {
		total += n
	}
	got := b.read(t, b.out, total)
	for i, n := range written {
		want := make([]string, n)
		for k := range want {
			want[k] = fmt.Sprint(k + 1)
		}
		require.Equal(t, want, got[fmt.Sprintf("key-%d", i)])
	}
	require.Len(t, got, tasks)
}
