//go:build unix

package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/verify"
	"github.com/millweir/millweir/snapshot"
)

// uploadPoints are the moments of an upload, each with how often one checkpoint comes by.
var uploadPoints = []failpoint.Point{
	failpoint.DeltaBefore, failpoint.DeltaAfter, failpoint.FileFsyncBefore, failpoint.FileFsyncAfter, failpoint.RootFsyncBefore,
	failpoint.RootFsyncAfter, failpoint.RenameBefore, failpoint.RenameAfter, failpoint.DirFsyncBefore, failpoint.DirFsyncAfter,
}

// badUpload draws how an upload goes wrong: killed, or refused by the store, at a random moment of a random checkpoint.
func badUpload(rnd *rand.Rand) (armed string, killed bool) {
	p := uploadPoints[rnd.IntN(len(uploadPoints))]
	killed = rnd.IntN(2) == 0 || p == failpoint.DirFsyncAfter // where no error can come up
	armed = fmt.Sprintf("%s#%d", p, 3+rnd.IntN(4))            // the first ones are those of the store's own id and of the start
	if !killed {
		armed += "=error"
	}
	return armed, killed
}

// halfWritten takes 30 checkpoints and more, of which 15 go wrong, beside files that are not its own. The store keeps
// three, whole; nothing is left of the others.
func halfWritten(s *site) {
	const rounds = 15
	t := s.t
	rnd := rand.New(rand.NewPCG(killSeed(t), 27))
	s.every = 50 * time.Millisecond
	file := s.file(totals)
	n := 0
	work := func(job *process, until func() bool, what string) {
		job.until(20*time.Second, func() bool {
			s.orders(n, 20, 200)
			n += 20
			return until()
		}, "%s", what)
	}
	job := s.run(file)
	s.orders(n, 200, 200)
	n += 200
	s.caughtUp(job)
	job.stop()
	foreign := s.foreign()

	killed, refused := 0, 0
	for killed+refused < rounds {
		armed, kill := badUpload(rnd)
		job = startProcess(t, armedBinary(t), []string{"run", file}, "FAILPOINT="+armed)
		job.await("msg=processing")
		if kill {
			killed++
			for deadline := time.Now().Add(failWithin); !job.ended(); {
				require.True(t, time.Now().Before(deadline), "%s is never met", armed)
				s.orders(n, 20, 200)
				n += 20
				time.Sleep(20 * time.Millisecond)
			}
			require.Contains(t, job.stderr.tail(1), "failpoint: kill at")
			s.listedAreWhole()
			continue
		}
		work(job, func() bool { return strings.Contains(job.stderr.String(), "failpoint: error at") }, armed)
		work(job, func() bool { // a marker or a merged file that cannot be written fails no attempt
			log := job.stderr.String()
			return job.restarts() > 0 || strings.Contains(log, "old checkpoints not removed") || strings.Contains(log, "runs not merged")
		}, "the error has no effect")
		if job.restarts() > 0 {
			refused++
			work(job, func() bool { return strings.Count(job.stderr.String(), "msg=processing") > 1 }, "another attempt")
		}
		if rnd.IntN(2) == 0 {
			s.caughtUp(job)
			job.stop()
		} else {
			job.kill()
		}
		s.listedAreWhole()
	}
	// At most two completed checkpoints after the last failure there is order.
	job = s.run(file)
	job.await("msg=processing")
	for range 2 {
		before := s.handles()[0].Root
		work(job, func() bool { return s.handles()[0].Root != before }, "a checkpoint")
	}
	s.caughtUp(job)
	require.Eventually(t, func() bool { return len(s.list(file)) == retained }, 10*time.Second, 50*time.Millisecond, "the cleaner keeps another number")
	s.nothingBut(s.list(file), foreign)
	job.stop()
	require.GreaterOrEqual(t, int(s.handles()[0].Root.Name.ID), 30)
	list := s.list(file)
	require.Len(t, list, retained)
	s.nothingBut(list, foreign)
	p := s.checkpointsCommand("verify", file)
	require.Zero(t, p.exit(20*time.Second), p.stderr.String())
	require.Contains(t, p.stdout.String(), "3 checkpoints whole")
	s.exact(verify.Config{})
	t.Logf("%d attempts killed, %d refused by the store; newest checkpoint %s", killed, refused, s.handles()[0].Root.Name)
}

// foreign puts files and directories of others at every level of the checkpoint directory, and gives their content.
func (s *site) foreign() map[string]string {
	s.t.Helper()
	own := filepath.Dir(s.handles()[0].Root.Path)
	out := map[string]string{}
	for _, dir := range []string{".", s.app, own} {
		out[filepath.Join(dir, "README.txt")] = "not yours, in " + dir
		out[filepath.Join(dir, "lost+found", "chk-1.data")] = "nor this, in " + dir
	}
	for name, text := range out {
		path := filepath.Join(s.checkpoints(), name)
		require.NoError(s.t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(s.t, os.WriteFile(path, []byte(text), 0o644))
	}
	return out
}

// listedAreWhole wants every checkpoint that the directory shows to have all its files, also what was cut short.
func (s *site) listedAreWhole() {
	s.t.Helper()
	repo, seen := s.repository(), 0
	err := repo.VerifyAll(s.ctx, func(snapshot.RootInfo) bool { return true }, func(v snapshot.Verified) {
		seen++
		require.Empty(s.t, v.Damage, "checkpoint %s", v.Ref.Name)
	})
	require.NoError(s.t, err)
	require.Positive(s.t, seen)
	for p, h := range s.handles() {
		_, err := repo.ReadRoot(s.ctx, h.Root)
		require.NoError(s.t, err, "partition %d", p)
	}
}

// list has the command list the checkpoints, which must all be committed.
func (s *site) list(file string) (roots []string) {
	s.t.Helper()
	p := s.checkpointsCommand("list", file, "--output", "json")
	require.Zero(s.t, p.exit(20*time.Second), p.stderr.String())
	var doc struct {
		Checkpoints []struct{ File, Status string }
	}
	require.NoError(s.t, json.Unmarshal([]byte(p.stdout.String()), &doc))
	for _, c := range doc.Checkpoints {
		require.NotEqual(s.t, "damaged", c.Status, c.File)
		roots = append(roots, c.File)
	}
	return roots
}

// nothingBut wants the checkpoint directory to hold what the roots name, what is foreign, and no more: but for a merged
// file, of each task at most one, that the next root will name.
func (s *site) nothingBut(roots []string, foreign map[string]string) {
	s.t.Helper()
	files, known := s.files(), map[string]bool{}
	for name, text := range foreign {
		require.Equal(s.t, text, files[filepath.ToSlash(name)], "%s is not the service's own", name)
		known[filepath.ToSlash(name)] = true
	}
	infos, err := s.repository().List(s.ctx)
	require.NoError(s.t, err)
	for _, info := range infos {
		require.Contains(s.t, roots, info.Ref.Path)
		known[filepath.ToSlash(filepath.Join(filepath.Dir(info.Ref.Path), "instance"))] = true // the sign of life of its owner
		known[info.Ref.Path], known[strings.TrimSuffix(info.Ref.Path, ".root")+".committed"] = true, true
		for _, task := range info.Root.Tasks {
			for _, r := range task.Runs {
				known[r.File] = true
			}
		}
	}
	merged := map[string]int{}
	for name := range files {
		if known[name] || !strings.Contains(name, "/") {
			continue // the store's own id is the one file that lies beside the applications
		}
		_, task, full := fullRun(name)
		require.True(s.t, full, "%s is left over", name)
		merged[task]++
		require.Equal(s.t, 1, merged[task], "%s", name)
	}
}

func TestC27_HalfWrittenCheckpoints(t *testing.T) {
	t.Parallel()
	armedBinary(t)
	halfWritten(fakeSite(t, 2).impatient())
}
func TestC27_RealHalfWrittenCheckpoints(t *testing.T) { halfWritten(realSite(t, 2).impatient()) }
