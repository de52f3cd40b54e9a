package processor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// runWorld is one of two partitions that two instances read, each bounded by its latest offset.
type runWorld struct {
	log       [2]int64 // ends now
	committed [2]kafka.Committed
	kept      [2]kafka.Committed
	owner     [2]int // instance, -1: nobody
	inst      [2]runInstance
}

type runInstance struct {
	pc    int // what it does next; see step
	facts runFacts
	run   int64
	took  [2]kafka.Committed // what it has read of committed and kept
	saw   [2]kafka.Committed
	end   [2]int64
}

const what = "end of topic id x by latest"

func kept(run, offset int64) kafka.Committed {
	return kafka.Committed{Found: true, Offset: offset, Metadata: keptEnd{run: run, what: what}.note()}
}

// step lets an instance do the next thing; false: it has nothing to do.
func (w *runWorld) step(t *testing.T, i int) bool {
	in := &w.inst[i]
	other := 1 - i
	switch in.pc {
	case 0: // a process starts: what is committed is read
		in.took = w.committed
	case 1: // what is kept
		in.facts = runFacts{{committed: in.took[0], kept: w.kept[0], what: what}, {committed: in.took[1], kept: w.kept[1], what: what}}
		in.run = in.facts.run()
	case 2: // it joins: a partition for each, or both for one that is alone
		for p := range w.owner {
			switch pc := w.inst[other].pc; {
			case w.owner[p] == other && p == i && pc > 3 && pc < 8:
				return false // the other one works on what it has read: it gives it up later
			case w.owner[p] == -1, p == i:
				w.owner[p] = i
			}
		}
	case 3: // an attempt begins
	case 4:
		in.took = w.committed
	case 5:
		in.saw = w.kept
	case 6: // keeps the ends of its partitions
		for p := range w.owner {
			if w.owner[p] == i {
				k := endFacts{committed: in.took[p], kept: in.saw[p], what: what}.end(in.run, w.log[p])
				in.end[p], w.kept[p] = k.offset, kafka.Committed{Found: true, Offset: k.offset, Metadata: k.note()}
			}
		}
	case 7: // works up to them and commits
		for p := range w.owner {
			if w.owner[p] == i {
				require.LessOrEqual(t, w.committed[p].Offset, in.end[p], "no position goes back")
				require.GreaterOrEqual(t, w.committed[p].Offset, in.took[p].Offset)
				w.committed[p].Offset = in.end[p]
			}
		}
	case 8: // leaves; the other one gets what it had
		for p := range w.owner {
			if w.owner[p] == i {
				w.owner[p] = -1
				if pc := w.inst[other].pc; pc > 2 && pc < 9 {
					w.owner[p] = other
					w.inst[other].pc = 3
				}
			}
		}
	default:
		return false
	}
	in.pc++
	return true
}

// All interleavings of two instances that start behind a run that is over, while records come: one run begins, both take part
// in it, and every partition has one end.
func TestTwoThatStartTogetherTakePartInOneRun(t *testing.T) {
	seen := map[string]bool{}
	var ends, finished int
	var play func(w runWorld)
	play = func(w runWorld) {
		key := fmt.Sprintf("%+v", w)
		if seen[key] {
			return
		}
		seen[key] = true
		moved := false
		for i := range w.inst {
			next := w
			if next.step(t, i) {
				moved = true
				for p := range next.kept {
					was, is := w.kept[p], next.kept[p]
					if was == is {
						continue
					}
					before, _ := parseEnd(was)
					after, _ := parseEnd(is)
					if before.run >= after.run || after.offset < before.offset {
						require.FailNow(t, "the end of a run is resolved once", "%v, %v", was, is)
					}
					ends++
				}
				next.log[0]++
				next.log[1]++
				play(next)
			}
		}
		if moved {
			return
		}
		finished++
		early, late := w.inst[0], w.inst[1]
		if early.run > late.run {
			early, late = late, early
		}
		require.EqualValues(t, 2, early.run)
		if early.run != late.run {
			require.EqualValues(t, 3, late.run)
			require.True(t, late.facts.over(early.run), "only one that starts when the other is through begins another run")
			return
		}
		facts := runFacts{{committed: w.committed[0], kept: w.kept[0], what: what}, {committed: w.committed[1], kept: w.kept[1], what: what}}
		require.True(t, facts.over(2))
		require.False(t, facts.over(3))
	}
	w := runWorld{log: [2]int64{20, 30}, owner: [2]int{-1, -1}, kept: [2]kafka.Committed{kept(1, 10), kept(1, 10)}}
	for p := range w.committed {
		w.committed[p] = kafka.Committed{Found: true, Offset: 10}
	}
	play(w)
	t.Logf("%d states, %d ends", len(seen), ends)
	require.Positive(t, finished)
	require.Positive(t, ends)
}

// Both processors of an application start behind a finished run, again and again: they end by themselves, what was there when
// the run began is counted once, and nobody reads beyond the ends that the first of them has found.
func TestTwoProcessorsStartOneBoundedRun(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "bounded-pair"
	b.groups[app], b.groups[endsGroup(app)] = true, true
	var both atomic.Pointer[sync.WaitGroup] // the work begins when both know their run
	tb := topology.New(app)
	in := topology.FromTopic(tb, "in", inTopic(), serde.Bytes(), serde.Bytes(), topology.EndAt(topology.EndLatest()))
	topology.ToTopic(topology.Map(in, "wait", func(_, v []byte) []byte { both.Load().Wait(); return v }), "out", outTopic(), serde.Bytes(), serde.Bytes())
	plan, err := tb.Plan()
	require.NoError(t, err)
	b.produce(0, 400)
	for round := range 8 {
		var mu sync.Mutex
		runs := map[int64]int{}
		var known sync.WaitGroup
		known.Add(2)
		both.Store(&known)
		start, wait := make(chan struct{}), sync.WaitGroup{}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		errs := make([]error, 2)
		for i := range 2 {
			cfg := b.config()
			cfg.DataDir, cfg.CheckpointsDir = fmt.Sprintf("%s/%d", b.dir, i), b.dir+"/checkpoints"
			cfg.started = func(s *service) {
				mu.Lock()
				defer mu.Unlock()
				runs[s.reads.run]++
				known.Done()
			}
			wait.Go(func() {
				<-start
				time.Sleep(time.Duration(i*round) * 5 * time.Millisecond)
				errs[i] = Run(ctx, plan, cfg)
			})
		}
		close(start)
		wait.Wait()
		require.NoError(t, errs[0])
		require.NoError(t, errs[1])
		require.NoError(t, ctx.Err(), "they ended by themselves")
		cancel()
		require.Equal(t, map[int64]int{int64(round + 1): 2}, runs, "one run, and both take part in it: %v", slices.Collect(maps.Keys(runs)))
		require.Equal(t, upTo(0, 400+40*round), b.output())
		require.Zero(t, b.lag(app))
		for _, group := range []string{app, endsGroup(app)} { // all ends are of this run, and reached
			at, err := kafka.StableOffsets(t.Context(), b.cl, group, []element.TopicPartition{input(0), input(1), input(2), input(3)})
			require.NoError(t, err)
			sum := int64(0)
			for _, c := range at {
				if k, _ := parseEnd(c); group != app {
					require.EqualValues(t, round+1, k.run)
				}
				sum += c.Offset
			}
			require.EqualValues(t, 400+40*round, sum, group)
		}
		b.produce(400+40*round, 40)
	}
}
