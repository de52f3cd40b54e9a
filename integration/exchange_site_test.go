//go:build unix

package integration

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/snapshot"
)

// exchangeSite is a site for one of the jobs with exchanges.
type exchangeSite struct {
	*site
	name   string   // of the job
	inputs []string // topics
	first  bool     // tickets go to the first input only
	late   int      // tickets that lie behind the end of an input, and are not to be read
}

// exchanges makes the corner of a job; two of them have a second input.
func (s *site) exchanges(name string) *exchangeSite {
	s.t.Helper()
	e := &exchangeSite{site: s, name: name, inputs: []string{s.in}}
	if name != "by-group" {
		e.inputs = append(e.inputs, s.in+"2")
		s.topic(s.in+"2", nil)
	}
	return e
}

// job starts the job as a process of a program.
func (e *exchangeSite) job(program string, x exchangeSettings, env ...string) *process {
	e.t.Helper()
	if len(e.inputs) > 1 {
		x.In2 = e.inputs[1]
	}
	text, err := json.Marshal(x)
	require.NoError(e.t, err)
	dir := e.dir
	if x.Instance != "" {
		dir += "-" + x.Instance
	}
	return startProcess(e.t, program, nil, append(env, asJob+"="+e.name, "JOB_BROKERS="+strings.Join(e.brokers, ","), "JOB_APPLICATION="+e.app,
		"JOB_IN="+e.in, "JOB_OUT="+e.out, "JOB_DIR="+dir, "JOB_INTERVAL="+e.every.String(), "JOB_EXCHANGE="+string(text))...)
}

// start starts the job from the test binary.
func (e *exchangeSite) start(x exchangeSettings) *process { return e.job(os.Args[0], x) }

// ticket is the i-th input. It goes to one of the inputs, under a key that says nothing about its group.
func (e *exchangeSite) ticket(i int) *kgo.Record {
	topic := e.inputs[i%len(e.inputs)]
	if e.first {
		topic = e.inputs[0]
	}
	return &kgo.Record{Topic: topic, Key: fmt.Appendf(nil, "till-%d", i/2%53), Value: binary.BigEndian.AppendUint64(nil, uint64(i))}
}

// tickets writes the tickets from, from+1, … and returns when all are acknowledged.
func (e *exchangeSite) tickets(from, n int) {
	e.t.Helper()
	recs := make([]*kgo.Record, n)
	for i := range recs {
		recs[i] = e.ticket(from + i)
	}
	require.NoError(e.t, e.cl.ProduceSync(e.ctx, recs...).FirstErr())
}

// offsets gives the committed offsets of all inputs, and how much is not committed yet.
func (e *exchangeSite) offsets() (all []kadm.Offset, behind int64) {
	e.t.Helper()
	got, err := e.adm.FetchOffsets(e.ctx, e.app)
	for _, topic := range e.inputs {
		_, ends := e.ends(topic)
		for p, end := range ends {
			if o, ok := got.Lookup(topic, p); err == nil && ok && o.Err == nil && o.At >= 0 {
				all = append(all, o.Offset)
				end -= o.At
			}
			behind += end
		}
	}
	return all, behind
}

// done is how much of the input is committed, 0 while a partition has no committed offset.
func (e *exchangeSite) done() (sum int64) {
	e.t.Helper()
	all, _ := e.offsets()
	if len(all) < len(e.inputs)*int(e.parts) {
		return 0
	}
	for _, o := range all {
		sum += o.At
	}
	return sum
}

// allDone waits until everything in the inputs is committed, and the output of all n tickets with it: a checkpoint that is
// not aligned commits offsets of records that are still on their way.
func (e *exchangeSite) allDone(job *process, n int) {
	e.t.Helper()
	job.until(time.Minute, func() bool {
		all, behind := e.offsets()
		return behind == int64(e.late) && len(all) == len(e.inputs)*int(e.parts)
	}, "the group's lag is not %d", e.late)
	job.until(time.Minute, func() bool { return len(e.read(e.out)) >= n }, "fewer than %d outputs", n)
}

// flowTickets writes tickets at a steady rate until stop is closed.
func (e *exchangeSite) flowTickets(ctx context.Context, stop <-chan struct{}, perTick int) (f flow) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	failed := make(chan error, 1)
	for {
		select {
		case <-tick.C:
			for range perTick {
				e.cl.Produce(ctx, e.ticket(f.n), func(_ *kgo.Record, err error) {
					if err != nil {
						select {
						case failed <- err:
						default:
						}
					}
				})
				f.n++
			}
			continue
		case f.err = <-failed:
			return f
		case <-stop:
		}
		if f.err = e.cl.Flush(ctx); f.err == nil {
			select {
			case f.err = <-failed:
			default:
			}
		}
		return f
	}
}

// ticketPlace is where a ticket was written.
type ticketPlace struct {
	topic     string
	partition int32
	offset    int64
}

// ticketGroup is what was seen of a key of the output.
type ticketGroup struct {
	partition int32
	last      tally
	seen      map[ticketPlace]int64 // by partition of an input: the greatest offset
}

// ticketsWritten reads the inputs.
func (e *exchangeSite) ticketsWritten() map[int64]ticketPlace {
	e.t.Helper()
	inputs := map[int64]ticketPlace{}
	for _, topic := range e.inputs {
		for _, r := range e.read(topic) {
			i := int64(binary.BigEndian.Uint64(r.Value))
			if at, twice := inputs[i]; twice {
				require.Fail(e.t, "the test wrote a ticket twice", "%d: %v", i, at)
			}
			inputs[i] = ticketPlace{topic, r.Partition, r.Offset}
		}
	}
	return inputs
}

// counted wants each of n tickets to have been counted once, and gives the number of outputs.
func (e *exchangeSite) counted(n int) int {
	e.t.Helper()
	require.Eventually(e.t, func() bool {
		log, stable := e.ends(e.out)
		return maps.Equal(log, stable)
	}, 5*time.Second, 20*time.Millisecond, "a transaction stays open on %s", e.out)
	outputs, wrong := e.judge()
	require.Empty(e.t, wrong)
	require.Equal(e.t, n, outputs, "inputs without an output: %d", n-outputs)
	require.Len(e.t, e.ticketsWritten(), n+e.late)
	return outputs
}

// judge says what is wrong with the first output that is: the outputs of a group are in one partition, they number 1, 2, … n
// in order, each belongs to another ticket of the group, and the sums are those of the tickets so far. What one partition of
// an input brought comes out in its order, unless steps were spread between. It gives the number of outputs up to there.
func (e *exchangeSite) judge() (outputs int, wrong string) {
	t := e.t
	t.Helper()
	inputs := e.ticketsWritten()
	groups, used := map[string]*ticketGroup{}, map[int64]bool{}
	for _, r := range e.read(e.out) {
		got, err := tallySerde{}.Decode(r.Value)
		require.NoError(t, err)
		g := groups[string(r.Key)]
		if g == nil {
			g = &ticketGroup{partition: r.Partition, seen: map[ticketPlace]int64{}}
			groups[string(r.Key)] = g
		}
		in, known := inputs[got.last]
		from := ticketPlace{in.topic, in.partition, 0}
		before, any := g.seen[from]
		ordered := e.name != "over-hops" || in.topic != e.in
		switch {
		case g.partition != r.Partition:
			wrong = "the key is in two partitions"
		case !known || !bytes.Equal(r.Key, groupOf(got.last)):
			wrong = "there is no such ticket"
		case used[got.last]:
			wrong = "the ticket was counted twice"
		case got.n != g.last.n+1:
			wrong = "the count does not follow"
		case got.sum != g.last.sum+got.last:
			wrong = "the sum is not that of the tickets"
		case ordered && any && in.offset <= before:
			wrong = fmt.Sprintf("the input's offset %d comes after %d", in.offset, before)
		}
		if wrong != "" {
			return outputs, fmt.Sprintf("%s: %s at %s/%d@%d: %+v after %+v", wrong, r.Key, e.out, r.Partition, r.Offset, got, g.last)
		}
		used[got.last], g.seen[from], g.last = true, in.offset, got
		outputs++
	}
	return outputs, ""
}

// storesAreWhole checks the checkpoints of a job that has stopped: all handles name one root, which has every task of the
// sources at its offset and every subtask of the exchanges, and all of its runs are intact. It gives the number of keys.
func (e *exchangeSite) storesAreWhole(x exchangeSettings) (keys int64) {
	t := e.t
	t.Helper()
	repo := e.repository()
	all, _ := e.offsets()
	require.Len(t, all, len(e.inputs)*int(e.parts))
	roots := map[snapshot.RootRef]bool{}
	at := map[string]int64{}
	for _, o := range all {
		h, err := snapshot.ParseHandle(o.Metadata)
		require.NoError(t, err)
		require.Equal(t, snapshot.HandleCheckpoint, h.Kind)
		require.Equal(t, o.At, h.Offset)
		roots[h.Root] = true
		at[fmt.Sprint(o.Topic, "/", o.Partition)] = o.At
	}
	require.Len(t, roots, 1, "an application with an exchange has one root")
	for ref := range roots {
		root, err := repo.ReadRoot(e.ctx, ref)
		require.NoError(t, err)
		subtasks := 0
		for _, entry := range root.Tasks {
			for _, p := range entry.Positions {
				require.Equal(t, at[fmt.Sprint(p.Topic, "/", p.Partition)], p.Offset)
			}
			stats, err := repo.Verify(e.ctx, entry)
			require.NoError(t, err)
			if entry.Task.Source == "by-group" {
				subtasks++
				require.Equal(t, x.Parallelism, entry.Parallelism)
				keys += stats.FullEntries + stats.DeltaEntries
			}
		}
		require.Equal(t, x.Parallelism, subtasks)
	}
	return keys
}

// exchangeStats is what the checkpoints of processes were like.
type exchangeStats struct {
	committed, unaligned, abandoned int
	inFlight                        int64 // records in the unaligned ones
	mostBuffered                    int64 // in one, aligned or not
	mostInFlight                    int64
	took                            []time.Duration
}

var (
	committedLine = regexp.MustCompile(`exchange: committed id=\d+ unaligned=(\w+) buffered=(\d+) bytes=(\d+) alignment=\S+ took=(\S+)`)
	triggeredLine = regexp.MustCompile(`exchange: triggered id=\d+ inflight=(\d+)`)
	abandonedLine = regexp.MustCompile(`exchange: abandoned n=(\d+)`)
)

// read adds what a process tells.
func (st *exchangeStats) read(t *testing.T, job *process) {
	t.Helper()
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		require.NoError(t, err)
		return n
	}
	log := job.stderr.String()
	for _, m := range committedLine.FindAllStringSubmatch(log, -1) {
		st.committed++
		if m[1] == "true" {
			st.unaligned++
			st.inFlight += number(m[2])
		}
		st.mostBuffered = max(st.mostBuffered, number(m[2]))
		took, err := time.ParseDuration(m[4])
		require.NoError(t, err)
		st.took = append(st.took, took)
	}
	for _, m := range triggeredLine.FindAllStringSubmatch(log, -1) {
		st.mostInFlight = max(st.mostInFlight, number(m[1]))
	}
	for _, m := range abandonedLine.FindAllStringSubmatch(log, -1) {
		st.abandoned += int(number(m[1]))
	}
}

func (st *exchangeStats) String() string {
	return fmt.Sprintf("%d checkpoints, %d unaligned, %d records in flight (%d buffered in one at most), %d at once at most, %d abandoned",
		st.committed, st.unaligned, st.inFlight, st.mostBuffered, st.mostInFlight, st.abandoned)
}
