package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/config"
)

func TestGraphShowsExchangesAndMerges(t *testing.T) {
	code, out, stderr := cli(t, "graph", "../../examples/group-by.yaml")
	require.Zero(t, code, stderr)
	require.Contains(t, out, "   ├─ to group-by customers-by\n")
	require.Contains(t, out, "\ngroup-by customers-by: from orders, parallelism 4, key string, value json\n└─ aggregate customers: state customers/aggregate@")

	code, out, stderr = cli(t, "graph", "../../examples/group-by.yaml", "--format", "mermaid")
	require.Zero(t, code, stderr)
	require.Contains(t, out, "flowchart LR\n")
	require.Contains(t, out, `{{"group-by customers-by"}}`)
	require.Contains(t, out, `==>|"× 4"|`)

	code, out, stderr = cli(t, "graph", "../../examples/merge.yaml", "--format", "dot")
	require.Zero(t, code, stderr)
	require.Contains(t, out, `digraph "customer-balances" {`)
	require.Contains(t, out, `[label="merge bookings"]`)
	require.Contains(t, out, `[label="group-by balances-by", shape=hexagon]`)

	code, _, stderr = cli(t, "graph", "../../examples/merge.yaml", "--format", "svg")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "text, mermaid or dot")

	code, out, stderr = cli(t, "graph", "../../pipeline/testdata/parallel.yaml")
	require.Equal(t, 3, code)
	require.Empty(t, out)
	require.Contains(t, stderr, "steps.bare.group-by: a new key needs an exchange")
}

func TestASourceOfManyTopicsIsDrawn(t *testing.T) {
	code, out, stderr := cli(t, "graph", "../../examples/topics.yaml")
	require.Zero(t, code, stderr)
	require.Contains(t, out, "source clients: topic /clicks-[a-z]{2}/, key string")
	require.Contains(t, out, "source partners.partner-north: topic partner-north,")
	svc, problems := config.Load("../../examples/topics.yaml", nil, nil)
	require.NoError(t, problems.Err())
	var made []string
	for _, topic := range topicsOf(svc.Plan) {
		made = append(made, topic.Name)
	}
	require.Equal(t, []string{"partner-north", "partner-south", "page-views"}, made, "the embedded broker has what is named")
}
