//go:build unix

package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/internal/verify"
	"github.com/millweir/millweir/processor"
)

// The answers that a broker may give to each step of a commit: those that pass, with which a request is sent again, and
// those that end the attempt.
var (
	coordinatorMoves = []*kerr.Error{kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.ConcurrentTransactions}

	passing = map[kmsg.Key][]*kerr.Error{
		kmsg.Produce:         {kerr.NotLeaderForPartition, kerr.NotEnoughReplicas, kerr.ConcurrentTransactions},
		kmsg.TxnOffsetCommit: append([]*kerr.Error{kerr.IllegalGeneration}, coordinatorMoves...),
		kmsg.EndTxn:          coordinatorMoves,
		kmsg.InitProducerID:  coordinatorMoves,
	}
	ending = map[kmsg.Key][]*kerr.Error{
		kmsg.Produce:         {kerr.TransactionAbortable, kerr.InvalidTxnState, kerr.InvalidProducerEpoch},
		kmsg.TxnOffsetCommit: {kerr.TransactionAbortable, kerr.InvalidTxnState, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.UnknownMemberID, kerr.RequestTimedOut},
		kmsg.EndTxn:          {kerr.TransactionAbortable, kerr.InvalidTxnState, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.UnknownServerError, kerr.RequestTimedOut},
		kmsg.InitProducerID:  {kerr.TransactionAbortable, kerr.ProducerFenced},
	}
	stepsOfACommit = []kmsg.Key{kmsg.Produce, kmsg.TxnOffsetCommit, kmsg.EndTxn, kmsg.InitProducerID}
)

// liar tells a service at random that a request was not done: instead of handing it to the broker, or after the broker has
// done it. Which request of each kind is lied about is a function of the seed.
type liar struct {
	mu   sync.Mutex
	draw map[string]*rand.Rand
	seed uint64
	hard int // errors that may still come of those that end an attempt
	told map[string]int
}

func newLiar(seed uint64, hard int) *liar {
	return &liar{seed: seed, hard: hard, draw: map[string]*rand.Rand{}, told: map[string]int{}}
}

// about draws whether a request of a kind is lied about, and how.
func (l *liar) about(step kmsg.Key, how string) *kerr.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := step.Name() + " " + how
	rnd := l.draw[name]
	if rnd == nil {
		rnd = rand.New(rand.NewPCG(l.seed, uint64(step)<<8|uint64(len(how))))
		l.draw[name] = rnd
	}
	at, which := rnd.IntN(100), int(rnd.Uint32()>>1)
	pass, hard := 15, 4 // of a hundred
	if step == kmsg.Produce {
		pass, hard = 3, 1
	}
	var e *kerr.Error
	switch {
	case at < pass:
		e = passing[step][which%len(passing[step])]
	case at < pass+hard && l.hard > 0:
		l.hard--
		e = ending[step][which%len(ending[step])]
	default:
		return nil
	}
	l.told[name+" "+e.Message]++
	return e
}

// lie puts the liar into the connections of a service, together with some cuts.
func (l *liar) lie(tap *testbed.Tap) (end func()) {
	var rules []*testbed.Rule
	for _, step := range stepsOfACommit {
		rules = append(rules,
			tap.Add(&testbed.Rule{Keys: []kmsg.Key{step}, Answer: func(kmsg.Request) *kerr.Error { return l.about(step, "not done") }}),
			tap.Add(&testbed.Rule{Keys: []kmsg.Key{step}, Rewrite: func(kmsg.Request) *kerr.Error { return l.about(step, "done") }}))
	}
	cuts := rand.New(rand.NewPCG(l.seed, 1))
	rules = append(rules, tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.EndTxn, kmsg.TxnOffsetCommit}, Cut: true, When: func(r kmsg.Request) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		cut := cuts.IntN(100) < 2
		if cut {
			l.told[kmsg.Key(r.Key()).Name()+" cut"]++
		}
		return cut
	}}))
	return func() {
		for _, r := range rules {
			r.Remove()
		}
	}
}

// lies counts the lies, all of them and those with an error.
func (l *liar) lies() (all int, list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, n := range l.told {
		all += n
		list = append(list, fmt.Sprintf("%s %d", name, n))
	}
	slices.Sort(list)
	return all, list
}

// answersAtRandom runs a job on lies in a number of lives, each of which ends in order, since the pauses between attempts
// grow within one. All that comes out is exact.
func answersAtRandom(s *site, records, lives, hard int, over time.Duration) {
	t := s.t
	const keys = 1000
	seed := killSeed(t)
	s.every = 100 * time.Millisecond
	file := s.file(totals)
	lies, failures, began := 0, 0, time.Now()
	for life := range lives {
		var tap testbed.Tap
		job := s.inside(file, func(c *processor.Config) { c.ClientOptions = []kgo.Opt{tap.Opt()} })
		l := newLiar(seed+uint64(life), hard)
		end := l.lie(&tap)
		from, to := records*life/lives, records*(life+1)/lives
		plan := killPlan{records: to - from, keys: keys, record: func(i, keys int) *kgo.Record { return order(from+i, keys) }}
		require.NoError(t, s.stream(s.ctx, plan, evenly(over)))
		job.until(2*time.Minute, func() bool { return s.lag() == 0 && len(s.committed()) == int(s.parts) }, "the group's lag is 0, with lies")
		end()
		job.stop()
		n, list := l.lies()
		lies += n
		failures += len(job.failed())
		t.Logf("life %d: %d lies, %d attempts failed, %d checkpoints lost, %v", life+1, n, len(job.failed()), job.lost(), list)
	}
	require.Positive(t, failures, "no attempt was ended by a lie")
	s.nothingOpen(nil, time.Now().Add(2*transactionTimeout))
	r := s.exact(verify.Config{})
	require.EqualValues(t, records, r.RecordsIn+r.Filtered)
	s.handlesAreWhole()
	t.Logf("%d records, %d lies, %d attempts failed in %v: %d outputs of %d keys, duplicates 0, missing 0, wrong 0", records, lies, failures,
		time.Since(began).Round(time.Millisecond), r.RecordsOut, r.Keys)
}

func TestAnswersAtRandom(t *testing.T) {
	t.Parallel()
	answersAtRandom(fakeSite(t, 4), 10_000, 2, 4, 4*time.Second)
}

func TestRealAnswersAtRandom(t *testing.T) {
	answersAtRandom(realSite(t, 4), 100_000, 5, 6, 10*time.Second)
}

// The broker commits, and the service is told that it has not, or nothing. It looks, and finds its checkpoint.
func committedAndToldOtherwise(s *site, rule *testbed.Rule, fails bool) {
	t := s.t
	var tap testbed.Tap
	job := s.inside(s.file(counts), func(c *processor.Config) { c.ClientOptions = []kgo.Opt{tap.Opt()} })
	s.tell(100)
	job.caughtUp()
	rule.Keys, rule.When = []kmsg.Key{kmsg.EndTxn}, func(r kmsg.Request) bool { return r.(*kmsg.EndTxnRequest).Commit && (!rule.Cut || rule.Hits() == 0) }
	tap.Add(rule)
	s.tell(100)
	job.until(20*time.Second, func() bool {
		return (rule.Told() > 0 || rule.Cut && rule.Hits() > 0) && (!fails || len(job.failed()) > 0)
	}, "the answer is met")
	job.caughtUp()
	s.tell(100)
	job.caughtUp()
	if fails {
		require.Len(t, job.failed(), 1, "%v", job.failed())
	} else {
		require.Empty(t, job.failed(), "it was sent again")
	}
	job.stop()
	s.countedOnce(300)
}

func toldOtherwise(t *testing.T, site func(*testing.T) *site) {
	for _, e := range []*kerr.Error{kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.TransactionAbortable, kerr.InvalidTxnState, kerr.UnknownServerError} {
		t.Run(e.Message, func(t *testing.T) {
			committedAndToldOtherwise(site(t), &testbed.Rule{Rewrite: testbed.Times(1, e)}, true)
		})
	}
	for _, e := range coordinatorMoves {
		t.Run(e.Message, func(t *testing.T) {
			committedAndToldOtherwise(site(t), &testbed.Rule{Rewrite: testbed.Times(2, e)}, false)
		})
	}
	t.Run("cut", func(t *testing.T) { committedAndToldOtherwise(site(t), &testbed.Rule{Cut: true}, true) })
}

func TestCommittedAndToldOtherwise(t *testing.T) {
	toldOtherwise(t, func(t *testing.T) *site { t.Parallel(); return fakeSite(t, 2) })
}

func TestRealCommittedAndToldOtherwise(t *testing.T) {
	toldOtherwise(t, func(t *testing.T) *site { return realSite(t, 2) })
}
