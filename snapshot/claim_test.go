package snapshot

import (
	"context"
	"io/fs"
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

// filling is a directory whose identity is being made: it is filled when it has been found empty.
type filling struct {
	Storage
	fill func()
}

func (f *filling) Open(ctx context.Context, name string) (Object, error) {
	o, err := f.Storage.Open(ctx, name)
	if fill := f.fill; name == storeIDFile && fill != nil {
		f.fill = nil
		defer fill()
	}
	return o, err
}

// Who resets an application beside the first start of another one does not take the identity away that this one makes.
func TestAnIdentityThatIsBeingMadeIsNotDamaged(t *testing.T) {
	m := vfs.NewMem()
	replaceFile(t, m, storeIDFile, nil)
	const id = "00112233445566778899aabbccddeeff"
	st := &filling{Storage: NewLocal(m, "/mem")}
	st.fill = func() { replaceFile(t, m, storeIDFile, []byte(encodeStoreID(id))) }
	require.NoError(t, RemoveDamagedStoreID(ctx, st))
	got, err := ReadStoreID(ctx, st)
	require.NoError(t, err)
	require.Equal(t, id, got)

	replaceFile(t, m, storeIDFile, nil)
	require.NoError(t, RemoveDamagedStoreID(ctx, st), "one that stays empty goes")
	_, err = ReadStoreID(ctx, st)
	require.ErrorIs(t, err, fs.ErrNotExist)
}
