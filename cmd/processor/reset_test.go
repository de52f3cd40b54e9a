//go:build unix

package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/processor"
)

// What a reset leaves, or cannot do, is not in the log of a service, so the command says it.
func TestAResetSaysWhatStays(t *testing.T) {
	s := newSite(t, "")
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.b.Addr()))
	require.NoError(t, err)
	defer cl.Close()
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: "in", Partition: 0, At: 7, LeaderEpoch: -1})
	require.NoError(t, kadm.NewClient(cl).CommitAllOffsets(t.Context(), "totals.ends", offsets))
	const stays = "the group totals.ends stays: it has offsets that are no ends of runs, so it is somebody else's"
	args := []string{"reset", s.file, "--set", "data-dir=" + s.path("a"), "--yes"}
	code, stdout, stderr := cli(t, args...)
	require.Zero(t, code, stderr)
	require.Equal(t, "there is nothing of totals to delete\n"+stays+"\n", stdout)
	code, stdout, stderr = cli(t, append(args, "--output", "json")...)
	require.Zero(t, code, stderr)
	var r processor.Reset
	require.NoError(t, json.Unmarshal([]byte(stdout), &r), stdout)
	require.Equal(t, []string{stays}, r.Notes)
}
