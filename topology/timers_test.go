package topology_test

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// alarm obeys its values: words like +30 and -30 set and delete timers at these times, in ms; "fail", "panic" and "emit"
// do that. At a timer it emits its time and how many it has seen for the key, and obeys the words that are kept in state.
type alarm struct {
	seen *topology.Value[int64]
	then *topology.Value[string]
	open bool
}

func (a *alarm) Open(ctx *topology.ProcessContext) error {
	a.seen = topology.ValueState(ctx, "seen", serde.Int64())
	a.then = topology.ValueState(ctx, "then", serde.String())
	if a.open {
		ctx.SetTimer(time.UnixMilli(1))
	}
	return nil
}

func (a *alarm) Process(ctx *topology.ProcessContext, in *topology.Rec[string, string], out *topology.Collector[string, string]) error {
	now, then, _ := strings.Cut(in.Value, "|")
	if then != "" {
		a.then.Set(then)
	}
	return a.obey(ctx, now, out)
}

func (a *alarm) OnTimer(ctx *topology.ProcessContext, key string, at time.Time, out *topology.Collector[string, string]) error {
	n, _ := a.seen.Get()
	a.seen.Set(n + 1)
	out.Emit(fmt.Sprintf("%s@%d#%d", key, at.UnixMilli(), n+1))
	then, _ := a.then.Get()
	a.then.Clear()
	return a.obey(ctx, then, out)
}

func (a *alarm) obey(ctx *topology.ProcessContext, words string, out *topology.Collector[string, string]) error {
	for _, word := range strings.Fields(words) {
		switch {
		case word == "fail":
			return errors.New("as told")
		case word == "panic":
			panic("as told")
		case word == "emit":
			out.Emit("now " + strconv.FormatInt(ctx.Now().UnixMilli(), 10))
		default:
			ms, _ := strconv.ParseInt(word, 10, 64)
			if word[0] == '-' {
				ctx.DeleteTimer(time.UnixMilli(-ms))
			} else {
				ctx.SetTimer(time.UnixMilli(ms))
			}
		}
	}
	return nil
}

func alarms(opts ...topology.SourceOption) *topology.Builder {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String(), opts...)
	s := topology.Process(in, "alarm", func() topology.Processor[string, string, string] { return &alarm{} })
	topology.ToTopic(s, "out", "out", serde.String(), serde.String())
	return b
}

// fire fires all timers that are due.
func fire(t require.TestingT, task *topology.Task, now int64) {
	for more := true; more; {
		var err error
		more, err = task.FireTimers(now, nil)
		require.NoError(t, err)
	}
}

func values(recs []element.Record) []string {
	var out []string
	for _, r := range recs {
		out = append(out, string(r.Value))
	}
	return out
}

func TestTimersAreStateOfThePlan(t *testing.T) {
	p := planOf(t, alarms())
	require.Equal(t, "alarm/timers@timers", p.States[2].String())
	require.True(t, p.Stages[0].Timers)
	require.True(t, p.Stages[0].Stateful)
	require.Contains(t, p.Describe(), "state alarm/timers@timers")
	require.False(t, planOf(t, stages()).Stages[3].Timers)
}

func TestTimersFireInTheOrderOfTimeOnce(t *testing.T) {
	task, env := drive(t, alarms())
	_, ok := task.NextTimer()
	require.False(t, ok)
	env.Clock = 5
	require.NoError(t, task.Process(from, []element.Record{kv(1, "b", "30 10 10 emit"), kv(2, "a", "20 10 40"), kv(3, "a", "-40 -41 -20 20")}))
	next, ok := task.NextTimer()
	require.True(t, ok)
	require.EqualValues(t, 10, next)
	more, err := task.FireTimers(9, nil)
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, []string{"now 5"}, values(env.Out[0]))
	fire(t, task, 25)
	require.Equal(t, []string{"now 5", "a@10#1", "b@10#1", "a@20#2"}, values(env.Out[0]))
	fire(t, task, 1000)
	require.Equal(t, []string{"b@30#2"}, values(env.Out[0][4:]), "40 was deleted")
	require.Equal(t, element.Record{Key: []byte("b"), Value: []byte("b@30#2"), Timestamp: 30, Offset: -1}, env.Out[0][4])
	_, ok = task.NextTimer()
	require.False(t, ok)
	require.Zero(t, env.Tables["alarm/timers"].Len())
	require.NoError(t, task.Flush())
}

// Timers are rebuilt from state; those that came due meanwhile fire in the order of time.
func TestTimersSurviveARestart(t *testing.T) {
	p := planOf(t, alarms())
	env := newMemEnv()
	task, err := p.NewTask("in", from.Partition, env)
	require.NoError(t, err)
	require.NoError(t, task.Process(from, []element.Record{kv(1, "a", "300 100"), kv(2, "b", "200 50")}))
	fire(t, task, 60)
	require.NoError(t, task.Close())
	require.Equal(t, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 100), 300), second(env.Tables["alarm/timers"].Get([]byte("a"))))

	task, err = p.NewTask("in", from.Partition, env)
	require.NoError(t, err)
	fire(t, task, 250)
	require.Equal(t, []string{"b@50#1", "a@100#1", "b@200#2"}, values(env.Out[0]))
	next, _ := task.NextTimer()
	require.EqualValues(t, 300, next)
	require.NoError(t, task.Close())

	env.Tables["alarm/timers"].Put([]byte("a"), []byte("short"))
	_, err = p.NewTask("in", from.Partition, env)
	require.ErrorContains(t, err, `open step alarm: decode state as timers: 5 bytes for key "a"`)
}

func second(b []byte, _ bool) []byte { return b }

func TestOneCallFiresAtMost256Timers(t *testing.T) {
	task, env := drive(t, alarms())
	for i := range 300 {
		require.NoError(t, task.Process(from, []element.Record{kv(int64(i), fmt.Sprint("k", i), "7")}))
	}
	more, err := task.FireTimers(7, nil)
	require.NoError(t, err)
	require.True(t, more)
	require.Len(t, env.Out[0], 256)
	more, err = task.FireTimers(7, nil)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, env.Out[0], 300)
}

func TestTimersOfAFailedRecordAreNotSet(t *testing.T) {
	task, env := drive(t, alarms(topology.OnError(topology.Skip)))
	require.NoError(t, task.Process(from, []element.Record{kv(1, "a", "10 20"), kv(2, "a", "30 -10 fail"), kv(3, "a", "30 -10 panic"), rec(4, nil, []byte("10"))}))
	require.Len(t, env.Skips, 3)
	require.ErrorIs(t, env.Skips[2].Reason, topology.ErrNullKey)
	fire(t, task, 100)
	require.Equal(t, []string{"a@10#1", "a@20#2"}, values(env.Out[0]))
}

func TestErrorsOfATimerNameStepKeyAndTime(t *testing.T) {
	for _, word := range []string{"fail", "panic"} {
		task, _ := drive(t, alarms())
		require.NoError(t, task.Process(from, []element.Record{kv(1, "a", "10|30 "+word)}))
		_, err := task.FireTimers(10, nil)
		var rerr *topology.RecordError
		require.ErrorAs(t, err, &rerr)
		require.Equal(t, `step alarm: timer of key "a" at 1970-01-01T00:00:00.010Z: `+map[string]string{"fail": "as told", "panic": "panic: as told"}[word], rerr.Error())
		require.Equal(t, &topology.TimerRef{Key: []byte("a"), At: time.UnixMilli(10)}, rerr.Timer)
		require.Equal(t, err, task.Flush())
	}

	task, env := drive(t, alarms(topology.OnError(topology.Skip)))
	require.NoError(t, task.Process(from, []element.Record{kv(1, "a", "10 20|30 fail"), kv(2, "b", "10")}))
	fire(t, task, 100)
	require.Len(t, env.Skips, 2, "its state is as it was, so it fails again")
	require.Equal(t, []string{"b@10#1"}, values(env.Out[0]))
}

// What a timer emits fails behind it as a record of a timer, under the strictest policy behind an exchange.
func TestRecordsOfTimersBehindAnExchange(t *testing.T) {
	build := func(opts ...topology.SourceOption) *graph {
		b := topology.New("app")
		in := topology.FromTopic(b, "in", "in", serde.String(), serde.String(), opts...)
		s := topology.Process(in, "alarm", func() topology.Processor[string, string, string] { return &alarm{} })
		byValue := topology.GroupBy(s, "by-value", serde.String(), serde.String(), func(_, v string) string { return v })
		topology.ToTopic(topology.MapRec(byValue, "bad", func(r, out *topology.Rec[string, string]) error {
			if strings.HasPrefix(r.Value, "bad") {
				return errors.New("bad")
			}
			out.Value = r.Value
			return nil
		}), "out", "out", serde.String(), serde.String())
		return newGraph(t, planOf(t, b), 1, 128, nil, nil)
	}
	g := build()
	task := g.tasks[element.TaskID{Source: "in"}].task
	require.NoError(t, g.process("in", 0, kv(1, "good", "10"), kv(2, "bad", "20")))
	fire(t, task, 10)
	require.NoError(t, g.settle(first))
	require.Equal(t, []string{"good@10#1=good@10#1"}, pairs(g.out["out"]))
	fire(t, task, 20)
	flights, _ := g.snapshot()
	p, err := g.tasks[element.TaskID{Source: "by-value"}].task.Restore([][]byte{flights[0].data})
	require.NoError(t, err)
	err = g.tasks[element.TaskID{Source: "by-value"}].task.Receive(p)
	require.EqualError(t, err, `step bad: record of a timer, key "bad@20#1", at 1970-01-01T00:00:00.020Z: bad`)
	var rerr *topology.RecordError
	require.ErrorAs(t, err, &rerr)
	require.Equal(t, &topology.TimerRef{Key: []byte("bad@20#1"), At: time.UnixMilli(20)}, rerr.Timer)
	require.True(t, rerr.Emitted)

	g = build(topology.OnError(topology.Skip))
	require.NoError(t, g.process("in", 0, kv(2, "bad", "20")))
	fire(t, g.tasks[element.TaskID{Source: "in"}].task, 20)
	require.NoError(t, g.settle(first))
	require.Equal(t, []string{`bad: step bad: record of a timer, key "bad@20#1", at 1970-01-01T00:00:00.020Z: bad`}, g.skips())
}

// badSerde encodes nothing.
type badSerde struct{ serde.Serde[string] }

func (badSerde) Append([]byte, string) ([]byte, error) { return nil, errors.New("no good") }

// A record of a timer is named by key and time wherever it fails: in a step, on the way into an exchange, in a sink.
func TestRecordsOfTimersAreNamedWhereverTheyFail(t *testing.T) {
	fails := errors.New("no good")
	for name, rest := range map[string]func(topology.Stream[string, string]){
		"step": func(s topology.Stream[string, string]) {
			topology.ToTopic(topology.MapRec(s, "step", func(_, _ *topology.Rec[string, string]) error { return fails }), "out", "out", serde.String(), serde.String())
		},
		"group": func(s topology.Stream[string, string]) {
			by := topology.GroupBy(s, "group", serde.String(), serde.String(), func(string, string) string { panic(fails) })
			topology.ToTopic(by, "out", "out", serde.String(), serde.String())
		},
		"sink": func(s topology.Stream[string, string]) {
			topology.ToTopic(s, "sink", "out", serde.String(), badSerde{serde.String()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := topology.New("app")
			in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
			rest(topology.Process(in, "alarm", func() topology.Processor[string, string, string] { return &alarm{} }))
			g := newGraph(t, planOf(t, b), 1, 128, nil, nil)
			require.NoError(t, g.process("in", 0, kv(1, "a", "10")))
			_, err := g.tasks[element.TaskID{Source: "in"}].task.FireTimers(10, nil)
			var rerr *topology.RecordError
			require.ErrorAs(t, err, &rerr)
			require.Equal(t, name, rerr.Step)
			require.True(t, rerr.Emitted)
			require.Equal(t, &topology.TimerRef{Key: []byte("a"), At: time.UnixMilli(10)}, rerr.Timer)
		})
	}
}

func TestTimersAreBounded(t *testing.T) {
	task, env := drive(t, alarms(topology.OnError(topology.Skip)))
	var words []string
	for i := range topology.TimersPerKeyMax {
		words = append(words, strconv.Itoa(i+1))
	}
	all := strings.Join(words, " ")
	require.NoError(t, task.Process(from, []element.Record{kv(1, "a", all), kv(2, "a", "5000"), kv(3, "a", "-7 5000"), kv(4, "a", all+" "+all+" 1")}))
	require.Len(t, env.Skips, 2)
	require.ErrorIs(t, env.Skips[0].Reason, topology.ErrTooManyTimers)
	require.ErrorContains(t, env.Skips[1].Reason, "more than 2048 timers set and deleted for one record")
	require.Len(t, second(env.Tables["alarm/timers"].Get([]byte("a"))), 8*topology.TimersPerKeyMax)
}

// Setting and deleting a timer again and again, as an idle timeout does, holds no memory.
func TestDeletedTimersHoldNoMemory(t *testing.T) {
	task, env := drive(t, alarms())
	for i := range 20_000 {
		far := 1_000_000 + i
		words := fmt.Sprintf("%d -%d", far, far-1)
		if i%2 == 0 {
			words = fmt.Sprintf("%d -%d 900000 -900000", far, far-1)
		}
		require.NoError(t, task.Process(from, []element.Record{kv(int64(i), "a", words)}))
		require.LessOrEqual(t, topology.HeapLen(task), 2+1024+2)
	}
	fire(t, task, 2_000_000)
	require.Equal(t, []string{"a@1019999#1"}, values(env.Out[0]))
}

func TestTimersAtTheEndsOfTime(t *testing.T) {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	topology.ToTopic(topology.Process(in, "ends", func() topology.Processor[string, string, string] { return &ends{} }), "out", "out", serde.String(), serde.String())
	task, env := drive(t, b)
	require.NoError(t, task.Process(from, []element.Record{kv(1, "a", "")}))
	next, _ := task.NextTimer()
	require.Zero(t, next)
	fire(t, task, math.MaxInt64-1)
	require.Equal(t, []string{"0"}, values(env.Out[0]))
	next, _ = task.NextTimer()
	require.EqualValues(t, math.MaxInt64, next)
}

type ends struct{}

func (ends) Open(*topology.ProcessContext) error { return nil }

func (ends) Process(ctx *topology.ProcessContext, _ *topology.Rec[string, string], _ *topology.Collector[string, string]) error {
	ctx.SetTimer(time.Time{})
	ctx.SetTimer(time.Unix(-1, 0))
	ctx.SetTimer(time.Unix(math.MaxInt64/10, 0))
	return nil
}

func (ends) OnTimer(_ *topology.ProcessContext, _ string, at time.Time, out *topology.Collector[string, string]) error {
	out.Emit(strconv.FormatInt(at.UnixMilli(), 10))
	return nil
}

func TestTimersAreRefusedWhereTheyCannotBe(t *testing.T) {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	topology.Process(in, "reserved", func() topology.Processor[string, string, string] { return reserved{} })
	topology.Process(in, "early", func() topology.Processor[string, string, string] { return &alarm{open: true} })
	_, err := b.Plan()
	require.ErrorContains(t, err, `step "reserved": opening it to learn its states: state "timers": the name is reserved for timers`)
	require.ErrorContains(t, err, `step "early": opening it to learn its states: timer: keyed state used outside of Process`)

	b = topology.New("app")
	in = topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	topology.Process(in, "deaf", func() topology.Processor[string, string, string] { return deaf{} })
	task, _ := drive(t, b)
	require.ErrorIs(t, task.Process(from, []element.Record{kv(1, "a", "")}), topology.ErrNoOnTimer)
}

type reserved struct{ deaf }

func (reserved) Open(ctx *topology.ProcessContext) error {
	topology.ValueState(ctx, "timers", serde.Int64())
	return nil
}

// deaf sets timers and has no OnTimer.
type deaf struct{}

func (deaf) Open(*topology.ProcessContext) error { return nil }

func (deaf) Process(ctx *topology.ProcessContext, _ *topology.Rec[string, string], _ *topology.Collector[string, string]) error {
	ctx.SetTimer(time.UnixMilli(1))
	return nil
}

// Two steps with timers in one task fire in the order of time, too.
func TestTimersOfSeveralStepsFireInTheOrderOfTime(t *testing.T) {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	for _, name := range []string{"one", "two"} {
		only := topology.FilterRec(in, "for-"+name, func(r *topology.Rec[string, string]) (bool, error) { return strings.HasPrefix(r.Key, name), nil })
		s := topology.Process(only, name, func() topology.Processor[string, string, string] { return &alarm{} })
		topology.ToTopic(s, name, "out", serde.String(), serde.String())
	}
	plan := planOf(t, b)
	env := &ordered{memEnv: newMemEnv()}
	task, err := plan.NewTask("in", from.Partition, env)
	require.NoError(t, err)
	require.NoError(t, task.Process(from, []element.Record{kv(1, "one", "10 30 50"), kv(2, "two", "20 30 40"), kv(3, "one!", "5 45")}))
	fire(t, task, 100)
	require.Equal(t, "5 10 20 30 30 40 45 50", strings.Join(env.times, " "))
}

type ordered struct {
	*memEnv
	times []string
}

func (o *ordered) Emit(_ int, recs []element.Record) error {
	for _, r := range recs {
		o.times = append(o.times, strconv.FormatInt(r.Timestamp, 10))
	}
	return nil
}

// Timers do what a list of pending ones does, over restarts.
func TestTimersMatchAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type pending struct {
			at  int64
			key string
		}
		plan := planFor(t, alarms())
		env := newMemEnv()
		task, err := plan.NewTask("in", from.Partition, env)
		require.NoError(t, err)
		var model []pending
		var want []string
		now, offset := int64(0), int64(0)
		seen := map[string]int{}
		for range rapid.IntRange(1, 80).Draw(t, "operations") {
			switch rapid.IntRange(0, 9).Draw(t, "operation") {
			default:
				p := pending{rapid.Int64Range(0, 60).Draw(t, "at"), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key")}
				word := strconv.FormatInt(p.at, 10)
				i := slices.Index(model, p)
				if rapid.IntRange(0, 2).Draw(t, "delete") == 0 {
					word = "-" + word
					if i >= 0 {
						model = slices.Delete(model, i, i+1)
					}
				} else if i < 0 {
					model = append(model, p)
				}
				require.NoError(t, task.Process(from, []element.Record{kv(offset, p.key, word)}))
				offset++
			case 8:
				now += rapid.Int64Range(0, 20).Draw(t, "later")
				slices.SortFunc(model, func(a, b pending) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.key, b.key)) })
				for len(model) > 0 && model[0].at <= now {
					seen[model[0].key]++
					want = append(want, fmt.Sprintf("%s@%d#%d", model[0].key, model[0].at, seen[model[0].key]))
					model = model[1:]
				}
				fire(t, task, now)
			case 9:
				require.NoError(t, task.Close())
				task, err = plan.NewTask("in", from.Partition, env)
				require.NoError(t, err)
			}
			require.Equal(t, want, values(env.Out[0]))
			require.Equal(t, len(model), topology.PendingTimers(task))
			next, ok := task.NextTimer()
			require.Equal(t, len(model) > 0, ok)
			for i, p := range model {
				if i == 0 || p.at < next {
					require.LessOrEqual(t, next, p.at)
				}
			}
		}
	})
}

func planFor(t require.TestingT, b *topology.Builder) *topology.Plan {
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// Timers behind an exchange move with their keys when the parallelism changes, and fire once.
func TestTimersMoveWithTheirKeys(t *testing.T) {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	byKey := topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k })
	s := topology.Process(byKey, "alarm", func() topology.Processor[string, string, string] { return &alarm{} })
	topology.ToTopic(s, "out", "out", serde.String(), serde.String())
	plan := planOf(t, b)
	g := newGraph(t, plan, 1, 128, map[string]int{"by-key": 2}, nil)
	var want []string
	for i := range 50 {
		require.NoError(t, g.process("in", 0, kv(int64(i), fmt.Sprint("k", i), fmt.Sprint(100+i, " ", 200+i))))
		want = append(want, fmt.Sprintf("k%d@%d#1", i, 100+i), fmt.Sprintf("k%d@%d#2", i, 200+i))
	}
	var got []string
	for round, par := range []int{4, 3, 1} {
		for _, q := range g.busy() { // the rest is in flight when the snapshot is taken
			require.NoError(t, q.step())
		}
		flights, states := g.snapshot()
		got = append(got, values(g.out["out"])...)
		g.close()
		g = restore(t, plan, 1, 128, map[string]int{"by-key": par}, flights, states, first)
		require.NoError(t, g.settle(first))
		for _, gt := range g.order {
			fire(t, gt.task, int64(120+round*60))
		}
	}
	for _, gt := range g.order {
		fire(t, gt.task, 1000)
	}
	got = append(got, values(g.out["out"])...)
	require.ElementsMatch(t, want, got)
	g.close()
}
