package processor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// TestTheCopiesOfSubtasksStay: state lies behind exchanges, too, and a source may have none.
func TestTheCopiesOfSubtasksStay(t *testing.T) {
	b := topology.New("shop")
	orders := topology.FromTopic(b, "orders", "orders", serde.String(), serde.String())
	users := topology.GroupBy(orders, "by-user", serde.String(), serde.String(), func(_, v string) string { return v })
	topology.Count(users, "count")
	plan, err := b.Plan()
	require.NoError(t, err)
	require.True(t, keepsState(plan, element.TaskID{Source: "by-user", Partition: 3}))
	require.False(t, keepsState(plan, element.TaskID{Source: "orders"}))
	require.False(t, keepsState(plan, element.TaskID{Source: "gone"}))
}
