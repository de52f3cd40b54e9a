//go:build unix

package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/integration/kafkatest"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/internal/verify"
	"github.com/millweir/millweir/processor"
)

// mover moves the coordinators of a cluster whose brokers all live: the leaders of the topics that they keep their state in.
type mover struct {
	adm *kadm.Client
	ctx context.Context
}

// stateOf names the topic of the coordinator that a request goes to.
func stateOf(step kmsg.Key) string {
	if step == kmsg.TxnOffsetCommit {
		return "__consumer_offsets"
	}
	return "__transaction_state"
}

// move has the next replica of each partition lead it, and returns when the metadata says so.
func (m mover) move(topic string) error {
	details, err := m.adm.ListTopicsWithInternal(m.ctx, topic)
	if err != nil {
		return err
	}
	var want kadm.AlterPartitionAssignmentsReq
	leaders := map[int32]int32{}
	for p, d := range details[topic].Partitions {
		at := slices.Index(d.Replicas, d.Leader)
		if at < 0 || len(d.ISR) < len(d.Replicas) {
			return fmt.Errorf("%s/%d is led by %d, has replicas %v and %v in step", topic, p, d.Leader, d.Replicas, d.ISR)
		}
		next := append(slices.Clone(d.Replicas[at+1:]), d.Replicas[:at+1]...)
		want.Assign(topic, p, next)
		leaders[p] = next[0]
	}
	assigned, err := m.adm.AlterPartitionAssignments(m.ctx, want)
	if err = errors.Join(err, assigned.Error()); err != nil {
		return err
	}
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var elect kadm.TopicsSet
		if details, err = m.adm.ListTopicsWithInternal(m.ctx, topic); err != nil {
			return err
		}
		for p, d := range details[topic].Partitions {
			if d.Leader != leaders[p] {
				elect.Add(topic, p)
			}
		}
		if len(elect) == 0 {
			return nil
		}
		if _, err = m.adm.ElectLeaders(m.ctx, kadm.ElectPreferredReplica, elect); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s does not move", topic)
}

// answered counts the errors that brokers give to the steps of a commit.
type answered struct {
	mu sync.Mutex
	n  map[string]int
}

func (a *answered) watch(tap *testbed.Tap) {
	a.n = map[string]int{}
	tap.Add(&testbed.Rule{Keys: stepsOfACommit, After: func(_ kmsg.Request, resp kmsg.Response) {
		var e *kerr.Error
		if errors.As(testbed.ErrorOf(resp), &e) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.n[kmsg.Key(resp.Key()).Name()+" "+e.Message]++
		}
	}})
}

func (a *answered) count(name string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n[name]
}

func (a *answered) all() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.n)
}

// onTheWay moves the coordinator of one request while it is on its way to it, or when it has been carried out and is then
// sent again to the new one. It gives what came of the move.
func onTheWay(tap *testbed.Tap, step kmsg.Key, done bool, m mover) <-chan error {
	moved := make(chan error, 1)
	var once sync.Once
	rule := &testbed.Rule{Keys: []kmsg.Key{step}, When: func(r kmsg.Request) bool {
		end, ok := r.(*kmsg.EndTxnRequest)
		return !ok || end.Commit
	}}
	move := func() (first bool) {
		once.Do(func() {
			first = true
			moved <- m.move(stateOf(step))
		})
		return first
	}
	if done {
		rule.Rewrite = func(kmsg.Request) *kerr.Error {
			defer rule.Remove()
			if move() {
				return kerr.NotCoordinator
			}
			return nil
		}
	} else {
		rule.Before = func(kmsg.Request) error {
			defer rule.Remove()
			move()
			return nil
		}
	}
	tap.Add(rule)
	return moved
}

// The coordinators of group and transactions move to other brokers, again and again, each time while a service is about to
// use one for a commit, or has used it and asks the new one again. It finds the new one, goes on, and what comes out is
// exact.
func TestRealCoordinatorsMove(t *testing.T) {
	needReal(t)
	b := kafkatest.Start(t, kafkatest.Options{Nodes: 3})
	if b.External {
		t.Skip("the cluster was not started here")
	}
	s := newSite(t, strings.Split(b.Addr, ","), 4)
	var tap testbed.Tap
	var answers answered
	answers.watch(&tap)
	job := s.inside(s.file(totals), func(c *processor.Config) { c.ClientOptions = []kgo.Opt{tap.Opt()} })
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	trickle := make(chan int, 1)
	go func() { trickle <- s.trickle(ctx, 0, 500) }()
	job.until(time.Minute, func() bool { return s.progress() > 100 }, "it works")
	const rounds = 3
	for round := range rounds {
		for _, step := range []kmsg.Key{kmsg.TxnOffsetCommit, kmsg.EndTxn} {
			for _, done := range []bool{false, true} {
				before := s.progress()
				began := time.Now()
				select {
				case err := <-onTheWay(&tap, step, done, mover{adm: s.adm, ctx: s.ctx}):
					require.NoError(t, err)
				case <-time.After(30 * time.Second):
					require.Fail(t, "no commit in sight", job.log.tail(5))
				}
				moved := time.Now()
				job.until(30*time.Second, func() bool { return s.progress() > before+200 }, "it goes on")
				t.Logf("round %d: %s, done=%v: moved in %v, goes on after %v", round+1, step.Name(), done,
					moved.Sub(began).Round(time.Millisecond), time.Since(moved).Round(time.Millisecond))
			}
		}
	}
	stop()
	n := <-trickle
	job.until(time.Minute, func() bool { return s.lag() == 0 && len(s.committed()) == int(s.parts) }, "the group's lag is 0")
	r := s.exact(verify.Config{})
	require.EqualValues(t, n, r.RecordsIn+r.Filtered)
	job.stop()
	s.nothingOpen(nil, time.Now().Add(2*transactionTimeout))
	s.handlesAreWhole()
	t.Logf("%d records; the brokers answered %v; attempts failed: %v", n, answers.all(), job.failed())
	for _, step := range []kmsg.Key{kmsg.TxnOffsetCommit, kmsg.EndTxn} {
		require.GreaterOrEqual(t, answers.count(step.Name()+" "+kerr.NotCoordinator.Message), rounds, "each on its way met one")
	}
}
