package topology_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

func planOf(t testing.TB, b *topology.Builder) *topology.Plan {
	t.Helper()
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

func firstLetter(_, v string) string { return v[:1] }

// stages is a topology with every kind of exchange.
func stages() *topology.Builder {
	b := topology.New("shop")
	orders := topology.FromTopic(b, "orders", "orders", serde.String(), serde.String())
	clicks := topology.FromTopic(b, "clicks", "clicks", serde.String(), serde.String(), topology.OnError(topology.Skip))
	again := topology.NewFeedback(b, "again", serde.String(), serde.String(), topology.Parallelism(3))
	all := topology.Merge("all", orders, clicks, again.Stream())
	byLetter := topology.GroupBy(topology.Map(all, "upper", upper), "letter", serde.String(), serde.String(), firstLetter, topology.Parallelism(4))
	counts := topology.Count(byLetter, "counts")
	topology.ToTopic(counts, "counts", "letter-counts", serde.String(), serde.Int64())
	again.From(topology.Filter(byLetter, "short", func(_, v string) bool { return len(v) < 3 }))
	spread := topology.Rebalance(clicks, "spread", serde.String(), serde.String())
	topology.ToTopic(topology.Broadcast(spread, "everywhere", serde.String(), serde.String(), topology.Parallelism(2)), "copies", "copies", serde.String(), serde.String())
	return b
}

func TestPlanListsStages(t *testing.T) {
	p := planOf(t, stages())
	require.True(t, p.HasExchange())
	require.True(t, p.HasFeedback())
	require.Equal(t, []topology.StagePlan{
		{Name: "orders", Index: 0, Sends: []int{3}, KeyCodec: "string", ValueCodec: "string"},
		{Name: "clicks", Index: 1, Sends: []int{3, 4}, KeyCodec: "string", ValueCodec: "string"},
		{Name: "again", Kind: topology.FeedbackStage, Index: 2, From: []string{"letter"}, Parallelism: 3, Sends: []int{3}, KeyCodec: "string", ValueCodec: "string"},
		{Name: "letter", Kind: topology.HashStage, Index: 3, From: []string{"again", "clicks", "orders"}, Parallelism: 4, Stateful: true, Sinks: []int{0}, Sends: []int{2}, KeyCodec: "string", ValueCodec: "string"},
		{Name: "spread", Kind: topology.RebalanceStage, Index: 4, From: []string{"clicks"}, Sends: []int{5}, KeyCodec: "string", ValueCodec: "string"},
		{Name: "everywhere", Kind: topology.BroadcastStage, Index: 5, From: []string{"spread"}, Parallelism: 2, Sinks: []int{1}, KeyCodec: "string", ValueCodec: "string"},
	}, p.Stages)
	require.Equal(t, []topology.StepPlan{
		{Name: "again", Kind: "feedback", Source: "again", From: "short"},
		{Name: "all", Kind: "merge", Source: "orders", From: "orders", More: []string{"clicks", "again"}},
		{Name: "upper", Kind: "map", Source: "orders", From: "all"},
		{Name: "letter", Kind: "group-by", Source: "letter", From: "upper"},
		{Name: "counts", Kind: "count", Source: "letter", From: "letter"},
		{Name: "short", Kind: "filter", Source: "letter", From: "letter"},
		{Name: "spread", Kind: "rebalance", Source: "spread", From: "clicks"},
		{Name: "everywhere", Kind: "broadcast", Source: "everywhere", From: "spread"},
	}, p.Steps)
	require.Equal(t, []topology.StatePlan{{Source: "letter", Step: "counts", Name: "aggregate", KeyCodec: "string", Codec: "int64"}}, p.States)
	require.Equal(t, "letter", p.Sinks[0].Source)
	require.False(t, p.Sources[0].Stateful || p.Sources[1].Stateful, "state is behind the exchange")

	require.NoError(t, p.CheckParallelism(4))
	err := p.CheckParallelism(3)
	require.EqualError(t, err, `topology "shop" has 1 problem: step "letter": parallelism 4 is above the max parallelism, 3, which is the number of key groups`)
	require.Equal(t, fault.BadFile, fault.CodeOf(err))

	plain := planOf(t, sample())
	require.False(t, plain.HasExchange() || plain.HasFeedback())
	require.Len(t, plain.Stages, 2)
	require.Equal(t, topology.StagePlan{Name: "orders", Stateful: true, Sinks: []int{0, 1, 2}, KeyCodec: "string", ValueCodec: "string"}, plain.Stages[0])
}

func TestDescribeShowsStages(t *testing.T) {
	p := planOf(t, stages())
	require.Equal(t, `application shop
source orders: topic orders, key string, value string, start committed
└─ merge all
   └─ map upper
      └─ to group-by letter
source clicks: topic clicks, key string, value string, start committed, on error skip
├─ merge all
│  └─ map upper
│     └─ to group-by letter
└─ to rebalance spread
feedback again: from letter, parallelism 3, key string, value string
└─ merge all
   └─ map upper
      └─ to group-by letter
group-by letter: from again and clicks and orders, parallelism 4, key string, value string
├─ count counts: state counts/aggregate@int64
│  └─ sink counts: topic letter-counts, key string, value int64
└─ filter short
   └─ to feedback again
rebalance spread: from clicks, parallelism default, key string, value string
└─ to broadcast everywhere
broadcast everywhere: from spread, parallelism 2, key string, value string
└─ sink copies: topic copies, key string (as read), value string (as read)
`, p.Describe())
	mermaid := p.Mermaid()
	for _, line := range []string{
		`{{"group-by letter"}}`, `==>|"× 4"|`, `==>|"× default"|`, `-.->|"× 3"|`, `(["count counts"])`, `["merge all"]`,
	} {
		require.Equal(t, 1, strings.Count(mermaid, line), "%s in\n%s", line, mermaid)
	}
	dot := p.Dot()
	for _, line := range []string{
		`[label="group-by letter", shape=hexagon];`, `[label="× 4", style=bold];`, `[label="× 3", style=dashed, constraint=false];`,
	} {
		require.Equal(t, 1, strings.Count(dot, line), "%s in\n%s", line, dot)
	}
}

func TestDescribeMentionsAMergeOncePerStage(t *testing.T) {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	m := topology.Merge("both", topology.Map(in, "a", upper), topology.Map(in, "b", upper))
	topology.ToTopic(topology.Count(m, "count"), "out", "out", serde.String(), serde.Int64())
	require.Equal(t, `application app
source in: topic in, key string, value string, start committed
├─ map a
│  └─ merge both
│     └─ count count: state count/aggregate@int64
│        └─ sink out: topic out, key string (as read), value int64
└─ map b
   └─ merge both (above)
`, planOf(t, b).Describe())

	// State behind a merge within one stage is fine: there is one operator for both branches.
	task, env := drive(t, b)
	require.NoError(t, task.Process(from, []element.Record{kv(0, "k", "v"), kv(1, "k", "v")}))
	require.Equal(t, []string{"k=\x00\x00\x00\x00\x00\x00\x00\x01", "k=\x00\x00\x00\x00\x00\x00\x00\x02", "k=\x00\x00\x00\x00\x00\x00\x00\x03", "k=\x00\x00\x00\x00\x00\x00\x00\x04"}, pairs(env.Out[0]))
	require.Equal(t, []string{"count/aggregate"}, env.Opened)
}

func TestPlanRefusesStagesThatMakeNoSense(t *testing.T) {
	b, other := topology.New("app"), topology.New("other")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	also := topology.FromTopic(b, "also", "also", serde.String(), serde.String())
	foreign := topology.FromTopic(other, "foreign", "foreign", serde.String(), serde.String())
	k := serde.String()

	topology.Count(topology.Merge("m1", in, also), "c1")
	topology.Count(topology.Merge("m2", in, foreign), "c2")
	topology.Merge("m3", in, in, topology.Stream[string, string]{})
	topology.Count(topology.Broadcast(in, "b", k, k), "c3")
	topology.Count(topology.Filter(topology.Rebalance(in, "r", k, k), "f", func(string, string) bool { return true }), "c4")
	topology.GroupBy[string, string, string](in, "g1", nil, k, nil, topology.Parallelism(-1))
	topology.GroupBy(in, "in", k, k, firstLetter, topology.Parallelism(topology.ParallelismMax+1))
	topology.NewFeedback(b, "f1", k, k).Stream()
	f2 := topology.NewFeedback(b, "f2", k, k)
	topology.Map(f2.Stream(), "x2", upper)
	f2.From(foreign)
	f2.From(topology.Stream[string, string]{})
	f3 := topology.NewFeedback(b, "f3", k, k)
	topology.Map(f3.Stream(), "x3", upper)
	f3.From(in)
	f3.From(also)

	_, err := b.Plan()
	var perr *topology.PlanError
	require.ErrorAs(t, err, &perr)
	var got []string
	for _, p := range perr.Problems {
		got = append(got, p.String())
	}
	require.ElementsMatch(t, []string{
		`step "c1": it keeps state by key behind a merge of the stages "also", "in", in each of which a key may be; put a group-by between`,
		`step "m2": stream "foreign" belongs to another topology`,
		`step "m3": stream "in" is merged with itself`,
		`step "m3": one of its streams belongs to no topology`,
		`step "c3": it keeps state by key behind broadcast "b", which gives a key to every subtask; put a group-by between`,
		`step "c4": it keeps state by key behind rebalance "r", which gives a key to any subtask; put a group-by between`,
		`step "g1": the key serde is nil`,
		`step "g1": the function is nil`,
		`step "g1": parallelism -1: allowed are 1 to 32768, and 0 for the default`,
		`step "g1": nothing consumes it`,
		`step "in": the name is taken by another source`,
		`step "in": parallelism 32769: allowed are 1 to 32768, and 0 for the default`,
		`step "in": nothing consumes it`,
		`step "f1": nothing consumes it`,
		`step "f1": no stream is fed back: From was not called with a stream of this topology`,
		`step "f2": stream "foreign" belongs to another topology`,
		`step "f2": no stream is fed back: From was not called with a stream of this topology`,
		`step "f3": From was called twice, with "in" and with "also"`,
	}, got)
}

func TestStepsOnTheZeroStreamMakeNoExchange(t *testing.T) {
	var zero topology.Stream[string, string]
	k := serde.String()
	require.Zero(t, topology.GroupBy(zero, "g", k, k, firstLetter))
	require.Zero(t, topology.Rebalance(zero, "r", k, k))
	require.Zero(t, topology.Broadcast(zero, "b", k, k))
	require.Zero(t, topology.Merge("m", zero))
}

// keyed is source, group by the first letter, count, sink, with what the given options say.
func keyed(t testing.TB, opts ...topology.SourceOption) *graph {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String(), opts...)
	byLetter := topology.GroupBy(in, "letter", serde.String(), serde.String(), func(_, v string) string {
		if v == "panic" {
			panic("no letter")
		}
		return firstLetter("", v)
	})
	checked := topology.MapRec(byLetter, "check", func(r *topology.Rec[string, string], out *topology.Rec[string, string]) error {
		if r.Value == "bad" {
			return errors.New("bad value")
		}
		out.Value, out.Tombstone = r.Value, r.Tombstone
		return nil
	})
	topology.ToTopic(topology.Count(checked, "count"), "out", "out", serde.String(), serde.Int64())
	topology.ToTopic(checked, "copy", "copies", serde.String(), serde.String())
	return newGraph(t, planOf(t, b), 2, 128, nil, nil)
}

// A record that fails behind an exchange names its topic, partition and offset, and meets its source's policy.
func TestErrorsBehindAnExchangeNameTheRecord(t *testing.T) {
	g := keyed(t)
	require.NoError(t, g.process("in", 1, kv(7, "k", "fine"), kv(8, "k", "bad")))
	err := g.settle(first)
	require.EqualError(t, err, "topic in partition 1 offset 8: step check: bad value")
	require.Equal(t, fault.Restart, fault.RecoveryOf(err))

	g = keyed(t, topology.OnError(topology.Skip))
	require.NoError(t, g.process("in", 1, kv(7, "k", "bug"), kv(8, "k", "bad"), kv(9, "k", "bee")))
	require.NoError(t, g.settle(first))
	require.Equal(t, []string{"check: topic in partition 1 offset 8: step check: bad value"}, g.skips())
	require.Equal(t, []string{"b=bug", "b=bee"}, pairs(g.out["copy"]))
	require.Equal(t, []int64{7, 9}, []int64{g.out["copy"][0].Offset, g.out["copy"][1].Offset})
	g.close()
}

// Each record has the policy of its own source, also in a stage that several sources feed.
func TestThePolicyIsThatOfTheRecordsSource(t *testing.T) {
	b := topology.New("app")
	strict := topology.FromTopic(b, "strict", "strict", serde.String(), serde.String())
	loose := topology.FromTopic(b, "loose", "loose", serde.String(), serde.String(), topology.OnError(topology.Skip))
	g1 := topology.GroupBy(topology.Merge("both", strict, loose), "letter", serde.String(), serde.String(), func(_, v string) string { return v[:1] })
	topology.ToTopic(topology.MapRec(g1, "never", func(r, _ *topology.Rec[string, string]) error { return errors.New("never") }), "out", "out", serde.String(), serde.String())
	g := newGraph(t, planOf(t, b), 1, 128, nil, nil)
	require.NoError(t, g.process("loose", 0, kv(1, "k", "a"), kv(2, "k", "")))
	require.NoError(t, g.settle(first))
	require.Len(t, g.skips(), 2)
	require.NoError(t, g.process("strict", 0, kv(3, "k", "a")))
	require.EqualError(t, g.settle(first), "topic strict partition 0 offset 3: step never: never")
	require.ErrorContains(t, g.process("strict", 0, kv(4, "k", "")), "topic strict partition 0 offset 4: step letter: panic: runtime error")
}

func TestGroupByMeetsPanicsTombstonesAndNullKeys(t *testing.T) {
	g := keyed(t)
	require.ErrorContains(t, g.process("in", 0, kv(3, "k", "panic")), "topic in partition 0 offset 3: step letter: panic: no letter")

	g = keyed(t, topology.OnError(topology.Skip))
	require.NoError(t, g.process("in", 0, kv(1, "k", "ab"), kv(2, "k", "panic"), rec(3, []byte("k"), nil), rec(4, nil, []byte("ac"))))
	require.NoError(t, g.settle(first))
	require.Equal(t, []string{"letter: topic in partition 0 offset 2: step letter: panic: no letter", "letter: tombstone"}, g.skips())
	require.Equal(t, []string{"a=ab", "a=ac"}, pairs(g.out["copy"]), "a null key is handed to the function")
	g.close()
}

func TestGroupByRecSeesTombstonesAndMayFail(t *testing.T) {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String(), topology.OnError(topology.Skip))
	s := topology.GroupByRec(in, "g", serde.Int64(), serde.String(), func(r *topology.Rec[string, string]) (int64, bool, error) {
		if r.Value == "err" {
			return 0, false, errors.New("no key")
		}
		return int64(len(r.Key)), r.RawKey == nil, nil
	})
	topology.ToTopic(s, "out", "out", serde.Int64(), serde.String())
	topology.ToTopic(s, "text", "text", renamedInt{serde.Int64()}, serde.String())
	g := newGraph(t, planOf(t, b), 1, 128, nil, nil)
	require.NoError(t, g.process("in", 0, rec(1, []byte("k"), nil), rec(2, nil, []byte("v")), kv(3, "k", "err"), rec(4, []byte{}, []byte{}, element.Header{Key: "h"})))
	require.NoError(t, g.settle(first))
	require.Equal(t, []string{"g: topic in partition 0 offset 2: step g: null key", "g: topic in partition 0 offset 3: step g: no key"}, g.skips())
	want := []element.Record{
		{Key: []byte{0, 0, 0, 0, 0, 0, 0, 1}, Value: nil, Timestamp: 1001, Offset: 1},
		{Key: make([]byte, 8), Value: []byte{}, Timestamp: 1004, Offset: 4, Headers: []element.Header{{Key: "h"}}},
	}
	require.ElementsMatch(t, want, g.out["out"])
	require.ElementsMatch(t, want, g.out["text"])
	g.close()
}

// What a sink writes behind an exchange: bytes as they are where the codec is the same, encoded again elsewhere.
func TestSinksBehindExchangesWriteTheRightBytes(t *testing.T) {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.Serde[string](lowering{"as is", false}))
	spread := topology.Rebalance(in, "spread", serde.Serde[string](lowering{"key", true}), serde.Serde[string](lowering{"value", true}))
	topology.ToTopic(spread, "same", "same", serde.Serde[string](lowering{"key", true}), serde.Serde[string](lowering{"value", true}))
	topology.ToTopic(spread, "raw", "raw", serde.String(), serde.String())
	kept := topology.Rebalance(in, "kept", serde.String(), serde.Serde[string](lowering{"as is", true}))
	topology.ToTopic(kept, "kept", "kept", serde.String(), serde.Serde[string](lowering{"as is", true}))
	g := newGraph(t, planOf(t, b), 1, 128, nil, nil)
	require.NoError(t, g.process("in", 0, kv(1, "KEY", "VALUE")))
	require.NoError(t, g.settle(first))
	require.Equal(t, []string{"key=value"}, pairs(g.out["same"]), "the raw key is in the exchange's codec, the value is encoded")
	require.Equal(t, []string{"KEY=VALUE"}, pairs(g.out["raw"]))
	require.Equal(t, []string{"KEY=VALUE"}, pairs(g.out["kept"]), "the bytes that were read pass")
	g.close()
}

// Behind a merge of streams in several codecs no sink takes the bytes of one for those of the other.
func TestSinksBehindAMergeWriteTheRightBytes(t *testing.T) {
	b := topology.New("app")
	raw, low := serde.Serde[string](lowering{"raw", false}), serde.Serde[string](lowering{"low", true})
	a := topology.FromTopic(b, "a", "a", raw, raw)
	c := topology.FromTopic(b, "c", "c", low, low)
	topology.ToTopic(topology.Merge("ac", a, c), "low", "low", low, low)
	topology.ToTopic(topology.Merge("ca", c, a), "too", "too", low, low)
	topology.ToTopic(topology.Rebalance(topology.Merge("again", c, a), "over", low, low), "over", "over", low, low)
	g := newGraph(t, planOf(t, b), 1, 128, nil, nil)
	require.NoError(t, g.process("a", 0, kv(1, "KEY", "VALUE")))
	require.NoError(t, g.settle(first))
	for _, sink := range []string{"low", "too", "over"} {
		require.Equal(t, []string{"key=value"}, pairs(g.out[sink]), sink)
	}
	g.close()
}

// What stands behind a merge is there once in a task.
func TestAMergeHasOneOperatorBehindIt(t *testing.T) {
	made := 0
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	m := topology.Merge("both", topology.Map(in, "a", upper), in)
	topology.Process(m, "p", func() topology.Processor[string, string, string] { made++; return deafToAll{} })
	drive(t, b)
	require.Equal(t, 2, made, "one for the plan, one for the task")
}

// parting lets a stream part and merge again n times. Each record takes one of 2^n ways.
func parting(s topology.Stream[string, string], name string, n int) topology.Stream[string, string] {
	for i := range n {
		at := fmt.Sprintf("%s%d", name, i)
		even := topology.Filter(s, at+"-even", func(_, v string) bool { return len(v)%2 == 0 })
		odd := topology.Filter(s, at+"-odd", func(_, v string) bool { return len(v)%2 == 1 })
		s = topology.Merge(at, even, odd)
	}
	return s
}

// countsClose passes everything on.
type countsClose struct {
	deaf
	closed *int
}

func (c countsClose) Process(_ *topology.ProcessContext, r *topology.Rec[string, string], out *topology.Collector[string, string]) error {
	out.Emit(r.Value)
	return nil
}

func (c countsClose) Close() error {
	*c.closed++
	return nil
}

// TestStreamsThatPartAndMergeManyTimes: an operator is released and closed once, however many ways lead to it.
func TestStreamsThatPartAndMergeManyTimes(t *testing.T) {
	closed := 0
	b := topology.New("app")
	in := parting(topology.FromTopic(b, "in", "in", serde.String(), serde.String()), "a", 30)
	behind := parting(topology.GroupBy(in, "letter", serde.String(), serde.String(), firstLetter), "b", 30)
	passed := topology.Process(behind, "pass", func() topology.Processor[string, string, string] { return countsClose{closed: &closed} })
	topology.ToTopic(passed, "out", "out", serde.String(), serde.String())
	start := time.Now()
	g := newGraph(t, planOf(t, b), 1, 128, map[string]int{"letter": 1}, nil)
	closed = 0
	require.NoError(t, g.process("in", 0, kv(0, "k", "a"), kv(1, "k", "bb")))
	require.NoError(t, g.settle(first))
	g.close()
	require.ElementsMatch(t, []string{"a=a", "b=bb"}, pairs(g.out["out"]))
	require.Equal(t, 1, closed)
	require.Less(t, time.Since(start), 2*time.Second)
}

type deafToAll struct{ deaf }

func (deafToAll) Process(*topology.ProcessContext, *topology.Rec[string, string], *topology.Collector[string, string]) error {
	return nil
}

// lowering is a codec of strings that encodes in lower case when it says so, which shows who encoded.
type lowering struct {
	name  string
	lower bool
}

func (l lowering) Name() string { return l.name }

func (l lowering) Append(dst []byte, v string) ([]byte, error) {
	if l.lower {
		v = strings.ToLower(v)
	}
	return append(dst, v...), nil
}

func (lowering) Decode(b []byte) (string, error) { return string(b), nil }

func TestParcelsHoldAtMost256RecordsInOrder(t *testing.T) {
	g := straight(t, serde.Bytes(), serde.Bytes())
	recs := make([]element.Record, 1000)
	for i := range recs {
		recs[i] = kv(int64(i), "k", "v")
	}
	require.NoError(t, g.process("in", 0, recs...))
	var lens []int
	for _, p := range g.busy()[0].parcels {
		lens = append(lens, p.Len())
		require.Greater(t, p.Size(), p.Len()*2)
	}
	require.Equal(t, []int{256, 256, 256, 232}, lens)
	require.NoError(t, g.settle(first))
	require.Equal(t, recs, g.out["out"])
}

func TestRebalanceTakesTurnsAndBroadcastReachesAll(t *testing.T) {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	topology.ToTopic(topology.Rebalance(in, "spread", serde.String(), serde.String()), "spread", "spread", serde.String(), serde.String())
	topology.ToTopic(topology.Broadcast(in, "all", serde.String(), serde.String()), "all", "all", serde.String(), serde.String())
	g := newGraph(t, planOf(t, b), 1, 128, map[string]int{"spread": 3, "all": 4}, nil)
	for i := range 6 {
		require.NoError(t, g.process("in", 0, kv(int64(i), "k", "v")))
	}
	for _, q := range g.queues {
		want := 2
		if q.to.task.ID().Source == "all" {
			want = 6
		}
		require.Len(t, q.parcels, want, "%s", q.to.task.ID())
		require.NoError(t, q.parcels[0].Encode(func(group int, _ []byte) error { require.Equal(t, -1, group); return nil }))
	}
	require.Len(t, g.queues, 7)
	require.NoError(t, g.settle(first))
	require.Len(t, g.out["all"], 24)
	g.close()
}

// A loop comes to rest when nothing is led back any more.
func TestFeedbackLoops(t *testing.T) {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	again := topology.NewFeedback(b, "again", serde.String(), serde.String())
	grown := topology.Map(topology.Merge("all", in, again.Stream()), "grow", func(_, v string) string { return v + "." })
	again.From(topology.Filter(grown, "short", func(_, v string) bool { return len(v) < 5 }))
	topology.ToTopic(topology.Filter(grown, "long", func(_, v string) bool { return len(v) >= 5 }), "out", "out", serde.String(), serde.String())
	p := planOf(t, b)
	require.Equal(t, []string{"again", "in"}, p.Stages[1].From, "the stage sends to itself, too")
	g := newGraph(t, p, 1, 128, nil, nil)
	require.NoError(t, g.process("in", 0, kv(1, "a", "a"), kv(2, "b", ""), rec(3, nil, []byte("null"))))
	require.NoError(t, g.settle(first))
	require.ElementsMatch(t, []string{"a=a....", "b=.....", "null=null."}, pairs(g.out["out"]))
	g.close()
}

func TestTasksRefuseWhatTheyCannotRun(t *testing.T) {
	p := planOf(t, stages())
	g := newGraph(t, p, 1, 128, nil, nil)
	env := g.order[0]
	_, err := p.NewTask("letter", 2, env)
	require.EqualError(t, err, "task letter-2: there are 2 subtasks")
	_, err = p.NewTask("letter", -1, env)
	require.Error(t, err)
	g.par[3] = 129
	_, err = p.NewTask("orders", 0, env)
	require.EqualError(t, err, "task orders-0: exchange letter: parallelism 129: allowed is 1 to 128, the number of key groups")
	g.par[3] = 2

	require.NoError(t, g.process("orders", 0, kv(1, "k", "v")))
	parcel := g.busy()[0].parcels[0]
	require.EqualError(t, g.tasks[element.TaskID{Source: "spread"}].task.Receive(parcel), "exchange spread was given a parcel of another one (*topology.parcel[string,string])")
	require.EqualError(t, g.tasks[element.TaskID{Source: "orders"}].task.Receive(parcel), "task orders-0 has no exchange to receive from")
	letter := g.tasks[element.TaskID{Source: "letter"}].task
	require.EqualError(t, letter.Process(element.TopicPartition{}, nil), "task letter-0 has no source to read from")
	require.EqualError(t, letter.Flush(), "task letter-0 has no source to read from", "a task that has failed lets no barrier pass")
}

// The engine's own errors are not taken for errors of a record.
func TestAnErrorOfSendEndsTheTask(t *testing.T) {
	b := topology.New("app")
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String(), topology.OnError(topology.Skip))
	topology.Count(topology.GroupBy(in, "letter", serde.String(), serde.String(), firstLetter), "count")
	task, env := drive(t, b)
	require.EqualError(t, task.Process(from, []element.Record{kv(1, "k", "v")}), "a parcel for stage 1 subtask 0")
	require.Empty(t, env.Skips)
}
