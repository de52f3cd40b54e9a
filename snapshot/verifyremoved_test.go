package snapshot

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

// watched is a file system that tells which data it is asked to open, and to read.
type watched struct {
	vfs.FS
	opens, reads func(name string)
}

func (w watched) Open(name string) (vfs.File, error) {
	if !strings.HasSuffix(name, dataSuffix) {
		return w.FS.Open(name)
	}
	w.opens(name)
	f, err := w.FS.Open(name)
	return watchedFile{f, func() { w.reads(name) }}, err
}

type watchedFile struct {
	vfs.File
	reads func()
}

func (f watchedFile) ReadAt(p []byte, off int64) (int, error) {
	f.reads()
	return f.File.ReadAt(p, off)
}

// The service commits and removes while its checkpoints are read, which takes longer than it keeps them.
func TestVerifyOfAServiceThatCommitsFasterThanItIsRead(t *testing.T) {
	nothing := func(string) {}
	for name, c := range map[string]struct {
		moves  int  // so often everything that is there is removed for a newer checkpoint
		atRead bool // when data is read, not before it is opened
		whole  []string
	}{
		"removed while it is read":          {1000, true, []string{"8-0000000000000001", "7-0000000000000001", "6-0000000000000001", "5-0000000000000001"}},
		"removed before it is opened":       {1, false, []string{"9-0000000000000001"}},
		"removed before it is opened twice": {2, false, []string{"10-0000000000000001"}},
		"always removed before":             {1000, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistory(t)
			newest := 8
			move := func(string) {
				if newest-8 == c.moves {
					return
				}
				for _, f := range listAll(t, h.r) {
					if strings.Contains(f, "/chk-") {
						require.NoError(t, h.m.Remove(f))
					}
				}
				newest++
				ref, _ := mustCheckpoint(t, h.r, newest, 1, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|a": val("1")}})
				require.NoError(t, h.r.MarkCommitted(ctx, ref))
			}
			w := watched{FS: h.m, opens: move, reads: nothing}
			if c.atRead {
				w.opens, w.reads = nothing, move
			}
			cfg := config(w, "")
			cfg.ReadOnly, cfg.NumRetained = true, 0
			r, err := OpenRepository(ctx, cfg)
			require.NoError(t, err)
			var whole []string
			err = r.VerifyAll(ctx, nil, func(v Verified) {
				require.Empty(t, v.Damage)
				whole = append(whole, v.Ref.Name.String())
			})
			require.Zero(t, h.m.OpenFiles())
			if c.whole == nil {
				require.Equal(t, fault.NotRunning, fault.CodeOf(err), "%v", err)
				require.ErrorContains(t, err, "were removed while they were read")
				require.Empty(t, whole)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.whole, whole)
		})
	}
}
