package txn

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
)

// either is what a Manager and a Plain have in common: all that the sink and the engine use.
type either interface {
	Init(context.Context) error
	ProduceBatch(context.Context, []kgo.Record) error
	Seal(context.Context, element.CheckpointID) error
	Reopen(context.Context) error
	Unanswered() int64
	Commit(context.Context, checkpoint.Commit) error
	CommitInitial(context.Context, checkpoint.Commit) error
	FenceGone(context.Context, []string, func(context.Context) ([]string, error)) ([]string, error)
	Abort(context.Context) error
	Close()
}

var _, _ either = (*Manager)(nil), (*Plain)(nil)

func (e *env) plain(change ...func(*Config)) *Plain {
	e.t.Helper()
	cfg := e.config()
	for _, f := range change {
		f(&cfg)
	}
	p, err := NewPlain(cfg)
	require.NoError(e.t, err)
	e.t.Cleanup(p.Close)
	require.NoError(e.t, p.Init(e.ctx))
	return p
}

func (e *env) records(values ...string) []kgo.Record {
	recs := make([]kgo.Record, len(values))
	for i, v := range values {
		recs[i] = kgo.Record{Topic: e.out, Partition: int32(i % 4), Key: []byte("k"), Value: []byte(v)}
	}
	return recs
}

// plainCheckpoint produces, seals and commits.
func (e *env) plainCheckpoint(p *Plain, id element.CheckpointID, values ...string) error {
	if err := p.ProduceBatch(e.ctx, e.records(values...)); err != nil {
		return err
	}
	if err := p.Seal(e.ctx, id); err != nil {
		return err
	}
	return p.Commit(e.ctx, e.commitOf(id, int64(id)*10, fmt.Sprintf("h%d", id)))
}

func (e *env) requireCommitted(id int64) {
	e.t.Helper()
	off, handle := e.committed()
	require.Equal(e.t, id*10, off)
	require.Equal(e.t, fmt.Sprintf("h%d", id), handle)
}

func TestPlainCheckpoints(t *testing.T) {
	e := newEnv(t)
	p := e.plain()
	initial := e.commitOf(0, 0, "h0")
	require.NoError(t, p.CommitInitial(e.ctx, initial))
	e.requireCommitted(0)
	require.NoError(t, e.plainCheckpoint(p, 1, "a", "b"))
	e.requireCommitted(1)
	require.Equal(t, []string{"a", "b"}, e.read(e.out))

	require.NoError(t, p.ProduceBatch(e.ctx, e.records("c")))
	require.NoError(t, p.Seal(e.ctx, 2))
	require.ElementsMatch(t, []string{"a", "b", "c"}, e.read(e.out), "output is there before the commit")
	require.NoError(t, p.ProduceBatch(e.ctx, e.records("d")), "nothing is held up by a seal")
	require.NoError(t, p.Commit(e.ctx, e.commitOf(2, 20, "h2")))
	e.requireCommitted(2)

	require.NoError(t, p.Seal(e.ctx, 3))
	require.NoError(t, p.Reopen(e.ctx))
	require.ErrorContains(t, p.Commit(e.ctx, e.commitOf(3, 30, "h3")), "not sealed")
	require.NoError(t, e.plainCheckpoint(p, 4, "e"))
	require.NoError(t, e.plainCheckpoint(p, 5), "a checkpoint without output needs no marker")
	e.requireCommitted(5)
	require.ElementsMatch(t, []string{"a", "b", "c", "d", "e"}, e.read(e.out))
	require.NoError(t, p.Init(e.ctx), "the client stays")
	e.mu.Lock()
	defer e.mu.Unlock()
	require.Equal(t, []int{0}, e.inits)
	var ended []string
	for _, s := range e.ended {
		ended = append(ended, fmt.Sprint(s.Checkpoint, " ", s.State, " ", s.Records))
	}
	require.Equal(t, []string{"0 committed 0", "1 committed 2", "2 committed 1", "4 committed 2", "5 committed 0"}, ended)
}

// TestPlainIsIdempotent: batches carry the producer's id and a sequence, so that one that is sent again is stored once.
func TestPlainIsIdempotent(t *testing.T) {
	e := newEnv(t)
	p := e.plain()
	require.NoError(t, e.plainCheckpoint(p, 1, "a", "b", "c", "d"))
	id, epoch, err := p.cl.ProducerID(e.ctx)
	require.NoError(t, err)
	require.GreaterOrEqual(t, id, int64(0))
	cl := e.newClient(kgo.ConsumeTopics(e.out), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for seen := 0; seen < 4; {
		fetches := cl.PollFetches(e.ctx)
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			seen++
			require.Equal(t, id, r.ProducerID, "%s", r.Value)
			require.Equal(t, epoch, r.ProducerEpoch)
		})
	}
}

func TestPlainRefusesWhatIsOutOfOrder(t *testing.T) {
	e := newEnv(t)
	p, err := NewPlain(e.config())
	require.NoError(t, err)
	require.ErrorIs(t, p.ProduceBatch(e.ctx, e.records("x")), ErrAborted)
	require.ErrorContains(t, p.Seal(e.ctx, 1), "before Init")
	require.ErrorContains(t, p.Reopen(e.ctx), "no client")
	require.ErrorContains(t, p.CommitInitial(e.ctx, e.commitOf(0, 0, "h")), "before Init")
	require.NoError(t, p.Abort(e.ctx))
	require.NoError(t, p.Init(e.ctx))
	require.ErrorContains(t, p.Commit(e.ctx, e.commitOf(1, 10, "h1")), "not sealed")
	require.NoError(t, p.Seal(e.ctx, 1))
	c := e.commitOf(1, 10, "h1")
	c.Permit = checkpoint.Permit{}
	require.Equal(t, fault.Stop, fault.RecoveryOf(p.Commit(e.ctx, c)))
	require.ErrorContains(t, p.Commit(e.ctx, e.commitOf(2, 20, "h2")), "not sealed")
	err = p.Commit(e.ctx, e.commitOf(1, 10, strings.Repeat("h", MaxHandle+1)))
	require.Equal(t, fault.Stop, fault.RecoveryOf(err))
	require.ErrorContains(t, err, "4097 bytes")
	require.NoError(t, p.Seal(e.ctx, 1))
	none := e.commitOf(1, 10, "h1")
	none.Offsets = nil
	require.ErrorContains(t, p.Commit(e.ctx, none), "no partition")
	off, _ := e.committed()
	require.Equal(t, int64(-1), off)
	p.Close()
	p.Close()
	require.ErrorIs(t, p.Init(e.ctx), ErrClosed)
	require.ErrorIs(t, p.ProduceBatch(e.ctx, e.records("x")), ErrClosed)
	_, err = NewPlain(Config{})
	require.Error(t, err)
}

// A Seal waits for what came before it, whatever a Seal before it was ended by, and not for what comes after it.
func TestPlainSealWaitsForWhatCameBefore(t *testing.T) {
	testbed.Alongside(t)
	e := newEnv(t)
	p := e.plain()
	require.NoError(t, e.plainCheckpoint(p, 1, "warm"))
	mute := make(chan struct{})
	rule := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Mute: mute})
	require.NoError(t, p.ProduceBatch(e.ctx, e.records("a")))
	short, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
	defer cancel()
	err := p.Seal(short, 2)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, fault.Restart, fault.RecoveryOf(err))
	sealed := make(chan error, 1)
	go func() { sealed <- p.Seal(e.ctx, 3) }()
	select {
	case err := <-sealed:
		require.Failf(t, "sealed with a record that is not acknowledged", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	rule.Remove()
	close(mute)
	require.NoError(t, <-sealed)
	require.NoError(t, p.Commit(e.ctx, e.commitOf(3, 30, "h3")))

	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // never lets the client run empty
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := p.ProduceBatch(e.ctx, e.records("b", "c", "d", "e")); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for id := element.CheckpointID(4); id < 14; id++ {
		require.NoError(t, e.plainCheckpoint(p, id, "f"))
	}
	close(stop)
	<-done
	e.requireCommitted(13)
}

// A record that is refused makes the checkpoint fail and the attempt begin again from the one before it: nothing is lost.
func TestPlainRefusedRecordFailsTheCheckpoint(t *testing.T) {
	for _, c := range []struct {
		name  string
		class fault.Recovery
		code  fault.Code
	}{{"refused", fault.Restart, fault.Failed}, {"fenced", fault.Restart, fault.Failed}, {"too large", fault.Stop, fault.BadRecord}, {"denied", fault.Stop, fault.Denied}} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnv(t)
			p := e.plain(func(c *Config) { c.TopicMaxBytes = func(string) (int32, bool) { return 1 << 20, true } })
			require.NoError(t, e.plainCheckpoint(p, 1, "one"))
			recs := e.records("two")
			switch c.name {
			case "too large":
				recs[0].Value = make([]byte, 2<<20)
			case "denied", "refused", "fenced":
				told := map[string]*kerr.Error{"denied": kerr.TopicAuthorizationFailed, "refused": kerr.InvalidRequest, "fenced": kerr.ProducerFenced}[c.name]
				rule := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Answer: testbed.Times(1, told)})
				defer rule.Remove()
			}
			require.NoError(t, p.ProduceBatch(e.ctx, recs))
			err := p.Seal(e.ctx, 2)
			require.Error(t, err)
			require.Equal(t, c.class, fault.RecoveryOf(err), "%v", err)
			require.Equal(t, c.code, fault.CodeOf(err))
			require.Error(t, p.ProduceBatch(e.ctx, e.records("x")), "until Init")
			require.Error(t, p.Seal(e.ctx, 3), "what failed cannot be left out")
			require.Error(t, p.Reopen(e.ctx))
			require.ErrorContains(t, p.Commit(e.ctx, e.commitOf(2, 20, "h2")), "not sealed")
			e.requireCommitted(1)
			require.NoError(t, p.Abort(e.ctx))
			require.NoError(t, p.Init(e.ctx))
			require.NoError(t, e.plainCheckpoint(p, 2, "two"))
			e.requireCommitted(2)
			require.ElementsMatch(t, []string{"one", "two"}, e.read(e.out))
		})
	}
}

// Abort lets out producers that wait for room, and the next attempt has a client of its own.
func TestPlainAbortLetsProducersOut(t *testing.T) {
	e := newEnv(t)
	p := e.plain(func(c *Config) { c.MaxBufferedRecords = 10 })
	require.NoError(t, e.plainCheckpoint(p, 1, "warm"))
	mute := make(chan struct{})
	rule := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Mute: mute})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for p.ProduceBatch(e.ctx, e.records("a", "b", "c", "d")) == nil {
			}
		})
	}
	require.Eventually(t, func() bool { return rule.Hits() > 0 && p.cl.BufferedProduceRecords() >= 10 }, 5*time.Second, time.Millisecond)
	require.NoError(t, p.Abort(e.ctx))
	wg.Wait()
	rule.Remove()
	close(mute)
	require.ErrorIs(t, p.ProduceBatch(e.ctx, e.records("x")), ErrAborted)
	require.NoError(t, p.Init(e.ctx))
	require.NoError(t, e.plainCheckpoint(p, 2, "two"))
	e.requireCommitted(2)
	require.Contains(t, e.read(e.out), "two")
}

// TestPlainLosesNothing is a small at-least-once application whose broker breaks connections, refuses records and is slow:
// after each failure it begins again from what the group says. Every input is in the output, and the group never stands
// in front of one that is missing.
func TestPlainLosesNothing(t *testing.T) {
	testbed.Alongside(t)
	e := newEnv(t)
	seed := rand.Uint64()
	if s := os.Getenv("REPLAY_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("replay: REPLAY_SEED=%d go test ./txn -run %s", seed, t.Name())
	rng := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	hit := func(n int) func(kmsg.Request) bool {
		return func(kmsg.Request) bool { mu.Lock(); defer mu.Unlock(); return rng.IntN(n) == 0 }
	}
	draw := func(n int) int { mu.Lock(); defer mu.Unlock(); return rng.IntN(n) }
	produced := 0
	once := func(kmsg.Request) bool { mu.Lock(); defer mu.Unlock(); produced++; return produced == 5 } // whatever is drawn
	p := e.plain(func(c *Config) { c.Timeout = 2 * time.Second })
	rules := []*testbed.Rule{
		e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, When: once, Answer: func(kmsg.Request) *kerr.Error { return kerr.InvalidRequest }}),
		e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, When: hit(40), Cut: true}),
		e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}, When: hit(4), Cut: true}),
		e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, When: hit(20), Answer: func(kmsg.Request) *kerr.Error { return kerr.InvalidRequest }}),
	}
	const inputs = 1500
	next, failures := int64(0), 0
	id := element.CheckpointID(0)
	attempt := func() error {
		for next < inputs {
			for range 1 + draw(40) {
				if next == inputs {
					break
				}
				rec := kgo.Record{Topic: e.out, Partition: int32(next % 4), Value: fmt.Append(nil, next)}
				if err := p.ProduceBatch(e.ctx, []kgo.Record{rec}); err != nil {
					return err
				}
				next++
			}
			id++
			if err := p.Seal(e.ctx, id); err != nil {
				return err
			}
			if err := p.Commit(e.ctx, e.commitOf(id, next, "h")); err != nil {
				return err
			}
		}
		return nil
	}
	for attempt() != nil {
		require.NoError(t, e.ctx.Err())
		failures++
		if draw(2) == 0 {
			require.NoError(t, p.Abort(e.ctx))
		}
		require.NoError(t, p.Init(e.ctx))
		off, _ := e.committed()
		next = max(0, off)
	}
	for _, r := range rules {
		r.Remove()
	}
	require.Positive(t, failures)
	off, _ := e.committed()
	require.Equal(t, int64(inputs), off)
	got := e.read(e.out)
	slices.Sort(got)
	require.Len(t, slices.Compact(got), inputs, "after %d failures", failures)
}

// A stable read waits for no one: there is no transaction.
func TestPlainLeavesNothingOpen(t *testing.T) {
	e := newEnv(t)
	p := e.plain()
	require.NoError(t, p.ProduceBatch(e.ctx, e.records("a")))
	require.NoError(t, p.Seal(e.ctx, 1))
	_, err := kafka.StableOffsets(e.ctx, e.admin, e.group, []element.TopicPartition{{Topic: e.in}})
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, e.read(e.out))
	fenced, err := p.FenceGone(e.ctx, []string{"i2"}, nil)
	require.NoError(t, err)
	require.Empty(t, fenced)
}

// An instance that made transactions, died inside one and comes back without them ends it.
func TestPlainEndsItsOwnTransactionOfBefore(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	require.NoError(t, e.checkpoint(m, 1, "one"))
	e.produce(m, "of the dead")
	require.NoError(t, m.Seal(e.ctx, 2))
	m.Close()
	p := e.plain()
	require.NoError(t, e.plainCheckpoint(p, 2, "two"))
	require.ElementsMatch(t, []string{"one", "two"}, e.read(e.out), "read fails if the transaction is still open")
	e.requireCommitted(2)
}

// A record that fails while a Seal waits ends the wait: the others may wait for a partition without a leader, for ever.
func TestPlainSealDoesNotWaitBehindAFailure(t *testing.T) {
	p := &Plain{}
	w := newWave(newPlainClient(nil, nil))
	w.pending.Add(2) // one is refused, the other one gets no answer
	w.release(1)
	p.older = []*wave{w}
	over := make(chan error, 1)
	go func() { over <- p.await(t.Context(), w.cl) }()
	time.Sleep(10 * time.Millisecond)
	w.answered(&kgo.Record{Topic: "out"}, kerr.InvalidRequest)
	select {
	case err := <-over:
		require.NoError(t, err)
		require.ErrorIs(t, w.cl.first.get().err, kerr.InvalidRequest)
	case <-time.After(5 * time.Second):
		require.Fail(t, "it waits for the other one")
	}
}

func BenchmarkPlainProduceBatch(b *testing.B) {
	p, err := NewPlain(Config{Application: "a", Instance: "i", Group: "a", Fence: func([]checkpoint.OffsetCommit) (string, int32, string, error) { return "", 0, "", nil }})
	require.NoError(b, err)
	p.cl = &plainClient{}
	p.cur = newWave(p.cl)
	b.ReportAllocs()
	for b.Loop() { // what a batch costs beside the client
		w, err := p.enter(500)
		if err != nil {
			b.Fatal(err)
		}
		w.release(500)
	}
}
