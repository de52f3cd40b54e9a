//go:build unix

package integration

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// retained is num-retained, which no test changes.
const retained = 3

// checkpoints is the checkpoint directory.
func (s *site) checkpoints() string { return filepath.Join(s.dir, "checkpoints") }

// repository opens the checkpoint directory to look only.
func (s *site) repository() *snapshot.Repository {
	s.t.Helper()
	repo, err := snapshot.OpenRepository(s.ctx, snapshot.Config{Dir: s.checkpoints(), Application: s.app, ReadOnly: true})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = repo.Close() })
	return repo
}

// handles parses the handles of the committed offsets.
func (s *site) handles() map[int32]snapshot.Handle {
	s.t.Helper()
	out := map[int32]snapshot.Handle{}
	for p, o := range s.committed() {
		h, err := snapshot.ParseHandle(o.Metadata)
		require.NoError(s.t, err, "partition %d", p)
		require.Equal(s.t, o.At, h.Offset, "partition %d", p)
		out[p] = h
	}
	return out
}

// storeIsWhole checks the checkpoints of a service that has stopped: every committed handle names a root that can be read
// and whose runs are all intact, and beside what the retained roots name there is no file. It gives the number of keys.
func (s *site) storeIsWhole() (entries int64) {
	s.t.Helper()
	entries = s.handlesAreWhole()
	require.Empty(s.t, s.leftOver(s.repository()), "they belong to no retained checkpoint; newest %v", s.newest())
	return entries
}

// handlesAreWhole is storeIsWhole without a look at what else is there: an instance that is gone has left files.
func (s *site) handlesAreWhole() (entries int64) {
	s.t.Helper()
	repo := s.repository()
	handles := s.handles()
	require.Len(s.t, handles, int(s.parts))
	for p, h := range handles {
		require.Equal(s.t, snapshot.HandleCheckpoint, h.Kind)
		root, err := repo.ReadRoot(s.ctx, h.Root)
		require.NoError(s.t, err)
		var entry *snapshot.TaskEntry
		for i := range root.Tasks {
			if root.Tasks[i].Task.Partition == p {
				entry = &root.Tasks[i]
			}
		}
		require.NotNil(s.t, entry)
		require.Equal(s.t, element.TopicPartition{Topic: s.in, Partition: p}, entry.Positions[0].TopicPartition)
		require.Equal(s.t, h.Offset, entry.Positions[0].Offset)
		stats, err := repo.Verify(s.ctx, *entry)
		require.NoError(s.t, err)
		entries += stats.FullEntries + stats.DeltaEntries
	}
	return entries
}

// newest gives the roots that the committed handles name.
func (s *site) newest() map[snapshot.RootRef]bool {
	roots := map[snapshot.RootRef]bool{}
	for _, h := range s.handles() {
		if h.Kind == snapshot.HandleCheckpoint {
			roots[h.Root] = true
		}
	}
	return roots
}

// leftOver lists the files that nothing needs, seen from the newest roots.
func (s *site) leftOver(repo *snapshot.Repository) (left []string) {
	s.t.Helper()
	newest := s.newest()
	known, roots := map[string]bool{}, map[string]int{} // roots by instance
	visited := map[string]bool{}
	for ref := range newest {
		for ref := &ref; ref != nil && !visited[ref.Path]; { // a run may lie in a root, so that its file is known before
			visited[ref.Path] = true
			root, err := repo.ReadRoot(s.ctx, *ref)
			if err != nil {
				break // a predecessor that was cleaned away
			}
			roots[filepath.Dir(ref.Path)]++
			known[ref.Path] = true
			known[strings.TrimSuffix(ref.Path, ".root")+".committed"] = true
			for _, t := range root.Tasks {
				for _, r := range slices.Concat(t.Runs, t.InFlight) {
					known[r.File] = true
				}
			}
			ref = root.Predecessor
		}
	}
	waiting := map[string]bool{}
	for _, name := range s.fileNames() {
		if strings.Count(name, "/") < 2 || known[name] || filepath.Base(name) == "instance" {
			continue // the store's own id; what a retained root names; what an instance announces itself with
		}
		// A merge that ended after the last root was made up is named by the next one only: of each task at most one, by
		// the last process. It bears the name of the checkpoint after which the merging began.
		of, task, full := fullRun(name)
		last := false
		for ref := range newest {
			last = last || of.Incarnation == ref.Name.Incarnation && of.ID <= ref.Name.ID
		}
		if !full || !last || waiting[task] {
			left = append(left, name)
		}
		waiting[task] = true
	}
	// The stop does not wait for the cleaning after the last checkpoint.
	for dir, n := range roots {
		if n > retained+1 {
			left = append(left, fmt.Sprintf("%d roots in %s", n, dir))
		}
	}
	return left
}

// tidied waits until a job with nothing to do has cleaned up after its last checkpoint: a stop would cut that short.
func (s *site) tidied(job *process) {
	s.t.Helper()
	repo := s.repository()
	var left []string
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if left = s.leftOver(repo); len(left) == 0 {
			return
		}
		require.False(s.t, job.ended())
		require.True(s.t, time.Now().Before(end), "nothing needs %v; newest %v", left, s.newest())
	}
}

// fullRun takes the name of a merged file apart: full-CHECKPOINT-INCARNATION-TASK.data.
func fullRun(name string) (of element.CheckpointName, task string, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimSuffix(filepath.Base(name), ".data"), "full-")
	parts := strings.SplitN(rest, "-", 3)
	if !ok || len(parts) < 3 {
		return of, "", false
	}
	of, err := snapshot.ParseCheckpointName(parts[0] + "-" + parts[1])
	return of, parts[2], err == nil
}

// files reads all files of the checkpoint directory.
func (s *site) files() map[string]string {
	s.t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(s.checkpoints(), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		if os.IsNotExist(err) {
			return nil // the cleaner was faster
		}
		rel, _ := filepath.Rel(s.checkpoints(), p)
		out[filepath.ToSlash(rel)] = string(b)
		return err
	})
	require.NoError(s.t, err)
	return out
}

// fileNames gives their names, sorted.
func (s *site) fileNames() []string { return slices.Sorted(maps.Keys(s.files())) }
