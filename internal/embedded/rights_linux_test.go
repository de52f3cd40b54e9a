package embedded

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/vfs/vfstest"
)

// Files that may not be read or written, and directories that may not be listed or changed, are named at the start.
func TestABrokerRefusesADataDirectoryWithoutRights(t *testing.T) {
	dir := usedDir(t)
	for _, dir := range []string{filepath.Dir(dir), filepath.Dir(filepath.Dir(dir))} {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	for name, mode := range map[string]fs.FileMode{
		"broker.lock": 0, "cluster": 0, "cluster/meta.json": 0, "cluster/groups.log": 0o444, "cluster/partitions": 0, "cluster/partitions/in-0": 0,
		"cluster/partitions/out-1/0.dat": 0o444, "cluster/partitions/out-1/0.idx": 0, "cluster//": 0o555, "cluster/partitions/out-0": 0o555,
	} {
		t.Run(name, func(t *testing.T) {
			p := filepath.Join(dir, name)
			was, err := os.Stat(p)
			require.NoError(t, err)
			require.NoError(t, os.Chmod(p, mode))
			before := tree(t, dir)
			vfstest.Unprivileged(t, dir, func() { _, err = Start(context.Background(), Config{DataDir: dir}) })
			requireRefused(t, err, p)
			require.Equal(t, before, tree(t, dir))
			require.NoError(t, os.Chmod(p, was.Mode()))
		})
	}
}
