package store

import (
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// Random lives of several tasks: checkpoints, flushes, restarts, restores to other states. Whenever the copy says that it
// stands at a checkpoint, it is equal to the state there.
func TestLocalFollowsItsTasks(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("STORE_SEED"); v != "" {
		var err error
		seed, err = strconv.ParseUint(v, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("replay: STORE_SEED=%d go test ./store -run TestLocalFollowsItsTasks", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	cfg := LocalConfig{Dir: t.TempDir(), MinInterval: time.Hour, MinFreeBytes: -1, Logger: slog.New(slog.DiscardHandler)}
	open := func() *Local {
		l, err := OpenLocal(cfg)
		require.NoError(t, err)
		return l
	}
	l := open()
	var tasks []*localFixture
	begun := map[*localFixture]bool{}
	last := map[*localFixture]element.TaskID{}
	for i := range 3 {
		f := &localFixture{t: t, store: New(Config{})}
		f.table("a", "int64")
		f.table("b", "int64")
		tasks = append(tasks, f)
		last[f] = element.TaskID{Source: "s", Partition: int32(i)}
	}
	reused := 0
	for range 150 {
		f := tasks[rng.IntN(len(tasks))]
		task := last[f]
		switch rng.IntN(12) {
		case 0:
			require.NoError(t, l.Close())
			l = open()
			clear(begun)
		case 1, 2:
			require.NoError(t, l.Flush(t.Context()))
			if _, ok := l.Version(task); ok && begun[f] {
				requireCopy(t, l, task, f.store)
			}
		case 3: // a restore that finds another state
			f.store = New(Config{})
			for i := range rng.IntN(50) {
				f.table("b", "int64").Put([]byte{byte(i)}, []byte("restored"))
			}
			f.last += 10
			f.store.Freeze(element.CheckpointID(f.last))
			f.store.Commit(element.CheckpointID(f.last))
			f.table("a", "int64")
			begun[f] = false
		default:
			if !begun[f] {
				if l.Begin(task, version(f.last)) {
					reused++
				} else {
					require.NoError(t, l.Reset(t.Context(), task, version(f.last), f.store.Tables(), whole(f.store.Entries())))
				}
				begun[f] = true
			}
			for range rng.IntN(200) {
				tb := f.table([]string{"a", "b"}[rng.IntN(2)], "int64")
				if k := []byte{byte(rng.IntN(100))}; rng.IntN(3) == 0 {
					tb.Delete(k)
				} else {
					tb.Put(k, make([]byte, rng.IntN(100)))
				}
			}
			f.last++
			v := version(f.last)
			frozen := f.store.Freeze(v.Name.ID)
			l.Apply(task, v, frozen.Tables(), frozen.Entries())
			f.store.Commit(v.Name.ID)
		}
	}
	require.NoError(t, l.Close())
	require.Positive(t, reused)
	require.Zero(t, l.Stats().Failures)
}

func requireCopy(t *testing.T, l *Local, task element.TaskID, s *Store) {
	want, got := map[string]string{}, map[string]string{}
	s.All(func(tb int, k, v []byte) bool {
		want[s.Tables()[tb].Name+"/"+string(k)] = string(v)
		return true
	})
	require.NoError(t, l.Iterate(task, func(tb TableInfo, k, v []byte) bool {
		got[tb.Name+"/"+string(k)] = string(v)
		return true
	}))
	require.Equal(t, want, got)
}
