//go:build unix

package integration

import (
	"bytes"
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/snapshot"
)

// loosely is what at-least-once made of the tickets.
type loosely struct {
	outputs  int
	repeated int // outputs that tell of a ticket again
	counted  int // by the last counts of all groups
}

// atLeastOnce wants each of n tickets to have an output, and no count to be left out: it follows the one before it, or it is
// one that there was already, from which the counting goes on.
func (e *exchangeSite) atLeastOnce(n int) (l loosely) {
	t := e.t
	t.Helper()
	inputs := e.ticketsWritten()
	require.Len(t, inputs, n)
	used, last, most := map[int64]bool{}, map[string]tally{}, map[string]int64{}
	for _, r := range e.read(e.out) {
		got, err := tallySerde{}.Decode(r.Value)
		require.NoError(t, err)
		key := string(r.Key)
		_, known := inputs[got.last]
		if !known || !bytes.Equal(r.Key, groupOf(got.last)) || got.n > most[key]+1 || got.n < 1 {
			require.Fail(t, "no output that there may be", "%s at %d/%d: %+v after %+v, most %d", key, r.Partition, r.Offset, got, last[key], most[key])
		}
		if used[got.last] {
			l.repeated++
		}
		used[got.last], last[key], most[key] = true, got, max(most[key], got.n)
		l.outputs++
	}
	require.Len(t, used, n, "tickets without an output: %d", n-len(used))
	for _, g := range last {
		l.counted += int(g.n)
	}
	return l
}

// unsaved has a job killed that has written outputs of tickets that are not committed: they are repeated. It gives the number of
// tickets that it has written, from ticket n on.
func (e *exchangeSite) unsaved(x exchangeSettings, n int) (wrote int) {
	e.t.Helper()
	const some = 100
	unsaved := func() bool { _, behind := e.offsets(); return behind >= some }
	for wrote == 0 || !unsaved() { // else there was a checkpoint between the last look and the kill
		every := e.every
		e.every = time.Hour
		job := e.start(x)
		e.every = every
		job.await("msg=processing")
		for more := true; more; more = !unsaved() { // the first checkpoint comes soon after the start, the next one in an hour
			e.tickets(n+wrote, some)
			from := n + wrote
			job.until(failWithin, func() bool { return e.toldSince(from) == some }, "there are outputs to come")
			wrote += some
		}
		job.kill()
	}
	return wrote
}

// toldSince counts the tickets from number n on that have an output.
func (e *exchangeSite) toldSince(n int) int {
	told := map[int64]bool{}
	for _, r := range e.read(e.out) {
		got, err := tallySerde{}.Decode(r.Value)
		require.NoError(e.t, err)
		if got.last >= int64(n) {
			told[got.last] = true
		}
	}
	return len(told)
}

// ahead is how many records the state of a checkpoint has that are behind its positions: they are read again, and counted again.
func (e *exchangeSite) ahead(repo *snapshot.Repository, ref snapshot.RootRef) (n int64, err error) {
	root, err := repo.ReadRoot(e.ctx, ref)
	if err != nil {
		return 0, err
	}
	for _, entry := range root.Tasks {
		for _, p := range entry.Positions {
			n -= p.Offset
		}
		if entry.Task.Source != "by-group" {
			continue
		}
		counts := map[string]int64{}
		if _, err = repo.Restore(e.ctx, entry, nil, func(s snapshot.Entry) error {
			got, err := tallySerde{}.Decode(s.Value)
			counts[string(s.Key)] = got.n
			return err
		}); err != nil {
			return 0, err
		}
		for _, c := range counts {
			n += c
		}
	}
	return n, nil
}

// committedAhead is ahead of the checkpoint that is committed, 0 when there is a newer one by now.
func (e *exchangeSite) committedAhead() int64 {
	all, _ := e.offsets()
	metadata := ""
	for _, o := range all {
		metadata = o.Metadata // all name the same checkpoint, or start positions
	}
	if metadata == "" {
		return 0 // nothing is committed yet
	}
	h, err := snapshot.ParseHandle(metadata)
	require.NoError(e.t, err)
	if h.Kind != snapshot.HandleCheckpoint {
		return 0
	}
	n, err := e.ahead(e.repository(), h.Root)
	if err != nil {
		return 0 // it was cleaned away
	}
	return n
}

var restoredLine = regexp.MustCompile(`msg="state restored" application=\S+ task=by-group-\d+ checkpoint=(\S+)`)

// lateBarriers has a job killed behind a checkpoint of which the barrier of one partition was late, so that its state has records of the others
// that its positions do not have. It returns with the job that follows, how many records that one counts again, and how many
// tickets were written from ticket n on.
func (e *exchangeSite) lateBarriers(x exchangeSettings, n int) (job *process, again int64, wrote int) {
	t := e.t
	t.Helper()
	const some = 106 // two of each key
	for {
		x.Late = 50 * time.Millisecond
		job = e.start(x)
		job.await("msg=processing")
		job.until(failWithin, func() bool {
			e.tickets(n+wrote, some)
			wrote += some
			time.Sleep(40 * time.Millisecond) // the partition that is late has more than it can do, and no more than that
			return e.committedAhead() > 0
		}, "no barrier was late: nothing behind one was in the state")
		job.kill()
		ahead := map[string]int64{}
		repo := e.repository()
		roots, err := repo.List(e.ctx)
		require.NoError(t, err)
		for _, r := range roots {
			if r.Err == nil {
				ahead[r.Ref.Name.String()], err = e.ahead(repo, r.Ref)
				require.NoError(t, err)
			}
		}
		x.Late = 0
		job = e.start(x)
		job.await("msg=processing")
		from := restoredLine.FindStringSubmatch(job.stderr.String())
		require.NotNil(t, from, job.stderr.String())
		require.Contains(t, ahead, from[1])
		if again = ahead[from[1]]; again > 0 {
			return job, again, wrote
		}
		job.kill() // a checkpoint was committed between the look and the kill, and no barrier of it was late
	}
}

// looseKills has a job with an exchange killed again and again in the mode at-least-once, each time at another parallelism. One
// subtask is busy to so many percent. What the kills at random moments meet is chance; the last one repeats something for certain.
func looseKills(e *exchangeSite, records, kills, load int, fanIn bool) (l loosely) {
	t := e.t
	t.Helper()
	began := time.Now()
	e.every = 150 * time.Millisecond
	plan := moments(killSeed(t), kills)
	pace := paceOf(plan)
	over := pace.over()
	settings := func(i int) exchangeSettings {
		return exchangeSettings{Parallelism: parallelisms[i%len(parallelisms)], Spread: 1 + i%3, Loose: true, Threshold: -1, Slow: over * time.Duration(load) / time.Duration(100*records)}
	}
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	produced := make(chan error, 1)
	go func() {
		produced <- e.stream(ctx, killPlan{records: records - exchangeRest, record: func(i, _ int) *kgo.Record { return e.ticket(i) }}, pace.due)
	}()
	for i, m := range plan {
		job := e.start(settings(i))
		e.awaitMoment(job, m)
		require.False(t, job.ended(), "before its kill %d: %s", i+1, job.stderr.tail(3))
		job.kill()
		pace.next()
		require.Empty(t, e.open(), "at-least-once has no transactions")
	}
	require.NoError(t, <-produced)
	last := settings(kills)
	last.Slow = 0
	total, again := records+e.unsaved(last, records), int64(0)
	var job *process
	if fanIn {
		var wrote int
		job, again, wrote = e.lateBarriers(last, total)
		total += wrote
	} else {
		job = e.start(last)
	}
	e.lastTickets(records)
	e.allDone(job, total)
	require.Zero(t, job.restarts(), "the job that recovers meets no failure")
	job.stop()
	l = e.atLeastOnce(total)
	require.Positive(t, l.repeated, "nothing was repeated")
	require.Equal(t, total+int(again), l.counted, "nothing is left out of the state; what its last checkpoint before the last kill had behind its positions is counted twice, and nothing else is")
	e.storesAreWhole(last)
	took := time.Since(began)
	require.LessOrEqual(t, took, exchangeKillsWithin, "it took too long")
	t.Logf("%d tickets, %d kills: each has an output; %d outputs are repeated, the state counts %d; %.1f s", total, kills, l.repeated, l.counted, took.Seconds())
	return l
}

// Each subtask has one input, of one partition: outputs are repeated, but the state has every record once.
func looseWithoutFanIn(s *site, records, kills int) {
	looseKills(s.exchanges("by-group"), records, kills, 50, false)
}

// Each subtask has several inputs, whose barriers come one after the other: what came behind the first one may be in the
// state and is read again, so it is counted again. Nothing is left out.
func looseWithFanIn(e *exchangeSite, records, kills, load int) {
	looseKills(e, records, kills, load, true)
}

func TestKillAtLeastOnceWithoutFanIn(t *testing.T) {
	t.Parallel()
	looseWithoutFanIn(embeddedSite(t, 1), 20_000, 5)
}

func TestKillAtLeastOnceWithFanIn(t *testing.T) {
	for job, load := range map[string]int{"by-group": 150, "over-hops": 30} {
		t.Run(job, func(t *testing.T) {
			t.Parallel()
			looseWithFanIn(embeddedSite(t, 4).exchanges(job), 20_000, 5, load)
		})
	}
}

func TestRealKillAtLeastOnceWithoutFanIn(t *testing.T) {
	looseWithoutFanIn(realSite(t, 1), 100_000, 10)
}

func TestRealKillAtLeastOnceWithFanIn(t *testing.T) {
	looseWithFanIn(realSite(t, 4).exchanges("over-hops"), 100_000, 10, 30)
}
