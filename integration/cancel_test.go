//go:build unix

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/verify"
	"github.com/millweir/millweir/processor"
	"github.com/millweir/millweir/snapshot"
)

const deletes = "checkpointing.retention=delete-on-cancellation"

// mortal runs an instance of which a cancel leaves nothing, under a name of its own.
func (s *site) mortal(binary, file, name string, env ...string) *process {
	return startProcess(s.t, binary, []string{"run", file, "--log-format", "text", "--set", "instance.id=" + s.app + "-" + name, "--set", "data-dir=" + filepath.Join(s.dir, name),
		"--set", "state.checkpoints.dir=" + s.checkpoints(), "--set", deletes, "--set", "admin.listen=off", "--set", "state.backend.fs.memory-threshold=0b"}, env...)
}

// cancels runs processor cancel to its end.
func (s *site) cancels(binary, file string, env ...string) (code int, out string) {
	c := startProcess(s.t, binary, []string{"cancel", file, "--timeout", "5s", "--set", deletes, "--set", "state.checkpoints.dir=" + s.checkpoints()}, env...)
	code = c.exit(30 * time.Second)
	return code, c.stdout.String() + c.stderr.String()
}

// mostCancels is how many commands may tell to try again. Each waits a few seconds for replies, and takes as much longer as the
// machine is busy with other things: so the number is a bound that a slow machine does not reach, as a time would be.
const mostCancels = 60

// cancelled runs processor cancel until it does not end with 43, which says that it is to be tried again: the session of who does
// not reply has to be over first.
func (s *site) cancelled(binary, file string, env ...string) (code int, out string) {
	s.t.Helper()
	for range mostCancels {
		if code, out = s.cancels(binary, file, env...); code != 43 {
			return code, out
		}
		time.Sleep(100 * time.Millisecond)
	}
	require.Fail(s.t, "the cancel does not end", "%d commands, the last one: %s", mostCancels, out)
	return code, out
}

// stateful counts the committed handles that name a checkpoint, and the files of checkpoints.
func (s *site) stateful() (handles, files int) {
	for _, o := range s.committed() {
		h, err := snapshot.ParseHandle(o.Metadata)
		require.NoError(s.t, err)
		if h.Kind == snapshot.HandleCheckpoint {
			handles++
		}
	}
	require.NoError(s.t, filepath.WalkDir(s.checkpoints(), func(_ string, d os.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), "chk-") {
			files++
		}
		return err
	}))
	return handles, files
}

// An instance does not answer while the application is cancelled with its state deleted. Nothing is deleted before it cannot
// go on any more; then everything is; and when it wakes it ends.
// heard says whether it still finds the command then.
func cancelWithASleeper(s *site, heard bool) {
	t := s.t
	file := s.file(totals)
	a := s.mortal(processorBinary(t), file, "a")
	a.await("msg=processing")
	b := s.mortal(processorBinary(t), file, "b")
	b.await("msg=processing")
	s.orders(0, 500, 50)
	s.caughtUp(a)
	b.until(30*time.Second, func() bool { handles, _ := s.stateful(); return handles == int(s.parts) }, "not all partitions have a checkpoint")
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGSTOP))

	code, text := s.cancels(processorBinary(t), file)
	require.Equal(t, 43, code, text)
	require.Contains(t, text, "nothing is deleted yet: the group still has "+s.app+"-b")
	require.Zero(t, a.exit(20*time.Second))
	handles, files := s.stateful()
	require.Equal(t, int(s.parts), handles, "the application is whole")
	require.NotZero(t, files)

	code, text = s.cancelled(processorBinary(t), file)
	require.Zero(t, code, text)
	require.Contains(t, text, "the checkpoints are deleted")
	handles, files = s.stateful()
	require.Zero(t, handles)
	require.Zero(t, files)

	if !heard {
		_, err := s.adm.DeleteTopics(s.ctx, processor.ControlTopic(s.app))
		require.NoError(t, err)
	}
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGCONT))
	require.Zero(t, b.exit(30*time.Second), b.stderr.tail(5))
	require.Contains(t, b.stderr.String(), "ended: the application was cancelled, and its state is deleted")
	// A file that it was writing when it was stopped is written when it wakes up. Nobody needs it, and it goes with the others
	// when the next life is cancelled.
	handles, _ = s.stateful()
	require.Zero(t, handles)

	c := s.mortal(processorBinary(t), file, "c") // a new life
	c.await("a task starts without state")
	s.orders(500, 500, 50)
	s.caughtUp(c)
	code, text = s.cancels(processorBinary(t), file)
	require.Zero(t, code, text)
	require.Zero(t, c.exit(20*time.Second))
	handles, files = s.stateful()
	require.Zero(t, handles)
	require.Zero(t, files)
}

func TestCancelWithASleeper(t *testing.T) {
	t.Parallel()
	for name, heard := range map[string]bool{"hears of it": true, "does not hear of it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := fakeSite(t, 4)
			s.session = 9 * time.Second // longer than the first cancel waits
			cancelWithASleeper(s, heard)
		})
	}
}

func TestRealCancelWithASleeper(t *testing.T) {
	s := realSite(t, 4)
	s.session = 9 * time.Second
	cancelWithASleeper(s, false)
}

// An instance that stands by sleeps through the cancel, and wakes up when the next life has all partitions: it ends, and is no
// member without work that takes over some day.
func TestCancelWithASleeperThatStandsBy(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, 1).impatient()
	file := s.file(totals)
	a := s.mortal(processorBinary(t), file, "a")
	a.await("msg=processing")
	b := s.mortal(processorBinary(t), file, "b")
	b.await("standing by")
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(time.Second) // the fetch of the control topic that is on its way brings no command then
	s.orders(0, 200, 20)
	s.caughtUp(a)
	code, text := s.cancelled(processorBinary(t), file)
	require.Zero(t, code, text)
	require.Zero(t, a.exit(20*time.Second))
	c := s.mortal(processorBinary(t), file, "c")
	c.await("a task starts without state")
	_, err := s.adm.DeleteTopics(s.ctx, processor.ControlTopic(s.app)) // it does not hear of the command any more
	require.NoError(t, err)
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGCONT))
	require.Zero(t, b.exit(20*time.Second), b.stderr.tail(5))
	require.Contains(t, b.stderr.String(), "ended: the application was cancelled, and its state is deleted")
	s.orders(200, 200, 20)
	s.caughtUp(c)
	c.stop()
}

// An instance that wakes up soon after takes the command, and has the whole state: it is the last one, and deletes it.
func TestCancelWithAnInstanceThatIsLate(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, 4)
	file := s.file(totals)
	a := s.mortal(processorBinary(t), file, "a")
	a.await("msg=processing")
	b := s.mortal(processorBinary(t), file, "b")
	b.await("msg=processing")
	s.orders(0, 500, 50)
	s.caughtUp(a)
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGSTOP))
	code, text := s.cancels(processorBinary(t), file)
	require.Equal(t, 43, code, text)
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGCONT))
	require.Zero(t, a.exit(20*time.Second))
	require.Zero(t, b.exit(30*time.Second), b.stderr.tail(5))
	s.exact(verify.Config{})
	handles, files := s.stateful()
	require.Zero(t, handles)
	require.Zero(t, files)
}

// forgetPoints are the steps of a deletion, and whether the application is whole there.
var forgetPoints = map[failpoint.Point]bool{failpoint.ForgetJoinBefore: true, failpoint.ForgetJoinAfter: true, failpoint.ForgetBefore: true,
	failpoint.ForgetAfter: false, failpoint.ForgetFileAfter: false}

// Whoever deletes after a cancel, the last instance or the command, is killed at each step of it. The application is whole or
// has no state, and another cancel leaves nothing.
func TestKilledWhileACancelDeletes(t *testing.T) {
	armed := armedBinary(t)
	for _, who := range []string{"instance", "command"} {
		for point, whole := range forgetPoints {
			t.Run(who+"/"+string(point), func(t *testing.T) {
				t.Parallel()
				s := fakeSite(t, 2).impatient()
				file, env := s.file(totals), "FAILPOINT="+string(point)+"#1"
				var at []string
				if who == "instance" {
					at = []string{env}
				}
				a := s.mortal(armed, file, "a", at...)
				a.await("msg=processing")
				s.orders(0, 200, 20)
				s.caughtUp(a)
				if who == "instance" {
					startProcess(t, processorBinary(t), []string{"cancel", file, "--timeout", "1s"})
					<-a.done
				} else {
					a.stop()
					code, text := s.cancelled(armed, file, env)
					require.Contains(t, text, "failpoint: ", "it ended by itself: %d", code)
				}
				handles, files := s.stateful()
				require.NotZero(t, files)
				if whole {
					require.Equal(t, int(s.parts), handles)
					b := s.mortal(processorBinary(t), file, "a")
					b.await("msg=processing")
					s.orders(200, 200, 20)
					s.caughtUp(b)
					s.exact(verify.Config{})
					b.stop()
				} else {
					require.Zero(t, handles)
				}
				code, text := s.cancelled(processorBinary(t), file)
				require.Zero(t, code, text)
				handles, files = s.stateful()
				require.Zero(t, handles)
				require.Zero(t, files)
			})
		}
	}
}

// A broker as it is delivered lets who comes to an empty group wait for seconds. The deletion joins that way, behind the last
// checkpoint, and the shutdown timeout is for that one.
func TestRealDeletionIsNotBoundedByTheShutdownTimeout(t *testing.T) {
	needReal(t)
	var k starter
	t.Cleanup(func() { k.broker.Close() })
	s := newSite(t, k.run(t, map[string]string{"group.initial.rebalance.delay.ms": "3000"}), 4)
	file := s.file(totals + "shutdown: {timeout: 1s}\n")
	a := s.mortal(processorBinary(t), file, "a")
	a.await("msg=processing")
	s.orders(0, 500, 50)
	s.caughtUp(a)
	c := startProcess(t, processorBinary(t), []string{"cancel", file, "--set", deletes, "--set", "state.checkpoints.dir=" + s.checkpoints()})
	require.Zero(t, a.exit(20*time.Second), a.stderr.tail(5))
	require.Contains(t, a.stderr.String(), "checkpoints deleted (")
	require.Zero(t, c.exit(20*time.Second), c.stderr.tail(5))
	handles, files := s.stateful()
	require.Zero(t, handles+files)
}
