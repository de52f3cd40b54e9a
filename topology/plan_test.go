package topology_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

func upper(_, v string) string { return strings.ToUpper(v) }

// sample is a topology of two sources, branches and states.
func sample() *topology.Builder {
	b := topology.New("order-totals")
	orders := topology.FromTopic(b, "orders", "orders", serde.String(), serde.String(), topology.StartAt(topology.Latest()), topology.OnError(topology.Skip))
	paid := topology.Filter(orders, "paid", func(string, string) bool { return true })
	topology.ToTopic(topology.Count(paid, "totals"), "totals", "order-totals", serde.String(), serde.Int64())
	topology.ToTopic(topology.Map(paid, "upper", upper), "upper", "shouted", serde.String(), serde.String(), topology.WithoutHeaders())
	topology.ToTopic(paid, "copy", "copies", serde.String(), serde.String())
	clicks := topology.FromTopic(b, "clicks", "clicks", serde.Int64(), serde.Bytes())
	topology.ToTopic(clicks, "clicks", "shouted", renamedInt{}, serde.Bytes())
	return b
}

type renamedInt struct{ serde.Serde[int64] }

func (renamedInt) Name() string { return "number" }

func TestPlanListsSourcesStepsSinksAndStates(t *testing.T) {
	p, err := sample().Plan()
	require.NoError(t, err)
	require.Equal(t, "order-totals", p.Application)
	require.Equal(t, []topology.SourcePlan{
		{Name: "orders", Topic: "orders", Start: topology.Latest(), Stateful: true, KeyCodec: "string", ValueCodec: "string", OnError: topology.Skip},
		{Name: "clicks", Topic: "clicks", Start: topology.Committed(), KeyCodec: "int64", ValueCodec: "bytes"},
	}, p.Sources)
	require.Equal(t, []topology.StepPlan{
		{Name: "paid", Kind: "filter", Source: "orders", From: "orders"},
		{Name: "totals", Kind: "count", Source: "orders", From: "paid"},
		{Name: "upper", Kind: "map", Source: "orders", From: "paid"},
	}, p.Steps)
	require.Equal(t, []topology.SinkPlan{
		{Index: 0, Name: "totals", Topic: "order-totals", Source: "orders", From: "totals", KeyCodec: "string", ValueCodec: "int64"},
		{Index: 1, Name: "upper", Topic: "shouted", Source: "orders", From: "upper", KeyCodec: "string", ValueCodec: "string"},
		{Index: 2, Name: "copy", Topic: "copies", Source: "orders", From: "paid", KeyCodec: "string", ValueCodec: "string"},
		{Index: 3, Name: "clicks", Topic: "shouted", Source: "clicks", From: "clicks", KeyCodec: "number", ValueCodec: "bytes"},
	}, p.Sinks)
	require.Equal(t, []topology.StatePlan{
		{Source: "orders", Step: "totals", Name: "aggregate", KeyCodec: "string", Codec: "int64"},
	}, p.States)
	require.Equal(t, "totals/aggregate@int64", p.States[0].String())
}

func TestDescribe(t *testing.T) {
	p, err := sample().Plan()
	require.NoError(t, err)
	require.Equal(t, `application order-totals
source orders: topic orders, key string, value string, start latest, on error skip
└─ filter paid
   ├─ count totals: state totals/aggregate@int64
   │  └─ sink totals: topic order-totals, key string (as read), value int64
   ├─ map upper
   │  └─ sink upper: topic shouted, key string (as read), value string, without headers
   └─ sink copy: topic copies, key string (as read), value string (as read)
source clicks: topic clicks, key int64, value bytes, start committed
└─ sink clicks: topic shouted, key number, value bytes (as read)
`, p.Describe())
	require.Equal(t, `flowchart LR
  t0[("orders")]
  t1[("order-totals")]
  t2[("shouted")]
  t3[("copies")]
  t4[("clicks")]
  n0["source orders"]
  n1["filter paid"]
  n2(["count totals"])
  n3["sink totals"]
  n4["map upper"]
  n5["sink upper"]
  n6["sink copy"]
  n7["source clicks"]
  n8["sink clicks"]
  t0 --> n0
  n0 --> n1
  n1 --> n2
  n2 --> n3
  n3 --> t1
  n1 --> n4
  n4 --> n5
  n5 --> t2
  n1 --> n6
  n6 --> t3
  t4 --> n7
  n7 --> n8
  n8 --> t2
`, p.Mermaid())
	dot := p.Dot()
	require.True(t, strings.HasPrefix(dot, "digraph \"order-totals\" {\n"), dot)
	require.Contains(t, dot, `n2 [label="count totals", peripheries=2];`)
	require.Contains(t, dot, `t1 [label="order-totals", shape=cylinder];`)
	require.Contains(t, dot, `n3 -> t1;`)
}

func TestPlanReportsAllProblemsAtOnce(t *testing.T) {
	b := topology.New("")
	a := topology.FromTopic(b, "a", "in", serde.String(), serde.String(), topology.StartAt(topology.Start{Kind: 9}), topology.OnError(7))
	topology.FromTopic(b, "b", "in", serde.String(), serde.String())
	topology.FromTopic[string, string](b, "c", "..", nil, nil)
	topology.Filter(a, "a", func(string, string) bool { return true })
	topology.Filter(a, "no spaces", func(string, string) bool { return true })
	topology.Map[string, string, string](a, "nothing", nil)
	topology.Count(a, "count")
	topology.Count(a, "count")
	topology.Aggregate[string, string, int64](a, "acc", nil, func(n int64, _ string) int64 { return n })
	topology.Process[string, string, string](a, "proc", nil)
	topology.Process(a, "nilproc", func() topology.Processor[string, string, string] { return nil })
	topology.ToTopic(a, "sink", "in", serde.String(), serde.String())
	topology.ToTopic(a, "sink", "to/pic", serde.String(), serde.Serde[string](renamed{""}))
	topology.ToTopic(a, "", "out", serde.String(), serde.Serde[string](panicky{}))

	_, err := b.Plan()
	var perr *topology.PlanError
	require.ErrorAs(t, err, &perr)
	require.Equal(t, fault.Stop, fault.RecoveryOf(err))
	require.Equal(t, fault.BadFile, fault.CodeOf(err))
	const nameRule, topicRule = "a name matches ^[A-Za-z0-9._-]{1,128}$", "a topic name matches ^[A-Za-z0-9._-]{1,249}$ and is not . or .."
	got := make([]string, len(perr.Problems))
	for i, p := range perr.Problems {
		got[i] = p.String()
	}
	require.ElementsMatch(t, []string{
		`application "": ` + nameRule,
		`source "a": policy(7): allowed are fail and skip`,
		`source "a": start(9): allowed are committed, earliest, latest, timestamp, ago and offsets`,
		`source "b": topic "in" is already read by source "a"; let several steps consume that source`,
		`source "b": nothing consumes it`,
		`source "c": nothing consumes it`,
		`source "c": the key serde is nil`,
		`source "c": the value serde is nil`,
		`source "c": topic "..": ` + topicRule,
		`step "a": the name is taken by another source`,
		`step "no spaces": ` + nameRule,
		`step "nothing": the function is nil`,
		`step "count": the name is taken by another count`,
		`step "acc": the accumulator serde is nil`,
		`step "proc": the function is nil`,
		`step "nilproc": opening it to learn its states: the function gives a nil Processor`,
		`sink "sink": topic "in" is read by source "a": a loop; where that is meant, say so with Loop()`,
		`sink "sink": the name is taken by another sink`,
		`sink "sink": topic "to/pic": ` + topicRule,
		`sink "sink": the value serde has an empty name`,
		`sink "": ` + nameRule,
		`sink "": the value serde panics when asked for its name: unnamed`,
	}, got)
	for _, p := range got {
		require.Contains(t, err.Error(), p)
	}
	require.Contains(t, err.Error(), `topology "" has 22 problems: `)
}

type panicky struct{ serde.Serde[string] }

func (panicky) Name() string { panic(errors.New("unnamed")) }

func TestAnEmptyTopologyIsAProblem(t *testing.T) {
	_, err := topology.New("app").Plan()
	require.EqualError(t, err, `topology "app" has 1 problem: application "app": there is no source`)
}

func TestStepsOnTheZeroStreamBelongToNothing(t *testing.T) {
	var zero topology.Stream[string, string]
	s := topology.Filter(zero, "f", func(string, string) bool { return true })
	topology.ToTopic(topology.Map(s, "m", upper), "sink", "out", serde.String(), serde.String())
	topology.Count(s, "c")
	topology.Process(s, "p", func() topology.Processor[string, string, string] { return nil })
	require.Zero(t, s)
}

func TestAPlanDoesNotChangeWithItsBuilder(t *testing.T) {
	b := sample()
	p, err := b.Plan()
	require.NoError(t, err)
	before := p.Describe()
	again := topology.FromTopic(b, "late", "late", serde.String(), serde.String())
	topology.ToTopic(again, "late", "out", serde.String(), serde.String())
	require.Equal(t, before, p.Describe())
	q, err := b.Plan()
	require.NoError(t, err)
	require.Len(t, q.Sources, 3)
	require.Len(t, p.Sources, 2)
}

func TestPolicyAndStartNames(t *testing.T) {
	require.Equal(t, "fail skip", topology.Fail.String()+" "+topology.Skip.String())
	require.Equal(t, "committed earliest latest", topology.Committed().String()+" "+topology.Earliest().String()+" "+topology.Latest().String())
	require.Equal(t, topology.Start{}, topology.Committed())
}

func TestTheNameOfTheStoreIDIsReserved(t *testing.T) {
	b := topology.New("millweir-store-id")
	topology.ToTopic(topology.FromTopic(b, "in", "in", serde.String(), serde.String()), "out", "out", serde.String(), serde.String())
	_, err := b.Plan()
	require.ErrorContains(t, err, `application "millweir-store-id": the name is reserved`)
	require.Equal(t, fault.BadFile, fault.CodeOf(err))
}

// called is a codec of strings with another name.
type called struct {
	serde.Serde[string]
	name string
}

func (n called) Name() string { return n.name }

func TestCodecsOfStateHaveNamesThatCheckpointsHold(t *testing.T) {
	plan := func(key, acc, value string) error {
		b := topology.New("app")
		s := topology.FromTopic(b, "src", "in", serde.Serde[string](called{serde.String(), key}), serde.String())
		kept := topology.Aggregate(s, "agg", serde.Serde[string](called{serde.String(), acc}), func(_ string, v string) string { return v })
		topology.ToTopic(kept, "out", "out", serde.String(), serde.Serde[string](called{serde.String(), value}))
		_, err := b.Plan()
		return err
	}
	require.NoError(t, plan("key", strings.Repeat("x", 512), "no state, no rule"))
	for _, name := range []string{"my codec", "tab\t", "é", strings.Repeat("x", 513)} {
		require.ErrorContains(t, plan("key", name, "value"), "of the codec of its state aggregate is not stored in checkpoints", name)
		require.ErrorContains(t, plan(name, "acc", "value"), "of the codec of its keys is not stored in checkpoints", name)
	}
}
