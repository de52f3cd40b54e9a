package snapshot

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

// side is a service with tasks of the same names as those of another one: of another cluster, or of another topic.
type side struct {
	r       *Repository
	cluster string
	topic   element.TopicID
	inc     int
	prev    *RootRef
	root    *Root
}

// commit makes committed checkpoints of taskA, with markers.
func (s *side) commit(t *testing.T, from, to int) {
	t.Helper()
	for id := from; id <= to; id++ {
		name, p := nameOf(id, s.inc), position(0, int64(id)*100)
		p.TopicID = s.topic
		e := TaskEntry{Task: taskA, States: counts, Positions: []element.Position{p}}
		if s.root != nil {
			e.Runs = slices.Clone(s.root.Tasks[0].Runs)
		}
		d := delta(taskA, counts, int(e.ChainEnd()), id, change{"totals/acc|" + fmt.Sprint(id%4): val(fmt.Sprint(id))})
		packs, err := s.r.Persist(ctx, name, []TaskDelta{d})
		require.NoError(t, err)
		e.Runs = append(e.Runs, packs[0].Run)
		root := &Root{Name: name, Predecessor: s.prev, ClusterID: s.cluster, CreatedUnixMilli: 1, Tasks: []TaskEntry{e}}
		ref, err := s.r.WriteRoot(ctx, root)
		require.NoError(t, err)
		require.NoError(t, s.r.MarkCommitted(ctx, ref))
		s.prev, s.root = &ref, root
	}
}

// clean is what the other side does while this one is in no group that it knows.
func (s *side) clean(t *testing.T, live ...string) {
	t.Helper()
	_, err := s.r.CleanGone(ctx, GoneInput{
		Live:      func(context.Context) ([]string, error) { return live, nil },
		Committed: func(context.Context) ([]RootRef, error) { return []RootRef{*s.prev}, nil },
		Grace:     time.Hour, Now: time.Now().Add(3 * time.Hour),
	})
	require.NoError(t, err)
	_, err = s.r.Clean(ctx, []RootRef{*s.prev}, says(*s.prev))
	require.NoError(t, err)
}

// whole verifies the newest checkpoint.
func (s *side) whole(t *testing.T) {
	t.Helper()
	_, err := s.r.ReadRoot(ctx, *s.prev)
	require.NoError(t, err)
	_, err = s.r.Verify(ctx, s.root.Tasks[0])
	require.NoError(t, err)
}

// Ids of other clusters' checkpoints and of those of other topics say nothing about a task's own. Nothing of another cluster
// is deleted at all.
func TestCleanersKeepApartWhatOnlySharesItsNames(t *testing.T) {
	for name, other := range map[string]side{
		"another cluster": {cluster: "production", topic: topicID, inc: 2},
		"another topic":   {cluster: "staging", topic: element.TopicID{9}, inc: 2},
	} {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			a, b := side{r: openRepo(t, m, "a"), cluster: "staging", topic: topicID, inc: 1}, other
			b.r = openRepo(t, m, "b")
			a.r.cluster, b.r.cluster = a.cluster, b.cluster // both came before the other had announced itself
			b.commit(t, 1, 3)
			before := slices.DeleteFunc(listAll(t, b.r), func(f string) bool { return !strings.HasPrefix(f, "shop/b/") })
			a.commit(t, 1, 40)
			a.clean(t, "a")
			require.Subset(t, listAll(t, b.r), before)
			b.whole(t)
			b.commit(t, 4, 5)
			b.clean(t, "b")
			a.whole(t)
			b.whole(t)
		})
	}
}

// The same in one directory: an instance of this name was in another cluster before, or was copied from there.
func TestAnInstanceKeepsWhatItHasOfAnotherCluster(t *testing.T) {
	m := vfs.NewMem()
	before := side{r: openRepo(t, m, "a"), cluster: "production", topic: topicID, inc: 1}
	before.r.cluster = before.cluster
	before.commit(t, 1, 9)
	files := listAll(t, before.r)
	now := side{r: openRepo(t, m, "a"), cluster: "staging", topic: topicID, inc: 2}
	now.r.cluster = now.cluster
	now.commit(t, 20, 40)
	now.clean(t, "a")
	require.Subset(t, listAll(t, now.r), files)
	before.whole(t)
	now.whole(t)
}

// A newer checkpoint of a task of that name in another cluster, or of another topic, does not make a committed offset stale,
// and is not what a recovery takes.
func TestResolveKeepsApartWhatOnlySharesItsNames(t *testing.T) {
	for name, other := range map[string]side{
		"another cluster": {cluster: "cluster-2", topic: topicID, inc: 2},
		"another topic":   {cluster: "cluster-1", topic: element.TopicID{9}, inc: 2},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistory(t)
			other.r = openRepo(t, h.m, "i-1")
			other.commit(t, 30, 31)
			var err error
			h.in.Roots, err = h.r.LoadRoots(ctx, NamedRoots(h.in.Tasks))
			require.NoError(t, err)
			h.in.Listing, err = h.r.CommittedAfter(ctx, OldestID(h.in.Tasks))
			require.NoError(t, err)
			require.NotEmpty(t, h.in.Listing)
			got, err := Resolve(*h.in)
			require.NoError(t, err)
			require.Equal(t, nameOf(7, 1), got[taskA].Root.Name)

			h.expire(0, 1)
			infos, err := h.r.Survey(ctx)
			require.NoError(t, err)
			h.in.Listing, h.in.Stored = infos, infos
			_, err = Resolve(*h.in)
			var refused *RefusedError
			require.ErrorAs(t, err, &refused)
			got, rec, err := Recover(*h.in, refused, infos)
			require.NoError(t, err)
			require.Equal(t, nameOf(7, 1), got[taskA].Root.Name)
			require.NotContains(t, fmt.Sprint(rec.Passed), "i-1")
			require.EqualValues(t, 31, rec.LastID)
		})
	}
}

// A cluster that is not the application's is refused as soon as anything tells of the other one.
func TestAnotherClusterIsRefused(t *testing.T) {
	m := vfs.NewMem()
	a := side{r: openRepo(t, m, "a"), cluster: "staging", topic: topicID, inc: 1}
	require.NoError(t, a.r.AnnounceFor(ctx, "staging"))
	require.NoError(t, openRepo(t, m, "a").AnnounceFor(ctx, "staging"))
	require.NoError(t, openRepo(t, m, "b").AnnounceFor(ctx, "staging"))
	refused := func(instance string) {
		t.Helper()
		err := openRepo(t, m, instance).AnnounceFor(ctx, "production")
		require.ErrorContains(t, err, `application shop has been here with cluster "staging" (instance a), this is cluster "production"`)
		require.Equal(t, fault.Stop, fault.RecoveryOf(err))
		require.Equal(t, fault.HandleMismatch, fault.CodeOf(err))
	}
	refused("c")
	refused("a")
	require.NotContains(t, listAll(t, a.r), "shop/c/instance")

	// An announcement of an older version does not tell the cluster; a checkpoint does.
	m = vfs.NewMem()
	a.r = openRepo(t, m, "a")
	require.NoError(t, a.r.Announce(ctx))
	require.NoError(t, openRepo(t, m, "a").AnnounceFor(ctx, "staging"))
	a.commit(t, 1, 1)
	refused("c")
}

// Who wants to delete what an application has is refused by whatever is whole: what is damaged or missing tells nothing, and
// stops nobody.
func TestWhoDeletesIsRefusedByAnythingThatTellsAnotherCluster(t *testing.T) {
	lies := encodeAnnouncement(announcement{dir: "shop/i-0", cluster: "production"})
	for name, c := range map[string]struct {
		files map[string]string // instead of those of cluster-1; empty: removed
		roots string            // what is in place of all roots
		tells bool              // of cluster-1
		lies  bool              // tells of another one as well
	}{
		"all whole":                             {tells: true},
		"no announcement":                       {files: map[string]string{announced: ""}, tells: true},
		"a damaged announcement":                {files: map[string]string{announced: "x"}, tells: true},
		"an announcement without a cluster":     {files: map[string]string{announced: "i-0\n"}, tells: true},
		"the announcement of another cluster":   {files: map[string]string{announced: lies}, tells: true, lies: true},
		"only the announcement":                 {roots: "x", tells: true},
		"no store id, no announcement":          {files: map[string]string{storeIDFile: "", announced: ""}, tells: true},
		"a damaged store id, no announcement":   {files: map[string]string{storeIDFile: "x", announced: ""}, tells: true},
		"a damaged announcement, and all roots": {files: map[string]string{announced: "x"}, roots: "x"},
		"all damaged":                           {files: map[string]string{announced: "x", storeIDFile: "x"}, roots: "x"},
		"nothing but damaged roots":             {files: map[string]string{announced: "", storeIDFile: ""}, roots: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDamaged(t)
			replace := func(file, text string) {
				if text == "" {
					require.NoError(t, d.m.Remove(file))
					return
				}
				replaceFile(t, d.m, file, []byte(text))
			}
			for file, text := range c.files {
				replace(file, text)
			}
			for _, ref := range d.refs {
				if c.roots != "" {
					replace(ref.Path, c.roots)
				}
			}
			before := listAll(t, d.r)
			st := NewLocal(d.m, "/mem")
			require.Equal(t, c.lies, RefuseOtherClusters(ctx, st, "shop", "cluster-1") != nil, "its own")
			err := RefuseOtherClusters(ctx, st, "shop", "production")
			require.Equal(t, before, listAll(t, d.r), "it only looks")
			if !c.tells {
				require.NoError(t, err)
				return
			}
			require.Equal(t, fault.HandleMismatch, fault.CodeOf(err))
			require.ErrorContains(t, err, `cluster "cluster-1"`)
		})
	}
	require.NoError(t, RefuseOtherClusters(ctx, NewLocal(vfs.NewMem(), "/mem"), "shop", "production"), "nothing was ever written")
}
