package pipeline

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/topology"
)

// totals reads in whatever way a source says, and keeps sums by customer.
const totals = `
steps: {totals: {from: in, group-by: value.customer, exchange: local, aggregate: {spent: sum(value.amount)}}}
sinks: {out: {from: totals, topic: orders-totals, key: string, value: json}, copy: {from: in, topic: copy, key: string, value: json}}
`

const copied = `
sinks: {copy: {from: in, topic: copy, key: string, value: json}}
`

func TestASourceOfTopics(t *testing.T) {
	for text, want := range map[string]string{
		"topics: [eu, us.east]":    "in.eu=eu in.us.east=us.east",
		"topics: [eu]":             "in.eu=eu",
		`topics: "eu, us"`:         "in.eu=eu in.us=us",
		"topic: eu":                "in=eu",
		`topics: "${NO_SUCH:-eu}"`: "in.eu=eu",
	} {
		plan := mustBuild(t, "sources: {in: {"+text+", key: string, value: json, start: latest, on-error: skip}}"+totals)
		require.False(t, plan.HasPattern())
		var got []string
		for _, s := range plan.Sources {
			got = append(got, s.Name+"="+s.Topic)
			require.True(t, topology.Latest().Equal(s.Start))
			require.Equal(t, topology.Skip, s.OnError)
		}
		require.Equal(t, want, strings.Join(got, " "), text)
	}

	// The same as in Go, values and bytes included.
	plan := mustBuild(t, "sources: {in: {topics: [eu, us], key: string, value: json}}"+copied)
	require.Contains(t, plan.Describe(), "sink copy: topic copy, key string (as read), value json (as read)")
	copies(t, plan, "in.us", "us")
}

// copies runs one record through the task of a source, whose bytes the sink copy gives as they were.
func copies(t *testing.T, plan *topology.Plan, source, topic string) {
	t.Helper()
	w := newWorld(plan)
	task, err := plan.NewTask(source, 0, w)
	require.NoError(t, err)
	value := `{"customer":  "c1", "amount": 5, "city": "Ulm"}`
	require.NoError(t, task.Process(element.TopicPartition{Topic: topic}, []element.Record{{Key: []byte("k"), Value: []byte(value)}}))
	require.NoError(t, task.Flush())
	require.NoError(t, task.Close())
	require.Contains(t, w.out, "copy k="+show([]byte(value)))
}

func TestASourceWithAPattern(t *testing.T) {
	plan := mustBuild(t, `sources: {in: {pattern: "orders-.*", key: string, value: json, start: earliest}}`+totals)
	require.True(t, plan.HasPattern())
	require.Equal(t, "orders-.*", plan.Sources[0].Pattern)
	require.Contains(t, plan.Describe(), "source in: topic /orders-.*/")

	matched := plan.Match(strings.Fields("orders-eu orders-us orders-totals copy __orders-x my-orders-eu orders-control"), "orders-control")
	require.Equal(t, map[string][]string{"in": {"orders-eu", "orders-us"}}, matched)
	plan = mustBuild(t, `sources: {in: {pattern: "orders-.*", key: string, value: json, start: earliest}}`+copied)
	resolved, err := plan.Resolve(matched)
	require.NoError(t, err)
	require.Equal(t, "in.orders-us", resolved.Sources[1].Name)
	copies(t, resolved, "in.orders-us", "orders-us")
}
