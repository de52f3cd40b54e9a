package topology_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/topology"
)

// from is the partition that test records come from; test topologies read the topic "in".
var from = element.TopicPartition{Topic: "in", Partition: 3}

// drive plans a topology of one source and gives a task with its environment.
func drive(t testing.TB, b *topology.Builder) (*topology.Task, *memEnv) {
	t.Helper()
	p, err := b.Plan()
	require.NoError(t, err)
	env := newMemEnv()
	task, err := p.NewTask(p.Sources[0].Name, from.Partition, env)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, task.Close())
		require.NoError(t, env.Check())
	})
	return task, env
}

// rec makes a record; a nil slice is null.
func rec(offset int64, key, value []byte, headers ...element.Header) element.Record {
	return element.Record{Key: key, Value: value, Headers: headers, Timestamp: 1000 + offset, Offset: offset}
}

// kv makes a record of two strings.
func kv(offset int64, key, value string) element.Record {
	return rec(offset, []byte(key), []byte(value))
}

// pairs gives outputs as key=value strings, null as null.
func pairs(recs []element.Record) []string {
	out := make([]string, len(recs))
	for i, r := range recs {
		out[i] = orNull(r.Key) + "=" + orNull(r.Value)
	}
	return out
}

func orNull(b []byte) string {
	if b == nil {
		return "null"
	}
	return string(b)
}
