package snapshot

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

func verifyAll(t testing.TB, m *vfs.Mem) map[string][]error {
	t.Helper()
	cfg := config(m, "")
	cfg.ReadOnly, cfg.NumRetained = true, 0
	r, err := OpenRepository(ctx, cfg)
	require.NoError(t, err)
	out := map[string][]error{}
	require.NoError(t, r.VerifyAll(ctx, nil, func(v Verified) { out[v.Ref.Name.String()] = v.Damage }))
	return out
}

func TestVerifyNamesEveryDamagedFileAndTheCheckpointsThatNeedIt(t *testing.T) {
	h := newHistory(t)
	for name, damage := range verifyAll(t, h.m) {
		require.Empty(t, damage, name)
	}
	h.damage(t, h.data(5)) // all later chains begin with it
	h.damage(t, h.refs[6].Path)
	require.NoError(t, h.m.Remove(h.data(8)))
	got := verifyAll(t, h.m)
	require.Len(t, got, 4)
	require.Len(t, got["5-0000000000000001"], 1, "the run of the other task is whole")
	require.True(t, requireCorrupt(got["5-0000000000000001"][0], h.data(5)))
	require.True(t, requireCorrupt(got["6-0000000000000001"][0], h.refs[6].Path))
	require.True(t, requireCorrupt(got["7-0000000000000001"][0], h.data(5)))
	var files []string
	for _, err := range got["8-0000000000000001"] {
		var c *CorruptError
		require.True(t, errors.As(err, &c))
		files = append(files, c.File)
	}
	require.Contains(t, files, h.data(8))
}

func TestARootThatALaterOneDidNotFollowIsDamage(t *testing.T) {
	h := newHistory(t)
	// A root of the same name and place with other content, whole in itself.
	root, err := h.r.ReadRoot(ctx, h.refs[6])
	require.NoError(t, err)
	root.CreatedUnixMilli++
	replaceFile(t, h.m, h.refs[6].Path, encodeRoot(root))
	require.NoError(t, h.m.Remove(strings.TrimSuffix(h.refs[6].Path, rootSuffix)+markerSuffix))
	got := verifyAll(t, h.m)["6-0000000000000001"]
	require.Len(t, got, 1)
	require.ErrorContains(t, got[0], "it is not the root that checkpoint 7-0000000000000001 followed")
	infos, err := h.r.List(ctx)
	require.NoError(t, err)
	require.False(t, infos[2].Committed, "nothing vouches for it")
}

func TestAMarkerWithoutItsRootIsAMissingRoot(t *testing.T) {
	h := newHistory(t)
	for id, missing := range map[int]bool{7: true, 5: false} {
		good := readFile(t, h.m, h.refs[id].Path)
		require.NoError(t, h.m.Remove(h.refs[id].Path))
		infos, err := h.r.List(ctx)
		require.NoError(t, err)
		if missing {
			require.Len(t, infos, 4)
			require.True(t, requireCorrupt(infos[1].Err, h.refs[id].Path))
			require.ErrorContains(t, infos[1].Err, "the file is missing")
			refusesUnread(t, infos, h.refs[id].Path)
		} else {
			require.Len(t, infos, 3, "an interrupted Clean leaves markers that are older than all roots")
		}
		replaceFile(t, h.m, h.refs[id].Path, good)
	}
}

func TestCheckpointsWithoutAStoreIDAreDamage(t *testing.T) {
	h := newHistory(t)
	require.NoError(t, h.m.Remove(storeIDFile))
	before := listAll(t, h.r)
	for _, readOnly := range []bool{false, true} {
		cfg := config(h.m, "i-0")
		cfg.ReadOnly = readOnly
		_, err := OpenRepository(ctx, cfg)
		require.True(t, requireCorrupt(err, storeIDFile), "%v", err)
		require.ErrorContains(t, err, "the file is missing")
	}
	require.Equal(t, before, listAll(t, h.r), "no new identity was made")
	_, err := OpenRepository(ctx, Config{Storage: NewLocal(vfs.NewMem(), "/mem"), Application: "shop", ReadOnly: true})
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
	require.ErrorContains(t, err, "nothing was ever written to it")
}

func TestSurveyReadsNoMoreThanItNeeds(t *testing.T) {
	h := newHistory(t)
	h.damage(t, h.data(5)) // every chain begins there, and all are found out
	infos, err := h.r.Survey(ctx)
	require.NoError(t, err)
	for _, info := range infos {
		require.Equal(t, info.Committed, info.Err != nil, "%s", info.Ref.Name)
	}
	h = newHistory(t)
	h.damage(t, h.data(8)) // unconfirmed: not read
	infos, err = h.r.Survey(ctx)
	require.NoError(t, err)
	for _, info := range infos {
		require.NoError(t, info.Err)
	}
	require.NotEmpty(t, verifyAll(t, h.m)["8-0000000000000001"])
}

func TestApplicationsOfADirectory(t *testing.T) {
	dir := t.TempDir()
	apps, err := Applications(ctx, dir)
	require.NoError(t, err)
	require.Empty(t, apps)
	for _, app := range []string{"shop", "mall"} {
		r, err := OpenRepository(ctx, Config{Dir: dir, Application: app, Instance: "i-0", NumRetained: 1, Logger: silent})
		require.NoError(t, err)
		mustCheckpoint(t, r, 1, 1, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|a": val("1")}})
		require.NoError(t, r.Close())
	}
	apps, err = Applications(ctx, dir)
	require.NoError(t, err)
	require.Equal(t, []string{"mall", "shop"}, apps)
	_, err = Applications(ctx, dir+"/none")
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
}
