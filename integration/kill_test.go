//go:build unix

package integration

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/verify"
)

// killPlan says what is done to a job; all of it is a function of the seed.
type killPlan struct {
	records, keys, kills int
	record               func(i, keys int) *kgo.Record
	start                func() *process
	verify               verify.Config
}

// killMost bounds how long after the start of its work a process is killed.
const killMost = 1800 * time.Millisecond

// killSeed draws the seed or takes it from KILL_SEED, and prints how to do it again.
func killSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64() >> 32
	if text := os.Getenv("KILL_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	real := ""
	if strings.Contains(t.Name(), "Real") {
		real = "REAL_KAFKA=1 "
	}
	t.Logf("seed %d; again: %sKILL_SEED=%d go test -count=1 -v -run '^%s$' ./integration", seed, real, seed, t.Name())
	return seed
}

// moment is when a process gets its SIGKILL.
type moment struct {
	// starting counts from the start of the process, so that restoring is hit too; else from the start of its work.
	starting bool
	after    time.Duration
}

func moments(seed uint64, n int) (out []moment, sum time.Duration) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	for i := range n {
		m := moment{starting: i%4 == 3, after: time.Duration(rnd.Int64N(int64(killMost)))}
		if m.starting {
			m.after /= 3
		}
		out = append(out, m)
		sum += m.after
	}
	return out, sum
}

// kills produces at a steady rate while the job is killed again and again, and then has everything checked from outside.
func (s *site) kills(p killPlan) {
	t := s.t
	t.Helper()
	plan, sum := moments(killSeed(t), p.kills)
	// The last records come when the last process works: half a second for each start.
	stream := sum + time.Duration(p.kills)*500*time.Millisecond
	produced := make(chan error, 1)
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	go func() { produced <- s.stream(ctx, p, stream) }()

	began := time.Now()
	var job *process
	for i, m := range plan {
		job = p.start()
		from := job.started
		if !m.starting {
			job.await("msg=processing")
			from = time.Now()
		}
		up := from.Sub(job.started)
		time.Sleep(time.Until(from.Add(m.after)))
		require.False(t, job.ended(), "before its kill %d: %s", i+1, job.stderr.tail(3))
		job.kill()
		t.Logf("kill %d after %v of work (starting %v, start %v); lag %d", i+1, m.after.Round(time.Millisecond), m.starting, up.Round(time.Millisecond), s.lag())
	}
	lastKill := time.Now()
	job = p.start()
	require.NoError(t, <-produced)
	s.caughtUp(job)
	t.Logf("%d records, %d kills, caught up after %v", p.records, p.kills, time.Since(began).Round(time.Millisecond))
	s.nothingOpen(job, lastKill.Add(2*transactionTimeout))
	r := s.exact(p.verify)
	require.EqualValues(t, p.records, r.RecordsIn+r.Filtered)
	job.stop()
	s.nothingOpen(nil, time.Now())
	require.Equal(t, r.RecordsOut, s.exact(p.verify).RecordsOut)
	entries := s.storeIsWhole()
	require.GreaterOrEqual(t, entries, int64(p.keys), "the state has an entry for each key")
	t.Logf("%d outputs of %d keys: duplicates 0, missing 0, wrong 0; files: %d", r.RecordsOut, r.Keys, len(s.files()))
}

// stream writes the records evenly over a time.
func (s *site) stream(ctx context.Context, p killPlan, over time.Duration) error {
	start := time.Now()
	failed := make(chan error, 1)
	for i := 0; i < p.records; {
		due := int(float64(p.records) * min(1, time.Since(start).Seconds()/over.Seconds()))
		for ; i < due; i++ {
			r := p.record(i, p.keys)
			r.Topic = s.in
			s.cl.Produce(ctx, r, func(_ *kgo.Record, err error) {
				if err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			})
		}
		select {
		case err := <-failed:
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := s.cl.Flush(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// open lists what is not finished: transactions of the application, and ends that readers of committed records do not see.
func (s *site) open() (found []string) {
	s.t.Helper()
	list, err := s.adm.ListTransactions(s.ctx, nil, nil)
	require.NoError(s.t, err)
	for id, tx := range list {
		if strings.HasPrefix(id, s.app+"-") && tx.State != "Empty" && tx.State != "CompleteCommit" && tx.State != "CompleteAbort" {
			found = append(found, id+" "+tx.State)
		}
	}
	for _, topic := range []string{s.out, s.app + "-checkpoints"} {
		log, stable := s.ends(topic)
		for p, end := range log {
			if stable[p] != end {
				found = append(found, fmt.Sprintf("%s/%d: stable %d, end %d", topic, p, stable[p], end))
			}
		}
	}
	return found
}

// nothingOpen waits until no transaction is open. job, which may be nil, must run meanwhile.
func (s *site) nothingOpen(job *process, until time.Time) {
	s.t.Helper()
	for {
		found := s.open()
		if len(found) == 0 {
			return
		}
		require.True(s.t, time.Now().Before(until), "still open: %v", found)
		require.False(s.t, job != nil && job.ended())
		time.Sleep(20 * time.Millisecond)
	}
}

func amount(i, keys int) *kgo.Record {
	return &kgo.Record{Key: fmt.Appendf(nil, "key-%d", i%keys), Value: binary.BigEndian.AppendUint64(nil, uint64(1+i%977))}
}

// The main promise on the binary as it is shipped: a YAML topology that is killed and killed again.
func killTheBinary(s *site, records, kills int) {
	processorBinary(s.t) // building it takes a while the first time, in which records would flow
	file := s.file(totals)
	s.kills(killPlan{records: records, keys: 2000, kills: kills, record: order, start: func() *process { return s.run(file, "--log-format", "text") }})
}

// The same for a Processor of the Go DSL with two states that must not part.
func killTheJob(s *site, records, kills int) {
	s.kills(killPlan{records: records, keys: 2000, kills: kills, record: amount, verify: verify.Config{Format: verify.Binary},
		start: func() *process { return s.job("totals") }})
}

func TestKillTheBinary(t *testing.T) { killTheBinary(embeddedSite(t, 4), 100_000, 5) }

func TestKillAJobOfTheDSL(t *testing.T) { killTheJob(embeddedSite(t, 4), 50_000, 4) }

func TestRealKillTheBinary(t *testing.T) { killTheBinary(realSite(t, 4), 300_000, 12) }

func TestRealKillAJobOfTheDSL(t *testing.T) { killTheJob(realSite(t, 4), 300_000, 10) }
