//go:build unix

package integration

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
	id, err := os.ReadFile(filepath.Join(s.dir, "instance-id"))
	require.NoError(s.t, err)
	repo, err := snapshot.OpenRepository(s.ctx, snapshot.Config{Dir: s.checkpoints(), Application: s.app, Instance: strings.TrimSpace(string(id)), ReadOnly: true})
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
	repo := s.repository()
	handles := s.handles()
	require.Len(s.t, handles, int(s.parts))
	known := map[string]bool{}
	var newest snapshot.RootRef
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
		newest = h.Root
	}
	ref, roots := &newest, 0
	for ; ref != nil; roots++ {
		root, err := repo.ReadRoot(s.ctx, *ref)
		if err != nil {
			break // a predecessor that was cleaned away
		}
		known[ref.Path] = true
		known[strings.TrimSuffix(ref.Path, ".root")+".committed"] = true
		for _, t := range root.Tasks {
			for _, r := range t.Runs {
				known[r.File] = true
			}
		}
		ref = root.Predecessor
	}
	// The stop does not wait for the cleaning after the last checkpoint.
	require.LessOrEqual(s.t, roots, retained+1)
	for name := range s.files() {
		if strings.Count(name, "/") < 2 || known[name] {
			continue // the store's own id; what a retained root names
		}
		// A merge that ended after the last root is named by the next one only.
		require.True(s.t, strings.HasPrefix(filepath.Base(name), "full-"+newest.Name.String()), "%s belongs to no retained checkpoint; newest %s", name, newest.Name)
	}
	return entries
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
