//go:build unix

package integration

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/kafka"
)

// The input is deleted and made again under two instances that share it. Neither takes the new topic for the old one, also
// when its offsets reach as far: both say what happened and end, and so does each that starts afterwards.
func inputMadeAgain(s *site) {
	t := s.t
	file := s.file(totals)
	as := func(name string) *process {
		return s.run(file, "--log-format", "text", "--set", "instance.id="+s.app+"-"+name,
			"--set", "data-dir="+filepath.Join(s.dir, name), "--set", "state.checkpoints.dir="+s.checkpoints())
	}
	a, b := as("a"), as("b")
	a.await("msg=processing")
	b.await("msg=processing")
	s.orders(0, 1000, 100)
	s.caughtUp(a)
	_, err := s.adm.DeleteTopic(s.ctx, s.in)
	require.NoError(t, err)
	time.Sleep(time.Second)
	_, err = kafka.EnsureTopic(s.ctx, s.cl, s.in, s.parts, nil)
	require.NoError(t, err)
	s.cl.PurgeTopicsFromClient(s.in)
	s.orders(1000, 2000, 100)
	for _, job := range []*process{a, b} {
		code := job.exit(30 * time.Second)
		t.Logf("%d: %s", code, job.stderr.tail(1))
		require.Contains(t, []int{13, 21}, code, job.stderr.tail(5))
	}
	before := len(s.read(s.out))
	for _, name := range []string{"a", "b"} {
		job := as(name)
		code := job.exit(30 * time.Second)
		t.Logf("%d: %s", code, job.stderr.tail(1))
		require.Contains(t, []int{13, 21}, code, job.stderr.tail(5))
	}
	require.Len(t, s.read(s.out), before, "nothing of the new topic was processed")
}

func TestInputMadeAgainWhileShared(t *testing.T) {
	t.Parallel()
	inputMadeAgain(fakeSite(t, 4).impatient())
}
func TestRealInputMadeAgainWhileShared(t *testing.T) { inputMadeAgain(realSite(t, 4).impatient()) }
