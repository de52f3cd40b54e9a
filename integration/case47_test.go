//go:build unix

package integration

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// shutdownTimeout is what the services of this file have for a graceful stop.
const shutdownTimeout = 2 * time.Second

// stopSite has long intervals, so that a transaction stays open until the stop, and a short patience with it.
func stopSite(s *site) (file string) {
	s.every = 30 * time.Second
	return s.file(counts+"shutdown: {timeout: "+shutdownTimeout.String()+"}\n", "{{.TransactionTimeout}}", "60s")
}

// terminated sends SIGTERM and wants the process to end by the shutdown timeout and a second later, with the code that says
// that a last checkpoint was not possible, and the reason.
func terminated(t *testing.T, p *process, reasons ...string) {
	t.Helper()
	began := time.Now()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	code := p.exit(shutdownTimeout + time.Second)
	t.Logf("ended after %v: %s", time.Since(began).Round(time.Millisecond), p.stderr.tail(1))
	require.Equal(t, 42, code, "%s", p.stderr.tail(5))
	for _, text := range reasons {
		require.Contains(t, p.stderr.tail(2), text)
	}
}

// In the middle of its work: a last checkpoint takes in all that was read, nothing is thrown away, the group is left at
// once, and the next start reads nothing again.
func stopsInOrder(s *site) {
	file := stopSite(s)
	job := s.run(file)
	job.await("msg=processing")
	s.tell(700)
	job.until(20*time.Second, func() bool { return s.ongoing("") != "" && s.lag() > 0 }, "no transaction stays open")
	began := time.Now()
	require.NoError(s.t, job.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(s.t, job.exit(shutdownTimeout+time.Second), job.stderr.tail(5))
	s.t.Logf("ended after %v", time.Since(began).Round(time.Millisecond))
	require.Empty(s.t, s.members(), "the group is left")
	require.Zero(s.t, s.lag())
	s.countedOnce(700)
	// What is thrown away stays in the log with an abort marker, which takes an offset of its own.
	_, was := s.ends(s.out)

	job = s.run(file)
	job.await("msg=processing")
	time.Sleep(500 * time.Millisecond)
	require.NoError(s.t, job.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(s.t, job.exit(shutdownTimeout+time.Second), job.stderr.tail(5))
	_, is := s.ends(s.out)
	require.Equal(s.t, was, is, "there was nothing to do")
	s.countedOnce(700)
}

// members lists the group's members.
func (s *site) members() (ids []string) {
	s.t.Helper()
	groups, err := s.adm.DescribeGroups(s.ctx, s.app)
	require.NoError(s.t, err)
	for _, m := range groups[s.app].Members {
		ids = append(ids, m.MemberID)
	}
	return ids
}

func TestC47_StopWithAnOpenTransaction(t *testing.T) {
	t.Parallel()
	processorBinary(t)
	stopsInOrder(fakeSite(t, 2))
}
func TestC47_RealStopWithAnOpenTransaction(t *testing.T) { stopsInOrder(realSite(t, 2)) }

// All brokers have stopped to answer, though connections to them stand and new ones are taken.
func stopsWithoutBrokers(s *site, freeze func(syscall.Signal)) {
	file := stopSite(s)
	job := s.run(file)
	job.await("msg=processing")
	s.tell(700)
	job.until(20*time.Second, func() bool { return s.ongoing("") != "" }, "no transaction is open")
	freeze(syscall.SIGSTOP)
	thaw := true
	defer func() {
		if thaw {
			freeze(syscall.SIGCONT)
		}
	}()
	time.Sleep(200 * time.Millisecond)
	terminated(s.t, job, "shutdown timeout of 2s")
	// One that has not even started has left nothing undone.
	job = s.run(file)
	time.Sleep(500 * time.Millisecond)
	require.NoError(s.t, job.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(s.t, job.exit(shutdownTimeout+time.Second), job.stderr.tail(5))
	freeze(syscall.SIGCONT)
	thaw = false
	job = s.run(file, "--set", "checkpointing.interval=300ms")
	s.caughtUp(job)
	job.stop()
	s.countedOnce(700)
}

func TestC47_StopWhenNoBrokerAnswers(t *testing.T) {
	t.Parallel()
	b := startProcess(t, processorBinary(t), []string{"broker", "--port", "0", "--data-dir", t.TempDir()})
	var addr string
	b.until(20*time.Second, func() (found bool) {
		rest, _ := strings.CutPrefix(b.stdout.String(), "broker on ")
		addr, _, found = strings.Cut(rest, ",")
		return found
	}, "no address")
	stopsWithoutBrokers(newSite(t, []string{addr}, 2), func(sig syscall.Signal) { require.NoError(t, b.cmd.Process.Signal(sig)) })
}

func TestC47_RealStopWhenNoBrokerAnswers(t *testing.T) {
	s := realSite(t, 2)
	if shared.kafka.broker.External {
		t.Skip("a foreign cluster is not ours to stop")
	}
	stopsWithoutBrokers(s, func(sig syscall.Signal) {
		for _, pid := range shared.kafka.broker.Pids() {
			require.NoError(t, syscall.Kill(pid, sig))
		}
	})
}

// hangs starts the service with a step that never ends, and returns when it is met.
func (s *site) hangs(file, point string) *process {
	s.t.Helper()
	p := startProcess(s.t, armedBinary(s.t), []string{"run", file, "--set", "state.backend.fs.memory-threshold=0"}, "FAILPOINT="+point+"=hang")
	p.await("failpoint: hang at")
	return p
}

// The state is being restored, and a read does not come back; then, a write does not.
func stopsWhileTheStoreHangs(s *site) {
	file := stopSite(s)
	s.tell(700)
	job := s.run(file, "--set", "checkpointing.interval=300ms")
	s.caughtUp(job)
	job.kill()
	terminated(s.t, s.hangs(file, "restore-before"), "the graceful stop hangs")
	s.tell(700)
	quick := s.file(counts+"shutdown: {timeout: "+shutdownTimeout.String()+"}\n", "{{.Interval}}", "300ms")
	terminated(s.t, s.hangs(quick, "file-fsync-before"), "the graceful stop hangs")

	// A second signal is not waited for, whatever hangs.
	job = s.hangs(quick, "root-fsync-before")
	began := time.Now()
	require.NoError(s.t, job.cmd.Process.Signal(syscall.SIGTERM))
	time.Sleep(400 * time.Millisecond)
	require.False(s.t, job.ended())
	require.NoError(s.t, job.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(s.t, 128+int(syscall.SIGTERM), job.exit(shutdownTimeout))
	require.Less(s.t, time.Since(began), shutdownTimeout)

	job = s.run(quick)
	s.caughtUp(job)
	job.stop()
	s.countedOnce(1400)
}

func TestC47_StopWhileTheStoreHangs(t *testing.T) {
	t.Parallel()
	armedBinary(t)
	stopsWhileTheStoreHangs(fakeSite(t, 2))
}
func TestC47_RealStopWhileTheStoreHangs(t *testing.T) { stopsWhileTheStoreHangs(realSite(t, 2)) }

// A restore that only takes long is broken off at once.
func TestC47_StopWhileRestoring(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, 2)
	file := stopSite(s)
	var recs []*kgo.Record
	for i := range 200_000 {
		recs = append(recs, &kgo.Record{Key: fmt.Appendf(nil, "key-%d", i), Value: []byte("x")})
	}
	s.put(recs...)
	job := s.run(file, "--set", "checkpointing.interval=300ms")
	s.caughtUp(job)
	job.kill()
	job = s.run(file)
	job.await("partitions assigned")
	began := time.Now()
	terminated(t, job, "it was still restoring its state")
	require.Less(t, time.Since(began), shutdownTimeout)
}
