//go:build unix

package integration

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/processor"
)

// sent notes the requests of a service that matter for the order of a recovery.
type sent struct {
	mu   sync.Mutex
	keys []kmsg.Key
}

func (l *sent) watch(tap *testbed.Tap) {
	tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.InitProducerID, kmsg.OffsetFetch, kmsg.Produce}, Before: func(r kmsg.Request) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.keys = append(l.keys, kmsg.Key(r.Key()))
		return nil
	}})
}

func (l *sent) after(n int) []kmsg.Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.keys[n:])
}

// Somebody else initialises the id of the open transaction: the service stops using it, reads the committed offsets, and
// only then writes again; it does not fight for the id.
func outsideInit(s *site) {
	s.every = 500 * time.Millisecond
	var tap testbed.Tap
	var requests sent
	requests.watch(&tap)
	job := s.inside(s.file(counts), func(c *processor.Config) { c.ClientOptions = []kgo.Opt{tap.Opt()} })
	s.tell(100)
	job.caughtUp()

	n := 100
	var id string
	job.until(20*time.Second, func() bool { // a transaction stays open for half a second
		s.tell(1)
		n++
		id = s.ongoing("")
		return id != ""
	}, "a transaction is open")
	before, began := len(requests.after(0)), time.Now()
	other, err := kgo.NewClient(kgo.SeedBrokers(s.brokers...), kgo.TransactionalID(id))
	require.NoError(s.t, err)
	defer other.Close()
	_, _, err = other.ProducerID(s.ctx)
	require.NoError(s.t, err)
	job.until(10*time.Second, func() bool {
		s.tell(1)
		n++
		return len(job.failed()) > 0
	}, "the service notices")
	s.tell(100)
	n += 100
	job.caughtUp()

	require.Len(s.t, job.failed(), 1)
	require.ErrorContains(s.t, job.failed()[0], "another process uses the same instance id, or the transaction timed out")
	time.Sleep(time.Until(began.Add(10 * time.Second)))
	keys := requests.after(before)
	inits := slices.DeleteFunc(slices.Clone(keys), func(k kmsg.Key) bool { return k != kmsg.InitProducerID })
	require.NotEmpty(s.t, inits)
	require.LessOrEqual(s.t, len(inits), 5, "in 10 s")
	// What was on its way when it noticed may come before the new id; nothing is written between it and the read.
	keys = keys[slices.Index(keys, kmsg.InitProducerID):]
	fetch := slices.Index(keys, kmsg.OffsetFetch)
	require.Positive(s.t, fetch, "the offsets are read after the id is there")
	require.NotContains(s.t, keys[:fetch], kmsg.Produce, "and before anything is written")
	require.Contains(s.t, keys[fetch:], kmsg.Produce)
	job.stop()
	require.Empty(s.t, job.failed()[1:])
	s.countedOnce(n)
}

func TestC05_AnotherProducerTakesTheID(t *testing.T) {
	t.Parallel()
	outsideInit(fakeSite(t, 2))
}

func TestC05_RealAnotherProducerTakesTheID(t *testing.T) { outsideInit(realSite(t, 2)) }

// The broker asks for an abort, or has forgotten the id, in each step of a commit: each time one abort, a rewind of the
// state in memory to the last commit, and a retry inside of the running process. No file is read again, and a restart
// strategy that allows no restart does not see it. No healthy broker can be made to answer so: the connections of the service are tapped.
func abortableInEachStep(t *testing.T, parallel bool, site func(*testing.T) *site) {
	for _, e := range []*kerr.Error{kerr.TransactionAbortable, kerr.InvalidProducerIDMapping} {
		for _, step := range []kmsg.Key{kmsg.Produce, kmsg.TxnOffsetCommit, kmsg.EndTxn} {
			t.Run(e.Message+" on "+step.Name(), func(t *testing.T) {
				if parallel {
					t.Parallel()
				}
				abortable(site(t), step, e)
			})
		}
	}
}

func abortable(s *site, step kmsg.Key, e *kerr.Error) {
	t := s.t
	var tap testbed.Tap
	job := s.inside(s.file(counts), func(c *processor.Config) {
		c.ClientOptions, c.Restart = []kgo.Opt{tap.Opt()}, restart.Config{Strategy: restart.None}
	})
	s.tell(100)
	job.caughtUp()
	commit := func(r kmsg.Request) bool {
		end, ok := r.(*kmsg.EndTxnRequest)
		return !ok || end.Commit
	}
	h := tap.Add(&testbed.Rule{Keys: []kmsg.Key{step}, When: commit, Answer: testbed.Times(1, e)})
	ends := tap.Watch(func(r kmsg.Request) bool {
		end, ok := r.(*kmsg.EndTxnRequest)
		return !ok || !end.Commit
	}, kmsg.EndTxn, kmsg.InitProducerID)
	s.tell(100)
	job.until(20*time.Second, func() bool { return h.Told() > 0 && len(job.failed()) > 0 }, "the error is met")
	job.caughtUp()
	require.Equal(t, 1, h.Told())
	require.Len(t, job.failed(), 1, "one abort, one retry: %v", job.failed())
	require.ErrorIs(t, job.failed()[0], e)
	require.Equal(t, 1, job.lost())
	require.Positive(t, ends.Hits(), "the transaction is ended, by an abort or by a new client of its id")
	s.tell(100)
	job.caughtUp()
	require.Len(t, job.failed(), 1)
	require.Zero(t, job.restored, "the state was rolled back in memory")
	require.Equal(t, 2, job.reused)
	job.stop()
	s.countedOnce(300)
}

func TestC05_AbortableAndForgottenInEachStep(t *testing.T) {
	abortableInEachStep(t, true, func(t *testing.T) *site { return fakeSite(t, 2) })
}

func TestC05_RealAbortableAndForgottenInEachStep(t *testing.T) {
	abortableInEachStep(t, false, func(t *testing.T) *site { return realSite(t, 2) })
}

// The broker has forgotten the transactional ids of a service that had nothing to do for long. It goes on with new ones,
// after one restart within the process at most, though it has several ids in turn. That is no failure: a restart strategy
// that allows none does not see it. (The embedded broker answers as if a transaction had gone wrong.)
func forgottenIDs(s *site, more ...string) {
	const idle = 20 * time.Second // an id is forgotten after 5 s
	s.every = 500 * time.Millisecond
	file := s.file(counts, append(more, "timeout: 5s", "timeout: 4s", "{{.TransactionTimeout}}", "10s")...)
	job := s.run(file)
	s.tell(10)
	s.caughtUp(job)
	time.Sleep(idle)
	for range 10 { // more commits than there are ids
		s.tell(1)
		s.caughtUp(job)
	}
	require.LessOrEqual(s.t, job.restarts(), 1, "%s", job.stderr.tail(5))
	job.stop()
	s.countedOnce(20)
}

func TestC05_ForgottenTransactionalIDs(t *testing.T) {
	t.Parallel()
	forgottenIDs(fakeSite(t, 1, kfake.BrokerConfigs(map[string]string{"transactional.id.expiration.ms": "5000"})))
}

func TestC05_RealForgottenTransactionalIDs(t *testing.T) {
	forgottenIDs(harshSite(t, 1), "group:", "restart-strategy: {type: none}\ngroup:")
}
