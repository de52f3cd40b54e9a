package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/vfs/vfstest"
)

// A file that the user has no right to read is named as that, beside all others, and with another exit code than damage. Where
// both are met, damage is what counts.
func TestCheckpointsCommandsTellALackOfAccessFromDamage(t *testing.T) {
	s := newCheckpointStore(t)
	t.Chdir(s.dir) // the way to it need not be open to everybody
	type result struct {
		code        int
		out, errors string
	}
	look := func() (verify, list, third, second result) {
		vfstest.Unprivileged(t, s.dir, func() {
			for _, c := range []struct {
				res  *result
				args []string
			}{{&verify, []string{"verify"}}, {&list, []string{"list"}}, {&third, []string{"inspect", "3"}}, {&second, []string{"inspect", "2"}}} {
				c.res.code, c.res.out, c.res.errors = cli(t, append(append([]string{"checkpoints"}, c.args...), "--dir", ".")...)
			}
		})
		return verify, list, third, second
	}
	verify, list, third, second := look()
	for _, r := range []result{verify, list, third, second} {
		require.Zero(t, r.code, r.errors)
	}
	for kind, name := range map[string]string{"root": s.refs[3].Path, "marker": s.beside(3, ".committed"), "run": s.beside(3, ".data"), "announcement": "shop/i-1/instance"} {
		require.NoError(t, os.Chmod(name, 0))
		says := kind + " " + name + " cannot be read: permission denied; give the user who runs this (uid "
		if kind != "announcement" {
			says = "checkpoint 3-0000000000000abc: " + says
		}
		verify, list, third, second := look()
		require.Equal(t, 20, verify.code, verify.errors)
		require.Contains(t, verify.out, "  unreadable: "+says)
		require.Contains(t, verify.errors, " cannot be read: "+says)
		require.Regexp(t, `2-0\S+ +i-1 +committed, 2 runs`, verify.out, "it goes on")
		require.Zero(t, list.code, list.errors)
		require.Zero(t, second.code, second.errors)
		if kind == "root" || kind == "marker" {
			require.Contains(t, list.out, "\nunreadable: "+says)
			require.Equal(t, 20, third.code)
			require.Contains(t, third.errors, says)
		} else {
			require.Zero(t, third.code, third.errors)
		}
		require.NotContains(t, verify.out+list.out, "damaged: ")

		require.NoError(t, os.Rename(s.refs[1].Path, "away"))
		require.NoError(t, os.Mkdir(s.refs[1].Path, 0o755))
		verify, _, _, _ = look()
		require.Equal(t, 22, verify.code, verify.errors)
		require.Contains(t, verify.out, "  unreadable: "+says)
		require.Contains(t, verify.errors, "root "+s.refs[1].Path+": it is a directory, not a file")
		require.NoError(t, os.Remove(s.refs[1].Path))
		require.NoError(t, os.Rename("away", s.refs[1].Path))
		require.NoError(t, os.Chmod(name, 0o640))
	}
	store := "millweir-store-id"
	require.NoError(t, os.Chmod(store, 0))
	verify, list, third, _ = look()
	for _, r := range []result{verify, list, third} {
		require.Equal(t, 20, r.code, r.errors)
		require.Contains(t, r.errors, "store id "+store+" cannot be read: permission denied")
	}
}
