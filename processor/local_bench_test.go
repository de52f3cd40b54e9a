package processor

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/store"
)

// cpuTime is what the process has used so far, on all cores.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkKeeper says what a checkpoint with 100,000 changed keys costs: reading it, and reading and writing it.
func BenchmarkKeeper(b *testing.B) {
	for _, write := range []bool{false, true} {
		b.Run(fmt.Sprintf("write=%t", write), func(b *testing.B) {
			l := newLine(b)
			l.pace.every, l.pace.flush = time.Hour, time.Hour
			l.checkpoint(changes{task0: many(100_000, "12345678")})
			l.start()
			l.announce()
			l.stop(time.Minute) // builds it
			l.start()
			defer l.stop(0)
			k := l.keeper
			l.announce()
			k.meet()
			close(k.closing) // no pauses
			<-k.done
			require.NoError(b, l.local.Flush(context.Background()))
			b.ResetTimer()
			var cpu time.Duration
			for range b.N {
				b.StopTimer()
				l.checkpoint(changes{task0: many(100_000, fmt.Sprintf("%08d", l.id))})
				runtime.GC()
				b.StartTimer()
				before := cpuTime()
				k.follow()
				if write {
					require.NoError(b, l.local.Flush(context.Background()))
				}
				cpu += cpuTime() - before
			}
			b.ReportMetric(float64(cpu.Microseconds())/1000/float64(b.N), "cpu-ms/op")
			v, ok := l.local.Version(task0)
			require.True(b, ok)
			require.Equal(b, versionOf(*l.root, l.entries[task0]), v)
			b.StopTimer()
			k.closing = make(chan struct{})
		})
	}
}

// BenchmarkRestore says how long the restore of a task with 1,000,000 keys takes from the copy and from the files, both
// warm in memory, into an empty store.
func BenchmarkRestore(b *testing.B) {
	l := newLine(b)
	l.pace.every, l.pace.flush = time.Hour, time.Hour
	l.checkpoint(changes{task0: many(1_000_000, "12345678")})
	l.merge(task0, 1)
	l.checkpoint(changes{})
	l.pace.high = 1 << 40
	l.start()
	l.announce()
	l.stop(10 * time.Minute) // builds it
	began := time.Now()
	l.start()
	b.Logf("opening the database took %v", time.Since(began))
	defer l.stop(0)
	entry := l.entries[task0]
	for _, from := range []string{"copy", "files"} {
		b.Run(from, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				s := state{store.New(store.Config{})}
				for _, info := range entry.States {
					_, err := s.Table(info.Name, info.Codec)
					require.NoError(b, err)
				}
				runtime.GC()
				b.StartTimer()
				if from == "copy" {
					stats, ok := l.keeper.Restore(b.Context(), *l.root, entry, s.Load)
					require.True(b, ok)
					require.Zero(b, stats.Bytes())
				} else {
					_, err := l.repo.Restore(b.Context(), entry, nil, s.Load)
					require.NoError(b, err)
				}
				require.Equal(b, 1_000_000, s.Len())
			}
		})
	}
}
