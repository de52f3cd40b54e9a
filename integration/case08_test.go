//go:build unix

package integration

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// shares gives how many partitions each member of the group has, by its instance id.
func (s *site) shares() map[string]int {
	s.t.Helper()
	out := map[string]int{}
	groups, err := s.adm.DescribeGroups(s.ctx, s.app)
	if err != nil {
		return out // the first group of a broker takes a moment
	}
	for _, m := range groups[s.app].Members {
		id := m.MemberID
		if m.InstanceID != nil {
			id = *m.InstanceID
		}
		out[id] = 0
		if a, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range a.Topics {
				out[id] += len(t.Partitions)
			}
		}
	}
	return out
}

// shared waits until the group's members have these shares.
func (s *site) shared(job *process, want map[string]int) {
	s.t.Helper()
	job.until(30*time.Second, func() bool { return maps.Equal(s.shares(), want) }, "the shares are not %v", want)
}

// deadOwner kills one of two instances when it has just written into a transaction of a minute, and has the one that is
// left, or one of another name, go on. Ten seconds after it is ready nobody stands in the way of readers. A young one has not
// taken a checkpoint yet.
func deadOwner(s *site, young, renamed bool) {
	s.every = 20 * time.Second // so that the transaction is open when the process dies
	file := s.file(counts, "{{.TransactionTimeout}}", "60s")
	quick := s.file(counts, "{{.TransactionTimeout}}", "60s", "{{.Interval}}", "300ms")
	a, b := s.app+"-a", s.app+"-b"
	first := s.named(quick, a, "a")
	s.shared(first, map[string]int{a: 4})
	second := s.named(file, b, "b")
	s.shared(second, map[string]int{a: 2, b: 2})
	second.await("msg=processing")
	n := 700
	s.tell(n)
	if !young {
		s.caughtUp(second) // the first checkpoint comes soon, whatever the interval
		s.tell(700)
		n += 700
	}
	first.until(20*time.Second, func() bool { return s.ongoing(b) != "" }, "the second one has no transaction open")
	second.kill()
	next := first
	if renamed {
		first.kill()
		next = s.named(quick, s.app+"-c", "c")
		s.shared(next, map[string]int{s.app + "-c": 4})
	} else {
		s.shared(first, map[string]int{a: 4})
	}
	ready := time.Now()
	next.until(10*time.Second, func() bool { return len(s.open()) == 0 }, "readers wait for %v", s.open())
	s.t.Logf("free %v after the successor was ready", time.Since(ready).Round(time.Millisecond))
	s.caughtUp(next)
	next.stop()
	s.countedOnce(n)
}

var deadOwners = map[string]struct{ young, renamed bool }{
	"by the one that is left": {}, "by one of another name": {renamed: true},
	"a young one, by the one that is left": {young: true}, "a young one, by one of another name": {true, true},
}

func TestC08_TheDeadOwnersTransactionIsEnded(t *testing.T) {
	for name, c := range deadOwners {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deadOwner(fakeSite(t, 4).impatient(), c.young, c.renamed)
		})
	}
}

func TestC08_RealTheDeadOwnersTransactionIsEnded(t *testing.T) {
	for name, c := range deadOwners {
		t.Run(name, func(t *testing.T) { deadOwner(realSite(t, 4).impatient(), c.young, c.renamed) })
	}
}

// twoSinks has two sinks; their keys and the second one's topic are to be filled in.
const twoSinks = settings + `sources:
  in: {topic: {{.In}}, key: string, value: string}
sinks:
  out: {from: in, topic: {{.Out}}, key: string, value: string}
  SECOND: {from: in, topic: TOPIC, key: string, value: stringMORE}
`

// What other systems name a sink's transactions by can be given twice there, and the two fence each other. Here a
// transactional id belongs to an instance, and all its sinks write into the one transaction: so a name that is given twice
// is refused, naming both, an id cannot be given at all, and two sinks may well write to one topic. (Two instances of one
// name do fence each other: see TestC12_SameInstanceID.)
func TestC08_TwoSinks(t *testing.T) {
	s := fakeSite(t, 2)
	validate := func(changes ...string) *process {
		p := startProcess(t, processorBinary(t), []string{"validate", s.file(twoSinks, changes...)})
		p.exit(20 * time.Second)
		return p
	}
	p := validate("SECOND", "out", "TOPIC", "other", "MORE", "")
	require.Equal(t, 3, p.exit(time.Second), p.stderr.String())
	require.Regexp(t, `service.yaml:\d+:\d+: sinks.out: repeated key on line 11; it already stands on line 10`, p.stderr.String())
	p = validate("SECOND", "again", "TOPIC", "other", "MORE", ", transactional-id: mine")
	require.Equal(t, 3, p.exit(time.Second), p.stderr.String())
	require.Contains(t, p.stderr.String(), "sinks.again.transactional-id: unknown key")

	b := topology.New("two")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	topology.ToTopic(in, "out", "one", serde.String(), serde.String())
	topology.ToTopic(in, "out", "two", serde.String(), serde.String())
	_, err := b.Plan()
	require.ErrorContains(t, err, `sink "out": the name is taken by another sink`)

	s.tell(300)
	job := s.run(s.file(twoSinks, "SECOND", "again", "TOPIC", s.out, "MORE", ""))
	s.caughtUp(job)
	job.stop()
	require.Zero(t, job.restarts())
	seen := map[string]int{}
	for _, r := range s.read(s.out) {
		seen[string(r.Key)]++
	}
	for key, n := range s.inputs() {
		require.Equal(t, 2*n, seen[key], key)
	}
}
