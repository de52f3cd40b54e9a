package snapshot

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/vfs"
)

// What starts have left at the top belongs to nobody when it is old, also where no instance is gone. What only looks like it stays.
func TestCleanGoneSweepsTheTop(t *testing.T) {
	g := newGoneBed(t)
	old := []string{strings.Repeat("ab", 8) + tempSuffix, strings.Repeat("01", 8) + tempSuffix}
	others := []string{"notes" + tempSuffix, strings.Repeat("ab", 8), strings.Repeat("ab", 9) + tempSuffix, "shop/" + old[0]}
	for _, name := range append(others, old...) {
		replaceFile(t, g.m, name, []byte("probe\n"))
	}
	require.NoError(t, g.m.MkdirAll(strings.Repeat("cd", 8)+tempSuffix))
	there := func(name string) bool { _, err := g.m.Stat(name); return err == nil }
	g.live = []string{"a", "b", "c"}
	g.now = goneStart.Add(time.Hour)
	require.Zero(t, g.clean().Deleted)
	young := strings.Repeat("23", 8) + tempSuffix
	replaceFile(t, g.m, young, nil)
	g.now = goneStart.Add(time.Hour + 1)
	require.Equal(t, len(old), g.clean().Deleted)
	for _, name := range old {
		require.False(t, there(name), name)
	}
	for _, name := range append(others, young, strings.Repeat("cd", 8)+tempSuffix, storeIDFile) {
		require.True(t, there(name), name)
	}
}

// sleepy is a file system whose first link happens when much has happened meanwhile.
type sleepy struct {
	vfs.FS
	meanwhile func()
}

func (s *sleepy) Link(oldname, newname string) error {
	if s.meanwhile != nil {
		s.meanwhile()
		s.meanwhile = nil
	}
	return s.FS.Link(oldname, newname)
}

// A first start sleeps for so long that its file is swept. It takes the identity that the directory has got meanwhile.
func TestAStartWhoseFileWasSweptTakesTheIdentityThatIsThere(t *testing.T) {
	m := vfs.NewMem()
	slept := &sleepy{FS: m, meanwhile: func() {
		r := openRepo(t, m, "i-1")
		n, err := r.st.(Directories).SweepTop(ctx, time.Now().Add(time.Hour))
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}}
	require.Equal(t, openRepo(t, slept, "i-0").StoreID(), openRepo(t, m, "i-1").StoreID())
	require.Nil(t, slept.meanwhile)
}
