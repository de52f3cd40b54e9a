//go:build unix

package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/internal/kafka"
)

// A cancel that deletes sleeps between its look at the positions and its commit, while the application works on and ends in
// order. It does not set the positions back, and the state of that work stays.
func cancelThatSleeps(s *site) {
	t := s.t
	file := s.file(totals)
	a := s.mortal(processorBinary(t), file, "a")
	a.await("msg=processing")
	s.orders(0, 200, 20)
	s.caughtUp(a)
	a.stop()
	s.emptied()
	c := startProcess(t, armedBinary(t), []string{"cancel", file, "--timeout", "20s", "--set", deletes, "--set", "state.checkpoints.dir=" + s.checkpoints()}, "FAILPOINT=forget-before=pause:6s")
	require.Eventually(t, func() bool {
		g, err := s.adm.DescribeGroups(s.ctx, s.app)
		return err == nil && len(g[s.app].Members) == 1
	}, 10*time.Second, 20*time.Millisecond, "it takes no part")
	time.Sleep(300 * time.Millisecond) // it has looked
	b := s.mortal(processorBinary(t), file, "b")
	b.await("msg=processing")
	s.orders(200, 200, 20)
	s.caughtUp(b)
	b.stop()
	s.emptied()
	worked := s.committed()
	require.Equal(t, 43, c.exit(20*time.Second), c.stderr.String())
	require.Contains(t, c.stdout.String()+c.stderr.String(), "nothing is deleted: ")
	require.Equal(t, worked, s.committed(), "the cancel moves nothing")
	code, text := s.cancels(processorBinary(t), file)
	require.Zero(t, code, text)
	handles, files := s.stateful()
	require.Zero(t, handles)
	require.Zero(t, files)
}

// emptied waits until nobody is in the group.
func (s *site) emptied() {
	require.Eventually(s.t, func() bool {
		g, err := s.adm.DescribeGroups(s.ctx, s.app)
		return err == nil && len(g[s.app].Members) == 0
	}, 20*time.Second, 50*time.Millisecond, "somebody stays in the group")
}

func TestCancelThatSleepsCommitsNothing(t *testing.T) {
	t.Parallel()
	cancelThatSleeps(fakeSite(t, 2).impatient())
}

func TestRealCancelThatSleepsCommitsNothing(t *testing.T) {
	cancelThatSleeps(realSite(t, 2).impatient())
}

// The positions are too many for one request: the topic of the coordinator takes little at once. A cancel that is killed
// after the first of them has ended the life, and another one does the rest.
func TestRealCancelOfManyPartitions(t *testing.T) {
	s := realSite(t, 12).impatient()
	file := s.file(totals)
	a := s.mortal(processorBinary(t), file, "a")
	a.await("msg=processing")
	s.orders(0, 400, 40)
	s.caughtUp(a)
	a.stop()
	s.emptied()
	limit := func(bytes string) {
		set, err := s.adm.AlterTopicConfigs(s.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &bytes}}, kafka.OffsetsTopic)
		require.NoError(t, err)
		for _, r := range set {
			require.NoError(t, r.Err)
		}
	}
	limit("2500")
	defer limit("1048588")
	code, text := s.cancels(armedBinary(t), file, "FAILPOINT=offsets-before#3") // 12 are too many, 6 are taken
	require.NotZero(t, code, text)
	handles, files := s.stateful()
	require.NotZero(t, files)
	require.Less(t, handles, int(s.parts), "no request was taken")
	require.NotZero(t, handles, "all were taken")
	code, text = s.cancelled(processorBinary(t), file)
	require.Zero(t, code, text)
	handles, files = s.stateful()
	require.Zero(t, handles)
	require.Zero(t, files)
}
