//go:build unix

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/internal/verify"
	"github.com/millweir/millweir/snapshot"
)

// merged is a site whose service has run for so many checkpoints that the chain of partition 0 begins with a full run,
// with more input waiting. It gives the root that the handles name and that run.
func merged(s *site) (file string, root snapshot.RootRef, full snapshot.RunRef) {
	s.t.Helper()
	s.every = 10 * time.Millisecond
	file = s.file(totals)
	job := s.run(file)
	job.await("msg=processing")
	repo := (*snapshot.Repository)(nil)
	n := 0
	job.until(60*time.Second, func() bool {
		s.orders(n, 20, 50)
		n += 20
		o, ok := s.committed()[0]
		if !ok {
			return false
		}
		if repo == nil {
			repo = s.repository()
		}
		h, err := snapshot.ParseHandle(o.Metadata)
		require.NoError(s.t, err)
		r, err := repo.ReadRoot(s.ctx, h.Root)
		if err != nil || len(r.Tasks) == 0 || len(r.Tasks[0].Runs) < 2 {
			return false // gone by now
		}
		return r.Tasks[0].Runs[0].Full
	}, "no full run")
	s.caughtUp(job)
	job.stop()
	root = s.handles()[0].Root
	r, err := repo.ReadRoot(s.ctx, root)
	require.NoError(s.t, err)
	require.True(s.t, r.Tasks[0].Runs[0].Full)
	s.orders(n, 500, 50)
	return file, root, r.Tasks[0].Runs[0]
}

// checkpointsCommand runs a command on the checkpoint directory.
func (s *site) checkpointsCommand(args ...string) *process {
	s.t.Helper()
	return startProcess(s.t, processorBinary(s.t), append([]string{"checkpoints"}, args...))
}

// Whatever file is damaged in whatever way: the service does not start, the message names the file and the way back, the
// tool finds it too, and neither changes anything.
func TestRefusedDamageOfEveryKindOfFile(t *testing.T) {
	runsInFiles(t)
	s := embeddedSite(t, 1)
	file, root, full := merged(s)
	r, err := s.repository().ReadRoot(s.ctx, root)
	require.NoError(t, err)
	runs := r.Tasks[0].Runs
	last := runs[len(runs)-1]
	id := storeIDName(t, s)
	list := s.fileNames()
	older := func(suffix, not string) string {
		for _, name := range list {
			if strings.HasSuffix(name, suffix) && name != not {
				return name
			}
		}
		require.Fail(t, "no other file", suffix)
		return ""
	}
	for _, k := range []struct{ kind, file, other string }{
		{"run", last.File, older(".data", last.File)},
		{"run", full.File, older(".data", full.File)},
		{"root", root.Path, older(".root", root.Path)},
		{"store id", id, root.Path},
	} {
		path := filepath.Join(s.checkpoints(), k.file)
		good, err := os.ReadFile(path)
		require.NoError(t, err)
		other, err := os.ReadFile(filepath.Join(s.checkpoints(), k.other))
		require.NoError(t, err)
		flip := append([]byte{}, good...)
		flip[len(flip)/2] ^= 4
		version := append([]byte{}, good...)
		version[4]++
		if k.kind == "store id" {
			version = []byte(strings.Replace(string(good), " v1 ", " v9 ", 1))
		}
		for name, bad := range map[string][]byte{"flipped byte": flip, "cut": good[:len(good)-5], "an older file in its place": other, "wrong version": version, "missing": nil} {
			t.Run(k.kind+" "+filepath.Base(k.file)+": "+name, func(t *testing.T) {
				require.NoError(t, os.Remove(path))
				if bad != nil {
					require.NoError(t, os.WriteFile(path, bad, 0o640))
				}
				texts := []string{k.kind, k.file, "nothing was overwritten", "from a backup"}
				if k.kind != "store id" {
					checkpoint := strings.Join(strings.Split(strings.NewReplacer("full-", "", "chk-", "", ".data", "", ".root", "").Replace(filepath.Base(k.file)), "-")[:2], "-")
					texts = append(texts, "checkpoint "+checkpoint, "--recover-from-store", "processor checkpoints ", file)
				}
				s.untouched(func() { refused(t, s.run(file, noCopy...), 22, texts...) })
				s.untouched(func() { refused(t, s.checkpointsCommand("verify", file), 22, k.kind, k.file) })
				_ = os.Remove(path)
				require.NoError(t, os.WriteFile(path, good, 0o640))
			})
		}
	}
	t.Run("store id of another directory", func(t *testing.T) {
		_, err := snapshot.OpenRepository(t.Context(), snapshot.Config{Dir: filepath.Join(s.dir, "other"), Application: "x", Instance: "x", NumRetained: 1})
		require.NoError(t, err)
		good, err := os.ReadFile(filepath.Join(s.checkpoints(), id))
		require.NoError(t, err)
		other, err := os.ReadFile(filepath.Join(s.dir, "other", id))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(s.checkpoints(), id), other, 0o640))
		s.untouched(func() { refused(t, s.run(file), 21, "store id") })
		s.untouched(func() {
			refused(t, s.run(file, "--recover-from-store"), 21, "the store is not asked: it cannot cure this (other-store)")
		})
		s.untouched(func() { refused(t, s.checkpointsCommand("verify", file), 22, "another checkpoint directory") })
		require.NoError(t, os.WriteFile(filepath.Join(s.checkpoints(), id), good, 0o640))
	})
	t.Run("a damaged marker stops nobody, and is named", func(t *testing.T) {
		marker := strings.TrimSuffix(root.Path, ".root") + ".committed"
		require.NoError(t, os.Truncate(filepath.Join(s.checkpoints(), marker), 9))
		s.untouched(func() { refused(t, s.checkpointsCommand("verify", file), 22, "marker", marker) })
		job := s.run(file)
		job.await("old checkpoints not removed")
		require.Contains(t, job.stderr.String(), marker)
		s.caughtUp(job)
		job.stop()
	})
	s.exact(verify.Config{})
}

// Whatever is wrong with a handle, the service does not start.
func TestRefusedHandles(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, 2).impatient()
	file := s.file(totals)
	s.orders(0, 1000, 50)
	s.goesOn(file)
	stale := s.committed()
	s.orders(1000, 500, 50)
	s.goesOn(file)
	s.orders(1500, 500, 50)
	good := s.committed()
	text := good[1].Metadata
	for _, c := range []struct {
		name     string
		at       int64
		metadata string
		says     string
	}{
		{"flipped", good[1].At, text[:60] + string(text[60]^1) + text[61:], "carries a checkpoint handle that cannot be read"},
		{"cut", good[1].At, text[:len(text)/2], "carries a checkpoint handle that cannot be read"},
		{"missing", good[1].At, "", "was not written by a checkpoint"},
		{"wrong version", good[1].At, "mw7" + text[3:], "was written by a newer version"},
		{"of another partition", good[0].At, good[0].Metadata, "carries the handle of partition 0"},
		{"at another offset", good[1].At - 1, text, "another tool moved it"},
		{"of an older checkpoint", stale[1].At, stale[1].Metadata, "the offsets went back"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.commit(1, c.at, c.metadata)
			s.untouched(func() { refused(t, s.run(file), 21, c.says) })
			s.untouched(func() { refused(t, s.run(file, "--recover-from-store"), 21, c.says, "the store is not asked") })
		})
	}
	// All of them gone back, as after the loss of acknowledged commits: the store has newer ones.
	for p, o := range stale {
		s.commit(p, o.At, o.Metadata)
	}
	s.untouched(func() { refused(t, s.run(file), 21, "the offsets went back", "--recover-from-store") })
	s.goesOn(file, "--recover-from-store")
}

// expired deletes all committed offsets of a service that has run; with what was in them.
func expired(s *site) (file string, was map[int32]kadm.Offset) {
	s.t.Helper()
	file = worked(s)
	was = s.committed()
	s.deleteOffsets()
	return file, was
}

func TestExpiredOffsetsAreRecoveredFromTheStoreOnDemand(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, 2).impatient()
	file, was := expired(s)
	root, err := snapshot.ParseHandle(was[0].Metadata)
	require.NoError(t, err)
	s.untouched(func() {
		refused(t, s.run(file), 21, "has no committed offset", "processor checkpoints list "+file, "processor run "+file+" --recover-from-store")
	})
	job := s.run(file, "--recover-from-store")
	job.await("msg=processing")
	log := job.stderr.String()
	require.Contains(t, log, "RECOVERING FROM THE STORE")
	require.Contains(t, log, "reason=offsets-expired")
	require.Contains(t, log, "checkpoint="+root.Root.Name.String())
	require.Contains(t, log, `may_repeat="nothing: no later checkpoint is known"`)
	s.caughtUp(job)
	job.kill()
	s.exact(verify.Config{})
	s.orders(1500, 500, 50)
	s.goesOn(file)
	s.goesOn(file, "--recover-from-store") // with valid handles it does nothing
	s.storeIsWhole()
}

func TestARecoveryGoesBackBehindADamagedCheckpointAndSaysWhatRepeats(t *testing.T) {
	t.Parallel()
	s := embeddedSite(t, 1)
	file := worked(s)
	s.goesOn(file)
	s.orders(1500, 500, 50)
	h := s.handles()[0]
	path := filepath.Join(s.checkpoints(), h.Root.Path)
	root, err := s.repository().ReadRoot(s.ctx, h.Root)
	require.NoError(t, err)
	require.NotNil(t, root.Predecessor)
	before, err := s.repository().ReadRoot(s.ctx, *root.Predecessor)
	require.NoError(t, err)
	from := before.Tasks[0].Positions[0].Offset
	require.Less(t, from, h.Offset)
	require.NoError(t, os.Truncate(path, 100))
	s.untouched(func() { refused(t, s.run(file), 22, h.Root.Path, "--recover-from-store") })

	job := s.run(file, "--recover-from-store")
	job.await("msg=processing")
	require.Contains(t, job.stderr.String(), "checkpoint="+root.Predecessor.Name.String())
	require.Contains(t, job.stderr.String(), "outputs of inputs ")
	require.Contains(t, job.stderr.String(), "a newer checkpoint is not taken")
	s.caughtUp(job)
	job.stop()
	require.FileExists(t, path, "nothing was deleted")
	r := s.verify(verify.Config{})
	require.Zero(t, r.Missing, "%s", r.String())
	require.Zero(t, r.Wrong, "%s", r.String())
	require.Positive(t, r.Duplicates+r.OutOfOrder, "what was said to repeat has")
	require.NoError(t, os.Remove(path))
	job = s.run(file)
	s.orders(2000, 100, 50)
	job.await("msg=processing")
	s.caughtUp(job)
	job.stop()
}

func TestAnUnconfirmedCheckpointIsNeverTakenSilently(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, 1).impatient()
	file := worked(s)
	s.goesOn(file)
	s.orders(1500, 500, 50)
	h := s.handles()[0]
	require.NoError(t, os.Remove(filepath.Join(s.checkpoints(), strings.TrimSuffix(h.Root.Path, ".root")+".committed")))
	s.deleteOffsets()
	job := s.run(file, "--recover-from-store")
	job.await("msg=processing")
	log := job.stderr.String()
	require.Regexp(t, `msg="a newer checkpoint is not taken" .*checkpoint=`+h.Root.Name.String()+` .*because="unconfirmed`, log)
	require.Contains(t, log, "if an unconfirmed checkpoint was committed")
	s.caughtUp(job)
	job.stop()
}

func TestARecoveryIsRefusedWhileAnyHandleIsValid(t *testing.T) {
	s := fakeSite(t, 2).impatient()
	file := worked(s)
	set := kadm.TopicsSet{}
	set.Add(s.in, 1)
	saved := s.committed()[1]
	got, err := s.adm.DeleteOffsets(s.ctx, s.app, set)
	require.NoError(t, err)
	require.NoError(t, got.Error())
	s.untouched(func() {
		refused(t, s.run(file, "--recover-from-store"), 21, "the store is not asked: "+s.in+"/0 has a valid handle", "delete all offsets of group "+s.app)
	})
	s.commit(1, saved.At, saved.Metadata)
	s.goesOn(file)
}
