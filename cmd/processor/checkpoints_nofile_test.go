package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/vfs/vfstest"
)

// What has the name of a checkpoint file and is none: list, verify and inspect name checkpoint, file and kind and what it is,
// go on to the other checkpoints, and change nothing.
func TestCheckpointsCommandsNameWhatIsNoFile(t *testing.T) {
	s := newCheckpointStore(t)
	for _, f := range []struct {
		kind, name string
		listed     bool // list says it
		inspected  bool // and inspect
	}{
		{"root", s.refs[3].Path, true, true},
		{"marker", s.beside(3, ".committed"), true, true},
		{"run", s.beside(3, ".data"), false, false}, // neither reads the state
		{"announcement", "shop/i-1/instance", false, false},
	} {
		for _, kind := range vfstest.Kinds() {
			t.Run(f.kind+": "+kind.Name, func(t *testing.T) {
				back, ok := kind.Replace(t, s.path(f.name))
				if !ok {
					return
				}
				defer back()
				says := fmt.Sprintf("%s %s: it is %s, not a file", f.kind, f.name, kind.What)
				if f.kind != "announcement" {
					says = "checkpoint " + checkpointName(3).String() + ": " + says
				}
				code, stdout, stderr := cli(t, "checkpoints", "verify", "--dir", s.dir)
				require.Equal(t, 22, code, stderr)
				require.Contains(t, stderr, says)
				require.Contains(t, stdout, "  damaged: "+says)
				require.Regexp(t, `2-0\S+ +i-1 +committed, 2 runs`, stdout, "it goes on")
				require.Regexp(t, `1-0\S+ +i-1 +committed, 1 run`, stdout)

				code, stdout, stderr = cli(t, "checkpoints", "list", "--dir", s.dir)
				require.Zero(t, code, stderr)
				require.Equal(t, f.listed, strings.Contains(stdout, "damaged: "+says), stdout)
				require.Regexp(t, `2-0\S+ +i-1 +\S+ +committed`, stdout)

				code, _, stderr = cli(t, "checkpoints", "inspect", "3", "--dir", s.dir)
				if f.inspected {
					require.Equal(t, 22, code, stderr)
					require.Contains(t, stderr, says)
				} else {
					require.Zero(t, code, stderr)
				}
				code, _, stderr = cli(t, "checkpoints", "inspect", "2", "--dir", s.dir)
				require.Zero(t, code, stderr)
			})
		}
	}
	for _, kind := range vfstest.Kinds() {
		t.Run("store id: "+kind.Name, func(t *testing.T) {
			back, ok := kind.Replace(t, s.path("millweir-store-id"))
			if !ok {
				return
			}
			defer back()
			for _, args := range [][]string{{"verify"}, {"list"}, {"inspect", "2"}} {
				code, _, stderr := cli(t, append(append([]string{"checkpoints"}, args...), "--dir", s.dir)...)
				require.Equal(t, 22, code, stderr)
				require.Contains(t, stderr, "store id millweir-store-id: it is "+kind.What+", not a file")
			}
		})
	}
	code, _, stderr := s.look("verify", "--dir", s.dir)
	require.Zero(t, code, stderr)
}
