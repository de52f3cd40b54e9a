//go:build unix

package integration

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/verify"
)

// A process that dies with 100,000 keys of state is back with new committed output within two seconds of its new start,
// also with the default interval of one second.
func TestRealRestartInPlaceWithin2s(t *testing.T) {
	const keys, rounds, bound = 100_000, 5, 2 * time.Second
	s := realSite(t, 4)
	s.every = time.Second
	file := s.file(totals)
	s.orders(0, keys, keys)
	job := s.run(file)
	s.caughtUp(job)

	ctx, stop := context.WithCancel(s.ctx)
	trickle := make(chan int, 1)
	go func() { trickle <- s.trickle(ctx, keys, keys) }()
	var took []time.Duration
	for range rounds {
		s.awaitOutputFrom(job, nil)
		job.kill()
		// What the dead process had sealed may still become visible; what its successor writes lies behind these ends.
		ends, _ := s.ends(s.out)
		job = s.run(file)
		took = append(took, s.awaitOutputFrom(job, ends).Sub(job.started))
	}
	stop()
	produced := <-trickle
	s.caughtUp(job)
	r := s.exact(verify.Config{})
	require.EqualValues(t, keys+produced, r.RecordsIn+r.Filtered)
	job.stop()
	s.storeIsWhole()

	t.Logf("first new committed output after the start of the process: %v", rounded(took))
	slices.Sort(took)
	t.Logf("median %v, longest %v", rounded(took)[rounds/2], rounded(took)[rounds-1])
	require.Less(t, took[rounds/2], bound)
}

func rounded(in []time.Duration) (out []time.Duration) {
	for _, d := range in {
		out = append(out, d.Round(time.Millisecond))
	}
	return out
}

// trickle writes some 2000 orders per second until ctx ends and gives their number.
func (s *site) trickle(ctx context.Context, from, keys int) int {
	n := 0
	for ctx.Err() == nil {
		for range 20 {
			r := order(from+n, keys)
			r.Topic = s.in
			s.cl.Produce(s.ctx, r, nil)
			n++
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := s.cl.Flush(s.ctx); err != nil {
		return -1
	}
	return n
}

// awaitOutputFrom waits until a reader of committed records is handed a record at or behind the given ends, nil for those
// of now, and says when that was.
func (s *site) awaitOutputFrom(job *process, ends map[int32]int64) time.Time {
	s.t.Helper()
	if ends == nil {
		ends, _ = s.ends(s.out)
	}
	start := map[int32]kgo.Offset{}
	for p, end := range ends {
		start[p] = kgo.NewOffset().At(end)
	}
	cl, err := kafka.NewClient(s.kafka(), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(500*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.out: start}))
	require.NoError(s.t, err)
	defer cl.Close()
	ctx, cancel := context.WithTimeout(s.ctx, 20*time.Second)
	defer cancel()
	for {
		fetches := cl.PollFetches(ctx)
		at := time.Now()
		require.NoError(s.t, ctx.Err(), fmt.Sprintf("no committed output behind %v: %s", ends, job.stderr.tail(5)))
		require.NoError(s.t, fetches.Err())
		if fetches.NumRecords() > 0 {
			return at
		}
	}
}
