//go:build unix

package integration

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
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
	start                func(files bool) *process // files: the state lies in files of its own, however little has changed
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
	if text := os.Getenv("CASE_REPETITIONS"); text != "" {
		real += "CASE_REPETITIONS=" + text + " "
	}
	t.Logf("seed %d; again: %sKILL_SEED=%d go test -count=1 -v -run '^%s$' ./integration", seed, real, seed, t.Name())
	return seed
}

// phase is what a process is doing when it gets its SIGKILL.
type phase string

// The phases, of which each plan has all in turn. The last three are seen by the files that appear: the changes are durable
// and the transaction is flushed or not; the root is durable and the transaction about to be committed; it is committed and
// the housekeeping begins.
const (
	starting  phase = "starting"
	working   phase = "working"
	persisted phase = ".data"
	permitted phase = ".root"
	completed phase = ".committed"
)

var phases = []phase{permitted, working, starting, persisted, completed}

// moment is a phase, and how long after the start of the process (starting) or of its work (else) it may begin.
type moment struct {
	phase phase
	after time.Duration
}

func moments(seed uint64, n int) (out []moment) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	for i := range n {
		m := moment{phases[i%len(phases)], time.Duration(rnd.Int64N(int64(killMost)))}
		if m.phase == starting {
			m.after /= 4
		}
		out = append(out, m)
	}
	return out
}

// awaitMoment returns when the process is to be killed.
func (s *site) awaitMoment(job *process, m moment) {
	s.t.Helper()
	if m.phase == starting {
		time.Sleep(time.Until(job.started.Add(m.after)))
		return
	}
	job.await("msg=processing")
	time.Sleep(m.after)
	if m.phase == working {
		return
	}
	pattern := filepath.Join(s.checkpoints(), s.app, "*", "chk-*"+string(m.phase))
	old, err := filepath.Glob(pattern)
	require.NoError(s.t, err)
	known := map[string]bool{}
	for _, name := range old {
		known[name] = true
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Microsecond) {
		names, err := filepath.Glob(pattern)
		require.NoError(s.t, err)
		for _, name := range names {
			if !known[name] {
				return
			}
		}
		require.True(s.t, time.Now().Before(end), "no new %s: %s", pattern, job.stderr.tail(5))
	}
}

// kills produces at a steady rate while the job is killed again and again, and then has everything checked from outside.
func (s *site) kills(p killPlan) {
	t := s.t
	t.Helper()
	plan := moments(killSeed(t), p.kills)
	pace := paceOf(plan)
	produced := make(chan error, 1)
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	go func() { produced <- s.stream(ctx, p, pace.due) }()

	began := time.Now()
	var job *process
	caught := 0
	for i, m := range plan {
		job = p.start(m.phase == persisted) // so that there is a file to wait for
		s.awaitMoment(job, m)
		require.False(t, job.ended(), "before its kill %d: %s", i+1, job.stderr.tail(3))
		job.kill()
		pace.next()
		open := s.open()
		if len(open) > 0 {
			caught++
		}
		t.Logf("kill %d, %s after %v: lag %d, %d partitions and transactions left open", i+1, m.phase, m.after.Round(time.Millisecond), s.lag(), len(open))
	}
	require.Positive(t, caught, "no kill left a transaction open")
	lastKill := time.Now()
	job = p.start(false)
	require.NoError(t, <-produced)
	s.caughtUp(job)
	t.Logf("%d records, %d kills, %d of them in a transaction; caught up after %v, %v after the last kill", p.records, p.kills, caught,
		time.Since(began).Round(time.Millisecond), time.Since(lastKill).Round(time.Millisecond))
	s.nothingOpen(job, soonAfter(lastKill))
	r := s.exact(p.verify)
	require.EqualValues(t, p.records, r.RecordsIn+r.Filtered)
	job.stop()
	s.nothingOpen(nil, time.Now())
	require.Equal(t, r.RecordsOut, s.exact(p.verify).RecordsOut)
	entries := s.storeIsWhole()
	require.GreaterOrEqual(t, entries, int64(p.keys), "the state has an entry for each key")
	t.Logf("%d outputs of %d keys: duplicates 0, missing 0, wrong 0; files: %d", r.RecordsOut, r.Keys, len(s.files()))
}

// stream writes the records as they are due, the share of them that is, to the last one.
func (s *site) stream(ctx context.Context, p killPlan, due func() float64) error {
	failed := make(chan error, 1)
	for i := 0; i < p.records; {
		for until := int(float64(p.records) * due()); i < until; i++ {
			r := p.record(i, p.keys)
			if r.Topic == "" {
				r.Topic = s.in
			}
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
		if details, err := s.adm.ListTopics(s.ctx, topic); err != nil || details[topic].Err != nil {
			continue // the service has not made its own topic yet
		}
		log, stable := s.ends(topic)
		for p, end := range log {
			if stable[p] != end {
				found = append(found, fmt.Sprintf("%s/%d: stable %d, end %d", topic, p, stable[p], end))
			}
		}
	}
	return found
}

// ongoing gives the id of an open transaction of an instance, "" for any; it is empty when there is none.
func (s *site) ongoing(instance string) string {
	prefix := s.app + "-"
	if instance != "" {
		prefix += instance + "-"
	}
	for _, o := range s.open() {
		if id, found := strings.CutSuffix(o, " Ongoing"); found && strings.HasPrefix(id, prefix) {
			return id
		}
	}
	return ""
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
	s.kills(killPlan{records: records, keys: 2000, kills: kills, record: order, start: func(files bool) *process {
		flags := []string{"--log-format", "text"}
		if files {
			flags = append(flags, "--set", "state.backend.fs.memory-threshold=0")
		}
		return s.run(file, flags...)
	}})
}

// The same for a Processor of the Go DSL with two states that must not part.
func killTheJob(s *site, records, kills int) {
	s.kills(killPlan{records: records, keys: 2000, kills: kills, record: amount, verify: verify.Config{Format: verify.Binary},
		start: func(files bool) *process {
			if files {
				return s.job("totals", "JOB_FILES=true")
			}
			return s.job("totals")
		}})
}

func TestKillTheBinary(t *testing.T) {
	t.Parallel()
	killTheBinary(embeddedSite(t, 4), 100_000, 5)
}

func TestKillAJobOfTheDSL(t *testing.T) {
	t.Parallel()
	killTheJob(embeddedSite(t, 4), 50_000, 4)
}

func TestRealKillTheBinary(t *testing.T) { killTheBinary(realSite(t, 4), 300_000, 15) }

func TestRealKillAJobOfTheDSL(t *testing.T) { killTheJob(realSite(t, 4), 300_000, 10) }

// A suite that could not fail would prove nothing: a job that loses a delta when it is restored is found out.
func TestKillFindsAPlantedFault(t *testing.T) {
	s := embeddedSite(t, 4)
	file := s.file(totals)
	for round := range 3 {
		s.orders(round*2000, 2000, 100)
		job := startProcess(t, processorBinary(t), []string{"demo-job", "--sabotage", "lose-delta", file})
		job.await("msg=processing")
		s.caughtUp(job)
		job.kill()
	}
	r := s.verify(verify.Config{})
	require.False(t, r.Exact(), "%s", r.String())
}
