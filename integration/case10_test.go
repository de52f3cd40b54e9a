//go:build unix

package integration

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millweir/millweir/internal/verify"
)

// couple is two instances that share the partitions of a service.
type couple struct {
	s    *site
	ids  [2]string
	jobs [2]*process
}

func (s *site) couple(file string) *couple {
	s.t.Helper()
	p := &couple{s: s, ids: [2]string{s.app + "-a", s.app + "-b"}}
	for i, dir := range []string{"a", "b"} {
		p.jobs[i] = s.named(file, p.ids[i], dir)
	}
	p.sharing()
	return p
}

// sharing waits until each of the two has half of the partitions.
func (p *couple) sharing() {
	p.s.t.Helper()
	half := int(p.s.parts) / 2
	p.s.shared(p.jobs[0], map[string]int{p.ids[0]: half, p.ids[1]: half})
}

// suspend stops instance i while a transaction of it is open, for some share of the session, and longer until the other
// one has everything and has worked on all of it. feed writes some input.
func (p *couple) suspend(i int, sessions float64, feed func()) {
	s, victim, other := p.s, p.jobs[i], p.jobs[1-i]
	s.t.Helper()
	victim.until(20*time.Second, func() bool { feed(); return s.ongoing(p.ids[i]) != "" }, "no transaction is open")
	require.NoError(s.t, victim.cmd.Process.Signal(syscall.SIGSTOP))
	began := time.Now()
	feed()
	_, ends := s.ends(s.in)
	s.shared(other, map[string]int{p.ids[1-i]: int(s.parts)})
	other.until(20*time.Second, func() bool {
		committed := s.committed()
		for tp, end := range ends {
			if committed[tp].At < end {
				return false
			}
		}
		return true
	}, "the other one does not work on what it took over")
	time.Sleep(time.Until(began.Add(time.Duration(sessions * float64(s.session)))))
}

// wake lets instance i go on. Its place is gone: it aborts, goes on living, gets its share again, and, if there is input,
// works on it.
func (p *couple) wake(i int, working bool) {
	s, victim, other := p.s, p.jobs[i], p.jobs[1-i]
	s.t.Helper()
	failed := [2]int{victim.restarts(), other.restarts()}
	commits := func() int { return strings.Count(victim.stderr.String(), `msg="checkpoint committed"`) } // the first one of each attempt
	before := commits()
	require.NoError(s.t, victim.cmd.Process.Signal(syscall.SIGCONT))
	victim.until(20*time.Second, func() bool { return victim.restarts() > failed[0] }, "it does not notice")
	p.sharing()
	if working {
		victim.until(20*time.Second, func() bool { return commits() > before }, "it commits nothing")
	}
	require.False(s.t, other.ended())
	require.Equal(s.t, failed[1], other.restarts(), "the other one is not disturbed: %s", other.stderr.tail(5))
	for line := range strings.Lines(victim.stderr.String()) {
		if strings.Contains(line, `msg="attempt failed`) {
			// Unconfirmed: the end of its transaction was on its way. Not complete: it saw first how late it is.
			require.Regexp(s.t, "recovery=(rejoin|unconfirmed) |recovery=restart .*is not complete after", line)
		}
	}
}

func (p *couple) stop() {
	p.s.t.Helper()
	stopAll(p.jobs[:]...)
}

// staleOwner suspends one of two instances in the middle of a transaction, again and again, at random moments, until the
// other one has taken over, and wakes it.
func staleOwner(s *site, repetitions int) {
	t := s.t
	rnd := rand.New(rand.NewPCG(killSeed(t), 10))
	s.every = 100 * time.Millisecond
	p := s.couple(s.file(totals))
	stop := make(chan struct{})
	flowed := make(chan flow, 1)
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	go func() { flowed <- s.flow(ctx, stop) }()
	for range repetitions {
		i := rnd.IntN(2)
		time.Sleep(time.Duration(rnd.Int64N(int64(2 * s.every))))
		p.suspend(i, 1.2+0.8*rnd.Float64(), func() {})
		p.wake(i, true)
	}
	close(stop)
	f := <-flowed
	require.NoError(t, f.err)
	s.caughtUp(p.jobs[0])
	s.nothingOpen(p.jobs[0], time.Now().Add(2*transactionTimeout))
	r := s.exact(verify.Config{})
	require.EqualValues(t, f.n, r.RecordsIn+r.Filtered)
	p.stop()
	t.Logf("%d repetitions, %d records", repetitions, f.n)
}

// repetitions is how often a case is repeated: a few times, or as CASE_REPETITIONS says.
func repetitions(t *testing.T, few int) int {
	if text := os.Getenv("CASE_REPETITIONS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		return n
	}
	return few
}

func TestC10_AStaleOwnerCommitsNothing(t *testing.T) {
	t.Parallel()
	processorBinary(t)
	staleOwner(fakeSite(t, 4).impatient(), repetitions(t, 5))
}
func TestC10_RealAStaleOwnerCommitsNothing(t *testing.T) {
	staleOwner(realSite(t, 4).impatient(), repetitions(t, 10))
}

// A suspended instance wakes when its work is long done by another one and the broker has forgotten its ids, and with them
// that they were ever fenced: nothing that it does is seen.
func zombieWithForgottenIDs(s *site) {
	t := s.t
	s.every = 500 * time.Millisecond
	p := s.couple(s.file(counts, "timeout: 5s", "timeout: 4s", "{{.TransactionTimeout}}", "10s"))
	n := 0
	feed := func() { s.tell(70); n += 70 }
	p.suspend(0, 1.5, feed)
	s.caughtUp(p.jobs[1])
	p.jobs[1].until(40*time.Second, func() bool {
		list, err := s.adm.ListTransactions(s.ctx, nil, nil)
		require.NoError(t, err)
		for id := range list {
			if strings.HasPrefix(id, s.app+"-"+p.ids[0]+"-") {
				return false
			}
		}
		return true
	}, "the broker still knows the suspended one's ids")
	s.countedOnce(n)
	before := s.read(s.out)
	p.wake(0, false)
	time.Sleep(2 * time.Second)
	require.Equal(t, len(before), len(s.read(s.out)))
	s.countedOnce(n)
	feed()
	s.caughtUp(p.jobs[0])
	s.countedOnce(n)
	p.stop()
}

func TestC05_ZombieWithForgottenIDs(t *testing.T) {
	t.Parallel()
	processorBinary(t)
	zombieWithForgottenIDs(fakeSite(t, 4, kfake.BrokerConfigs(map[string]string{"transactional.id.expiration.ms": "5000"})).impatient())
}
func TestC05_RealZombieWithForgottenIDs(t *testing.T) {
	zombieWithForgottenIDs(harshSite(t, 4).impatient())
}
