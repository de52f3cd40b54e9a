//go:build unix

package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/verify"
)

// Whoever deletes after a cancel sleeps before it looks who is in the group. Another instance has started, worked and ended in
// order by the time it wakes up, and nobody is in the group: the state of that work stays.
func cancelThatSleepsBeforeItLooks(s *site, who string) {
	t := s.t
	const asleep = "FAILPOINT=forget-join-before=pause:6s"
	file := s.file(totals)
	armed, plain := armedBinary(t), processorBinary(t)
	var env []string
	if who == "the last instance" {
		env = append(env, asleep)
	}
	a := s.mortal(armed, file, "a", env...)
	a.await("msg=processing")
	s.orders(0, 200, 20)
	s.caughtUp(a)
	deleting := []string{"cancel", file, "--timeout", "25s", "--set", deletes, "--set", "state.checkpoints.dir=" + s.checkpoints()}
	var sleeper *process
	switch who {
	case "the last instance":
		sleeper = a
		startProcess(t, plain, []string{"cancel", file, "--timeout", "1s"}) // deletes nothing itself
	case "the command":
		sleeper = startProcess(t, armed, deleting, asleep)
		require.Zero(t, a.exit(20*time.Second))
	case "the command, nobody runs":
		a.stop()
		s.emptied()
		sleeper = startProcess(t, armed, deleting, asleep)
	}
	sleeper.await("failpoint: pause")
	b := s.mortal(plain, file, "b")
	b.await("msg=processing")
	s.orders(200, 200, 20)
	s.caughtUp(b)
	b.stop()
	s.emptied()
	worked := s.committed()
	if sleeper == a {
		require.Zero(t, a.exit(20*time.Second))
		require.Contains(t, a.stderr.String(), "the checkpoints stay: others have committed behind this instance")
	} else {
		require.Equal(t, 43, sleeper.exit(20*time.Second), sleeper.stderr.String())
		want := "nothing is deleted: "
		if who == "the command" { // there a has deleted the state of before
			want = "the state of before is given up, and nothing is deleted of what was done since: "
		}
		require.Contains(t, sleeper.stdout.String()+sleeper.stderr.String(), want)
	}
	require.Equal(t, worked, s.committed())
	c := s.mortal(plain, file, "c")
	c.await("msg=processing")
	require.NotContains(t, c.stderr.String(), "starts without state")
	s.orders(400, 200, 20)
	s.caughtUp(c)
	if who != "the command" { // there a has deleted the state of before
		s.exact(verify.Config{})
	}
	c.stop()
	s.emptied()
	code, text := s.cancels(plain, file)
	require.Zero(t, code, text)
	handles, files := s.stateful()
	require.Zero(t, handles)
	require.Zero(t, files)
}

func TestWhatOthersDidWhileACancelSleptStays(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"the last instance", "the command", "the command, nobody runs"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			cancelThatSleepsBeforeItLooks(fakeSite(t, 2).impatient(), who)
		})
	}
}

func TestRealWhatOthersDidWhileACancelSleptStays(t *testing.T) {
	cancelThatSleepsBeforeItLooks(realSite(t, 2).impatient(), "the last instance")
}
