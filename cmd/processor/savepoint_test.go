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
	var requests []string
	write := func(id int, count int32, partitions ...int32) string {
		var tasks []snapshot.SavepointTask
		for _, p := range partitions {
			at := element.Position{TopicPartition: element.TopicPartition{Topic: "in", Partition: p}, TopicID: element.TopicID{1}, PartitionCount: count, Offset: 5}
			tasks = append(tasks, snapshot.SavepointTask{Task: element.TaskID{Source: "orders", Partition: p}, Positions: []element.Position{at}})
		}
		ref, err := snapshot.WriteSavepoint(t.Context(), snapshot.SavepointConfig{Dir: dir}, snapshot.SavepointHead{ID: "s1", Requests: requests,
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

	requests = []string{"r1"}
	even, odd := write(5, 4, 0, 2), write(6, 4, 1, 3)
	requests = []string{"r2"}
	other := write(7, 4, 1, 3)
	code, stdout, stderr = cli(t, "savepoint", "list", "--dir", dir)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "one of several parts of request r1: "+even+" holds 2 of 4 partitions of in\n")
	code, stdout, stderr = cli(t, "savepoint", "inspect", even, odd)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "request      r1\n")
	require.Contains(t, stdout, "part         it holds 2 of 4 partitions of in\n")
	for _, mixed := range [][]string{{even, other}, {part, odd}} {
		code, _, stderr = cli(t, append([]string{"savepoint", "inspect"}, mixed...)...)
		require.Equal(t, 2, code)
		require.Contains(t, stderr, "not parts of one savepoint")
		require.Contains(t, stderr, mixed[0])
		require.Contains(t, stderr, mixed[1])
	}
	code, stdout, stderr = cli(t, "savepoint", "inspect", even, odd, even)
	require.Equal(t, 2, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, even+" and "+even+" are the same: give each part once")
	code, stdout, stderr = cli(t, "savepoint", "inspect", even, odd, "--output", "json")
	require.Zero(t, code, stderr)
	var parts struct{ Parts []inspectedSavepoint }
	require.NoError(t, json.Unmarshal([]byte(stdout), &parts))
	require.Len(t, parts.Parts, 2)
	require.Equal(t, []string{"r1"}, parts.Parts[1].Requests)
	code, stdout, stderr = cli(t, "savepoint", "dispose", other, "--yes")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "deleted "+other+", one of several parts of request r2\n")
}
