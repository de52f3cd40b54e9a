package snapshot

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/vfs"
)

// failingClaim is a file system without hard links on which the claim of the store id fails: the empty file cannot be closed, or it is
// renamed and the answer is lost.
type failingClaim struct {
	noLinks
	close, rename bool
}

type unclosed struct{ vfs.File }

func (u unclosed) Close() error {
	_ = u.File.Close()
	return syscall.EIO
}

func (c *failingClaim) Create(name string) (vfs.File, error) {
	f, err := c.noLinks.Create(name)
	if err == nil && name == storeIDFile && c.close {
		f = unclosed{f}
	}
	return f, err
}

func (c *failingClaim) Rename(from, to string) error {
	err := c.FS.Rename(from, to)
	if err == nil && to == storeIDFile && c.rename {
		err = syscall.EIO
	}
	return err
}

// An identity that somebody may have read is not taken away, and an empty one does not stay.
func TestAFailedClaimOfTheStoreIDLeavesAllOrNothing(t *testing.T) {
	for _, c := range []*failingClaim{{close: true}, {rename: true}} {
		m := vfs.NewMem()
		c.noLinks = noLinks{FS: m, opened: func(string) {}, renames: func(string) {}}
		st := NewLocal(c, "/mem")
		_, err := ensureStoreID(ctx, st)
		require.ErrorIs(t, err, syscall.EIO)
		id, err := ReadStoreID(ctx, st)
		c.close = false
		again, aerr := ensureStoreID(ctx, st)
		if c.rename {
			require.NoError(t, err, "it is there")
			require.NoError(t, aerr)
			require.Equal(t, id, again)
			continue
		}
		require.NoError(t, aerr, "the next start makes it")
		require.Len(t, again, 32)
	}
}
