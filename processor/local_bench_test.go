package processor

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
