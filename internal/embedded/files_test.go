package embedded

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs/vfstest"
)

// usedDir is the data directory of a broker that has run and has stopped by itself.
func usedDir(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "broker")
	b, err := Start(testContext(t), Config{DataDir: dir, Topics: []Topic{{"in", 2}, {"out", 2}}})
	require.NoError(t, err)
	commitTxn(t, b.Addr(), 4, kgo.TryCommit)
	require.NoError(t, b.Close())
	return dir
}

// startOdd starts a broker on a directory that it has to refuse at once, with one line that names the culprit, and as it is.
func startOdd(t *testing.T, dir, culprit string) {
	t.Helper()
	before := tree(t, dir)
	got := make(chan error, 1)
	go func() {
		b, err := Start(context.Background(), Config{DataDir: dir})
		if err == nil {
			err = errors.Join(errors.New("it starts"), b.Close())
		}
		got <- err
	}()
	select {
	case err := <-got:
		requireRefused(t, err, culprit)
	case <-time.After(10 * time.Second):
		require.FailNow(t, "it hangs", culprit)
	}
	require.Equal(t, before, tree(t, dir), culprit)
}

func requireRefused(t *testing.T, err error, culprit string) {
	t.Helper()
	require.ErrorContains(t, err, culprit)
	require.NotContains(t, err.Error(), "\n")
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(err), "%v", err)
}

// tree gives what lies in a directory, also behind links to files.
func tree(t *testing.T, dir string) (out []string) {
	require.NoError(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := os.Stat(p)
		line := fmt.Sprint(p, d.Type())
		if err == nil && st.Mode().IsRegular() {
			b, err := os.ReadFile(p)
			require.NoError(t, err)
			line += fmt.Sprintf(" %x", sha256.Sum256(b))
		}
		out = append(out, line)
		return nil
	}))
	return out
}

func TestABrokerRefusesWhatIsNoFileInTheDataDirectory(t *testing.T) {
	dir := usedDir(t)
	var files []string
	require.NoError(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, p)
		}
		return err
	}))
	require.Greater(t, len(files), 10)
	for _, k := range vfstest.Kinds() {
		t.Run(k.Name, func(t *testing.T) {
			for _, f := range files {
				back, ok := k.Replace(t, f)
				if !ok {
					return
				}
				startOdd(t, dir, f)
				back()
			}
			for _, name := range []string{"commit.json.tmp", "unknown.json", "partitions/in-0/12345.dat"} {
				f := filepath.Join(dir, "cluster", name)
				k.Put(t, f)
				startOdd(t, dir, f)
				require.NoError(t, os.RemoveAll(f))
			}
			for _, name := range []string{"", "cluster", "cluster/partitions", "cluster/partitions/in-0"} {
				d := filepath.Join(dir, name)
				if k.Directory() {
					continue
				}
				require.NoError(t, os.Rename(d, d+".away"))
				k.Put(t, d)
				startOdd(t, dir, d)
				require.NoError(t, errors.Join(os.Remove(d), os.Rename(d+".away", d)))
			}
		})
	}
	b, err := Start(testContext(t), Config{DataDir: dir})
	require.NoError(t, err)
	values, _, _ := committed(t, b.Addr(), 4)
	require.Len(t, values, 4, strings.Join(values, " "))
	require.NoError(t, b.Close())
}
