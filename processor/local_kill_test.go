//go:build unix

package processor

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/store"
)

// armedChild builds this test's binary with failpoints.
func armedChild(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "armed.test")
	out, err := exec.Command("go", "test", "-c", "-tags", "failpoints", "-o", file, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return file
}

// dies runs a service in a process of its own until it kills itself at a failpoint. Input goes on meanwhile.
func (b *localBed) dies(binary, armed string, n *int) {
	b.t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command(binary, "-test.run=^TestLocalCopyChild$")
	cmd.Env = append(os.Environ(), childOf+"="+b.addr, childDir+"="+b.dir, "FAILPOINT="+armed)
	cmd.Stderr = &stderr
	require.NoError(b.t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	deadline := time.After(30 * time.Second)
	for {
		b.produce(*n, 100)
		*n += 100
		select {
		case <-done:
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			require.True(b.t, status.Signaled() && status.Signal() == syscall.SIGKILL, "it died of something else: %s", stderr.String())
			require.Contains(b.t, stderr.String(), "failpoint: kill at ")
			return
		case <-deadline:
			_ = cmd.Process.Kill()
			<-done
			require.Fail(b.t, "the failpoint is never hit", "%s: %s", armed, stderr.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// The process is killed at each moment of the writing behind, at a random flush, twice in a row, and started again.
// Whatever that left of the copy, the state is right; a copy that a flush was changing is not used.
func TestLocalRecoveryAfterAKillAtEveryPointOfTheWriter(t *testing.T) {
	testbed.Alongside(t)
	if testing.Short() {
		t.Skip("builds a binary")
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("REPLAY_SEED"); s != "" {
		_, err := fmt.Sscan(s, &seed)
		require.NoError(t, err)
	}
	t.Logf("replay: REPLAY_SEED=%d go test ./processor -run %s", seed, t.Name())
	rng := rand.New(rand.NewPCG(seed, 3))
	binary := armedChild(t)
	for _, p := range []failpoint.Point{failpoint.LocalIntentBefore, failpoint.LocalIntentAfter, failpoint.LocalDataBefore,
		failpoint.LocalDataAfter, failpoint.LocalAppliedBefore, failpoint.LocalAppliedAfter} {
		t.Run(string(p), func(t *testing.T) {
			b := newLocalBed(t, "kill")
			n := 0
			b.dies(binary, fmt.Sprintf("%s#%d", p, 4+rng.IntN(8)), &n)
			b.dies(binary, fmt.Sprintf("%s#%d", p, 1+rng.IntN(8)), &n)
			unfinished := 0
			b.openCopy(func(local *store.Local) {
				for _, task := range local.Tasks() {
					if _, ok := local.Version(task); !ok {
						unfinished++
					}
				}
			})
			switch p {
			case failpoint.LocalIntentAfter, failpoint.LocalDataBefore, failpoint.LocalDataAfter, failpoint.LocalAppliedBefore:
				require.Positive(t, unfinished)
			}
			r := b.watch()
			b.produce(n, 500)
			require.NoError(t, b.process()())
			local, files, read := r.sum()
			require.Equal(t, 4, local+files)
			require.LessOrEqual(t, local, 4-unfinished)
			t.Logf("%d of the copies were being written; %d tasks came from the copy, %d from the files, %d bytes read", unfinished, local, files, read)
			b.requireCurrent()
			b.requireExact()
		})
	}
}
