//go:build unix

package integration

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
)

// directoryGoes takes the checkpoint directory away.
func (w *operatorWalk) directoryGoes() {
	dir := w.now.checkpoints
	if _, err := os.Stat(dir); err != nil {
		return
	}
	away := dir + "-" + w.name("away")
	w.say("  %s moved away", dir)
	w.counts["directories gone"]++
	w.bad = nil
	require.NoError(w.t, os.Rename(dir, away))
	w.undo = append(w.undo, undoing{"file", func() {
		_ = os.Rename(dir, dir+"-"+w.name("new"))
		require.NoError(w.t, os.Rename(away, dir))
	}})
}

// dataPutBack puts the data directory back from a backup, with checkpoints and all that is in it.
func (w *operatorWalk) dataPutBack() {
	if w.backup == "" || w.now.checkpoints != filepath.Join(w.dir, "checkpoints") {
		return
	}
	w.say("  data directory put back")
	w.counts["data put back"]++
	w.bad = nil
	away := w.dir + "-" + w.name("was")
	require.NoError(w.t, os.Rename(w.dir, away))
	require.NoError(w.t, os.CopyFS(w.dir, os.DirFS(w.backup)))
	w.undo = append(w.undo, undoing{"file", func() {
		require.NoError(w.t, os.Rename(w.dir, w.dir+"-"+w.name("new")))
		require.NoError(w.t, os.Rename(away, w.dir))
	}})
}

func (w *operatorWalk) otherDirectory() {
	w.change("another checkpoint directory", func(t *walkTopology) { t.checkpoints = filepath.Join(w.dir, w.name("checkpoints-")) })
	if w.oneIn(2) && len(w.undo) == 1 { // with what is in the old one, as it is to be
		_ = os.CopyFS(w.now.checkpoints, os.DirFS(w.worked.checkpoints))
	}
}

// files lists those of the checkpoint directory of the application, and of the data directory.
func (w *operatorWalk) someFile() string {
	var list []string
	for _, dir := range []string{w.now.checkpoints, w.dir} {
		_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && (dir != w.dir || !strings.Contains(path, "checkpoints")) && !strings.HasSuffix(path, "LOCK") && !strings.HasSuffix(path, ".lock") {
				list = append(list, path)
			}
			return nil
		})
	}
	kinds := map[string][]string{}
	for _, path := range list {
		kind := filepath.Ext(path)
		if !strings.HasPrefix(path, w.now.checkpoints) {
			kind = "local"
		}
		kinds[kind] = append(kinds[kind], path)
	}
	if len(kinds) == 0 {
		return ""
	}
	return pick(w.rnd, kinds[pick(w.rnd, slices.Sorted(maps.Keys(kinds)))])
}

// damage changes, cuts, swaps or deletes a file.
func (w *operatorWalk) damage() {
	path := w.someFile()
	if path == "" || w.job != nil && filepath.Base(path) == "millweir-store-id" { // that of a service that runs shows at its next start only
		return
	}
	good, err := os.ReadFile(path)
	if err != nil {
		return // the service has removed it meanwhile
	}
	bad, how := slices.Clone(good), pick(w.rnd, []string{"flipped", "cut", "empty", "missing", "swapped"})
	switch {
	case how == "flipped" && len(bad) > 0:
		bad[w.rnd.IntN(len(bad))] ^= 1 << w.rnd.IntN(8)
	case how == "cut" && len(bad) > 0:
		bad = bad[:w.rnd.IntN(len(bad))]
	case how == "swapped":
		other := w.someFile()
		if bad, err = os.ReadFile(other); err != nil || filepath.Ext(other) != filepath.Ext(path) {
			return
		}
	default:
		bad = nil
	}
	w.say("  %s %s", path, how)
	w.counts["files damaged"]++
	_ = os.Remove(path)
	if how != "missing" {
		_ = os.WriteFile(path, bad, 0o640)
	}
	w.bad = append(w.bad, path)
	w.undo = append(w.undo, undoing{"file", func() {
		_ = os.MkdirAll(filepath.Dir(path), 0o750)
		require.NoError(w.t, os.WriteFile(path, good, 0o640))
		w.bad = slices.DeleteFunc(w.bad, func(b string) bool { return b == path })
	}})
}
