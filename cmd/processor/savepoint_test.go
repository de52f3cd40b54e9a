package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// A part of a savepoint says so, whoever looks at it; a whole one does not.
func TestWhetherASavepointIsAPart(t *testing.T) {
	dir := t.TempDir()
	write := func(id int, count int32, partitions ...int32) string {
		var tasks []snapshot.SavepointTask
		for _, p := range partitions {
			at := element.Position{TopicPartition: element.TopicPartition{Topic: "in", Partition: p}, TopicID: element.TopicID{1}, PartitionCount: count, Offset: 5}
			tasks = append(tasks, snapshot.SavepointTask{Task: element.TaskID{Source: "orders", Partition: p}, Positions: []element.Position{at}})
		}
		ref, err := snapshot.WriteSavepoint(t.Context(), snapshot.SavepointConfig{Dir: dir}, snapshot.SavepointHead{ID: "s1",
			Name: element.CheckpointName{ID: element.CheckpointID(id), Incarnation: 1}, Application: "orders", Instance: "i-0", ClusterID: "c"}, tasks)
		require.NoError(t, err)
		return ref.Path
	}
	part, whole := write(3, 4, 0, 2), write(4, 2, 0, 1)
	code, stdout, stderr := cli(t, "savepoint", "list", "--dir", dir)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "one of several parts: "+part+" holds 2 of 4 partitions of in\n")
	require.NotContains(t, stdout, "parts: "+whole)

	code, stdout, stderr = cli(t, "savepoint", "inspect", part)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "it holds 2 of 4 partitions of in: ")
	code, stdout, stderr = cli(t, "savepoint", "inspect", whole)
	require.Zero(t, code, stderr)
	require.NotContains(t, stdout, "partitions of in")
	code, stdout, stderr = cli(t, "savepoint", "inspect", part, "--output", "json")
	require.Zero(t, code, stderr)
	var doc inspectedSavepoint
	require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
	require.Equal(t, []inputHeld{{"orders", "in", 2, 4}}, doc.Inputs)
}
