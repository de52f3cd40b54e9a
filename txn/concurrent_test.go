package txn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
)

func checkpointID(n uint64) element.CheckpointID { return element.CheckpointID(n) }

// committedPer reads both partitions, which need not agree.
func (e *env) committedPer() map[int32]string {
	e.t.Helper()
	tps := []element.TopicPartition{{Topic: e.in, Partition: 0}, {Topic: e.in, Partition: 1}}
	got, err := kafka.StableOffsets(e.ctx, e.admin, e.group, tps)
	require.NoError(e.t, err)
	out := map[int32]string{}
	for tp, c := range got {
		out[tp.Partition] = fmt.Sprint(c.Offset, " ", c.Metadata)
	}
	return out
}

func TestManyProducersOneTransaction(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	const tasks, batches, size = 8, 20, 25
	for id := range uint64(3) {
		var wg sync.WaitGroup
		for task := range tasks {
			wg.Go(func() {
				for b := range batches {
					recs := make([]kgo.Record, size)
					for i := range recs {
						recs[i] = kgo.Record{Topic: e.out, Partition: int32(task % 4), Value: fmt.Appendf(nil, "%d/%d/%d/%d", id, task, b, i)}
					}
					if err := m.ProduceBatch(e.ctx, recs); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, e.checkpoint(m, checkpointID(id+1)))
	}
	require.Len(t, e.read(e.out), 3*tasks*batches*size)
	require.Len(t, e.ended, 3, "each begin was done once")
	for _, s := range e.ended {
		require.Equal(t, int64(tasks*batches*size), s.Records)
	}
}

// TestFirstCommitOnANewTopicIsReal takes the first commit of many clients: without client.settle one in a few hundred
// was turned into an abort and reported as a success (seen with -race on a busy machine).
func TestFirstCommitOnANewTopicIsReal(t *testing.T) {
	e := newEnv(t)
	var want []string
	id := uint64(0)
	for i := range 15 {
		m := e.manager(func(c *Config) { c.Instance = fmt.Sprint("new", i) })
		for range DefaultSlots {
			id++
			want = append(want, fmt.Sprint("v", id))
			require.NoError(t, e.checkpoint(m, checkpointID(id), fmt.Sprint("v", id)))
			off, h := e.committed()
			require.Equal(t, fmt.Sprint(id*10, " h", id), fmt.Sprint(off, " ", h))
		}
		m.Close()
	}
	require.Equal(t, want, e.read(e.out))
}

func TestAbortWhileProducersWaitForRoom(t *testing.T) {
	testbed.Alongside(t)
	e := newEnv(t)
	m := e.manager(func(c *Config) { c.MaxBufferedRecords = 10 })
	// Produce requests take their time, so that the buffer stays full.
	e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Before: func(kmsg.Request) error {
		time.Sleep(20 * time.Millisecond)
		return nil
	}})
	var wg sync.WaitGroup
	var aborted atomic.Int32
	for range 4 {
		wg.Go(func() {
			for {
				recs := make([]kgo.Record, 100)
				for i := range recs {
					recs[i] = kgo.Record{Topic: e.out, Value: []byte("x")}
				}
				if err := m.ProduceBatch(e.ctx, recs); err != nil {
					if errors.Is(err, ErrAborted) || errors.Is(err, kgo.ErrAborting) {
						aborted.Add(1)
					} else {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	require.NoError(t, m.Abort(e.ctx))
	wg.Wait()
	require.Equal(t, int32(4), aborted.Load())
	require.NoError(t, e.checkpoint(m, 1, "after"))
	require.Equal(t, []string{"after"}, e.read(e.out))
}

func TestSealGivesUpWithItsContextAndAborts(t *testing.T) {
	testbed.Alongside(t)
	e := newEnv(t)
	m := e.manager()
	release := make(chan struct{})
	e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Before: func(kmsg.Request) error {
		<-release
		return nil
	}})
	e.produce(m, "slow")
	ctx, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
	defer cancel()
	time.AfterFunc(300*time.Millisecond, func() { close(release) })
	require.ErrorIs(t, m.Seal(ctx, 1), context.DeadlineExceeded)
	require.NoError(t, e.checkpoint(m, 2, "next"))
	require.Equal(t, []string{"next"}, e.read(e.out))
}

func TestCommitSurvivesTheEndOfItsContext(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	e.produce(m, "a")
	require.NoError(t, m.Seal(e.ctx, 1))
	ctx, cancel := context.WithCancel(e.ctx)
	e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.EndTxn}, Before: func(kmsg.Request) error {
		cancel() // the process is being stopped while EndTxn is on the way
		time.Sleep(50 * time.Millisecond)
		return nil
	}})
	require.NoError(t, m.Commit(ctx, e.commitOf(1, 10, "h1")))
	_, h := e.committed()
	require.Equal(t, "h1", h)
}

func TestInitTakesOverWhatAPredecessorLeftOpen(t *testing.T) {
	e := newEnv(t)
	dead := e.manager()
	e.produce(dead, "lost")
	require.NoError(t, dead.Seal(e.ctx, 1))
	dead.Close() // a crash: nothing is aborted
	require.ErrorIs(t, dead.Init(e.ctx), ErrClosed)
	require.ErrorIs(t, dead.ProduceBatch(e.ctx, []kgo.Record{{Topic: e.out}}), ErrClosed)
	dead.Close()
	m := e.manager()
	require.Empty(t, e.read(e.out), "and no transaction is open")
	require.NoError(t, e.checkpoint(m, 1, "again"))
	require.Equal(t, []string{"again"}, e.read(e.out))
	inits := len(e.inits)
	require.NoError(t, m.Init(e.ctx))
	require.Len(t, e.inits, inits, "all slots are usable: nothing to do")
}

func TestInitFailsWithItsContext(t *testing.T) {
	e := newEnv(t)
	cfg := e.config()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	cfg.Kafka.Brokers = []string{addr}
	m, err := NewManager(cfg)
	require.NoError(t, err)
	defer m.Close()
	ctx, cancel := context.WithTimeout(e.ctx, 200*time.Millisecond)
	defer cancel()
	require.Error(t, m.Init(ctx))
}

func TestBrokenConnectionsDoNotBreakATransaction(t *testing.T) {
	testbed.Alongside(t)
	e := newEnv(t)
	m := e.manager()
	// Before the broker has it, and after: the records must be there once.
	var n, answers atomic.Int32
	before := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Before: func(kmsg.Request) error {
		if n.Add(1) == 1 {
			return errors.New("connection cut")
		}
		return nil
	}})
	require.NoError(t, e.checkpoint(m, 1, "a", "b"))
	require.GreaterOrEqual(t, before.Hits(), 2)
	cut := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, When: func(kmsg.Request) bool { return answers.Add(1) == 1 }, Cut: true})
	require.NoError(t, e.checkpoint(m, 2, "c", "d"))
	require.Positive(t, cut.Hits())
	require.ElementsMatch(t, []string{"a", "b", "c", "d"}, e.read(e.out))
}
