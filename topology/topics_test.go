package topology_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// marked reads with a source and marks each value; the marked ones go to out.
func marked(b *topology.Builder, in topology.Stream[string, string]) {
	m := topology.Map(in, "mark", func(_, v string) string { return v + "!" })
	topology.ToTopic(m, "out", "out", serde.String(), serde.String())
	_ = b
}

func runs(t *testing.T, p *topology.Plan, source, topic string) {
	t.Helper()
	env := newMemEnv()
	task, err := p.NewTask(source, 0, env)
	require.NoError(t, err)
	require.NoError(t, task.Process(element.TopicPartition{Topic: topic}, []element.Record{kv(0, "k", topic)}))
	require.NoError(t, task.Flush())
	require.Equal(t, []string{"k=" + topic + "!"}, pairs(env.Out[0]))
	require.NoError(t, task.Close())
}

func TestASourceOfSeveralTopics(t *testing.T) {
	b := topology.New("app")
	marked(b, topology.FromTopics(b, "in", []string{"a", "b.c"}, serde.String(), serde.String(), topology.StartAt(topology.Latest())))
	p, err := b.Plan()
	require.NoError(t, err)
	require.False(t, p.HasPattern())
	require.Len(t, p.Sources, 2)
	require.Equal(t, topology.SourcePlan{Name: "in.a", Topic: "a", Start: topology.Latest(), KeyCodec: "string", ValueCodec: "string"}, p.Sources[0])
	require.Equal(t, "in.b.c b.c", p.Sources[1].Name+" "+p.Sources[1].Topic)
	require.False(t, p.HasExchange())
	runs(t, p, "in.a", "a")
	runs(t, p, "in.b.c", "b.c")

	one := topology.New("app")
	marked(one, topology.FromTopics(one, "in", []string{"a"}, serde.String(), serde.String()))
	p, err = one.Plan()
	require.NoError(t, err)
	require.Equal(t, "in.a", p.Sources[0].Name, "it keeps its name when the list grows")
}

func TestSeveralTopicsThatMakeNoSense(t *testing.T) {
	for says, topics := range map[string][]string{
		"no topic is named": nil, `already read by source "in.a"`: {"a", "a"}, `topic "b c"`: {"b c"}, "a loop": {"out"},
	} {
		b := topology.New("app")
		other := topology.FromTopic(b, "other", "other", serde.String(), serde.String())
		topology.ToTopic(other, "copy", "copy", serde.String(), serde.String())
		marked(b, topology.FromTopics(b, "in", topics, serde.String(), serde.String()))
		_, err := b.Plan()
		require.ErrorContains(t, err, says)
	}
	b := topology.New("app")
	n := topology.Count(topology.FromTopics(b, "in", []string{"a", "b"}, serde.String(), serde.String()), "count")
	topology.ToTopic(n, "out", "out", serde.String(), serde.Int64())
	_, err := b.Plan()
	require.ErrorContains(t, err, `"in.a", "in.b", in each of which a key may be; put a group-by between`)
}

// patterned is a topology with two patterns, a topic that is named, and two outputs.
func patterned(t *testing.T) *topology.Plan {
	t.Helper()
	b := topology.New("app")
	orders := topology.FromPattern(b, "orders", `orders-[a-z]+`, serde.String(), serde.String(), topology.OnError(topology.Skip))
	marked(b, orders)
	special := topology.FromTopic(b, "special", "orders-special", serde.String(), serde.String())
	clicks := topology.FromPattern(b, "clicks", `clicks|taps\.[0-9]`, serde.String(), serde.String())
	counted := topology.Count(topology.GroupBy(topology.Merge("all", special, clicks), "by-value", serde.String(), serde.String(), func(_, v string) string { return v }), "count")
	topology.ToTopic(counted, "counts", "orders-counts", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

func TestAPatternIsResolved(t *testing.T) {
	p := patterned(t)
	require.True(t, p.HasPattern())
	require.Equal(t, "orders-[a-z]+", p.Sources[0].Pattern)
	require.Empty(t, p.Sources[0].Topic)
	require.Contains(t, p.Describe(), "source orders: topic /orders-[a-z]+/, key string")
	require.Contains(t, p.Mermaid(), "/orders-[a-z]+/")

	matched := p.Match(strings.Fields("orders-eu orders-us orders-EU my-orders-eu orders-eu-2 orders-special orders-counts orders-control clicks clicks2 taps.7 tapsx7 __orders orders-eu"), "orders-control")
	require.Equal(t, map[string][]string{"orders": {"orders-eu", "orders-us"}, "clicks": {"clicks", "taps.7"}}, matched)
	q, err := p.Resolve(matched)
	require.NoError(t, err)
	require.False(t, q.HasPattern())
	var names []string
	for _, s := range q.Sources {
		names = append(names, s.Name+"="+s.Topic)
	}
	require.Equal(t, strings.Fields("orders.orders-eu=orders-eu orders.orders-us=orders-us special=orders-special clicks.clicks=clicks clicks.taps.7=taps.7"), names)
	require.Equal(t, topology.Skip, q.Sources[1].OnError)
	require.Equal(t, "orders-[a-z]+", q.Sources[1].Pattern)
	require.Equal(t, "string", q.Sources[1].KeyCodec)
	runs(t, q, "orders.orders-us", "orders-us")
	for _, stage := range q.Stages {
		if stage.Name == "by-value" {
			require.Equal(t, strings.Fields("clicks.clicks clicks.taps.7 special"), stage.From)
		}
	}
	require.Equal(t, "by-value", q.States[0].Source)
	require.True(t, p.HasPattern(), "the plan is as it was")
	again, err := q.Resolve(nil)
	require.NoError(t, err)
	require.Same(t, q, again)
	_, err = q.NewTask("orders", 0, newMemEnv())
	require.Error(t, err, "that is a merge now")

	// One more, at a later start.
	matched["orders"] = append(matched["orders"], "orders-new")
	q, err = p.Resolve(matched)
	require.NoError(t, err)
	require.Len(t, q.Sources, 6)
}

func TestAPatternThatCannotBeResolved(t *testing.T) {
	p := patterned(t)
	_, err := p.Resolve(map[string][]string{"orders": {"orders-eu"}})
	require.ErrorContains(t, err, "source clicks: no topic matches")
	require.Equal(t, fault.UnknownTopic, fault.CodeOf(err))
	for says, topics := range map[string][]string{"already read by": {"clicks", "orders-eu"}, "a loop": {"out"}, `^[A-Za-z0-9._-]{1,128}$`: {strings.Repeat("x", 128)}} {
		_, err = p.Resolve(map[string][]string{"orders": {"orders-eu"}, "clicks": topics})
		require.ErrorContains(t, err, says)
	}
}

func TestPatternsThatMakeNoSense(t *testing.T) {
	for pattern, says := range map[string]string{"a[": "missing closing ]", "a)(b": "unexpected )", strings.Repeat("a", 1025): "at most 1024", "": `topic ""`} {
		b := topology.New("app")
		marked(b, topology.FromPattern(b, "in", pattern, serde.String(), serde.String()))
		_, err := b.Plan()
		require.ErrorContains(t, err, says)
	}
	b := topology.New("app")
	n := topology.Count(topology.FromPattern(b, "in", "a.*", serde.String(), serde.String()), "count")
	topology.ToTopic(n, "out", "out", serde.String(), serde.Int64())
	_, err := b.Plan()
	require.ErrorContains(t, err, `step "count": it keeps state by key directly behind a source of all topics that match "a.*"`)
	require.ErrorContains(t, err, "put a group-by between")
}
