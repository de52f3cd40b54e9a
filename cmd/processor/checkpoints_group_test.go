package main

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/embedded"
	"github.com/millweir/millweir/snapshot"
)

// cluster starts a broker with the topic of the checkpoints.
func (s *checkpointStore) cluster() (*embedded.Broker, *kadm.Client) {
	b := startBroker(s.t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()))
	require.NoError(s.t, err)
	s.t.Cleanup(cl.Close)
	adm := kadm.NewClient(cl)
	_, err = adm.CreateTopic(s.t.Context(), 1, 1, nil, "orders")
	require.NoError(s.t, err)
	return b, adm
}

// commit commits a handle that names a root.
func (s *checkpointStore) commit(adm *kadm.Client, ref snapshot.RootRef) snapshot.Handle {
	h := snapshot.Handle{Kind: snapshot.HandleCheckpoint, Root: ref, Offset: 300, LeaderEpoch: -1, ClusterID: "cluster-1", PartitionCount: 1, StoreID: s.repo.StoreID()}
	text, err := h.Encode()
	require.NoError(s.t, err)
	s.commitText(adm, text)
	return h
}

func (s *checkpointStore) commitText(adm *kadm.Client, metadata string) {
	o := kadm.Offsets{}
	o.Add(kadm.Offset{Topic: "orders", At: 300, LeaderEpoch: -1, Metadata: metadata})
	require.NoError(s.t, adm.CommitAllOffsets(s.t.Context(), "shop", o))
}

func TestCheckpointsListMarksWhatTheGroupNames(t *testing.T) {
	s := newCheckpointStore(t)
	b, adm := s.cluster()
	code, stdout, stderr := s.look("list", "--dir", s.dir, "--brokers", b.Addr())
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "group: orders/0: no committed offset")

	h := s.commit(adm, s.refs[3])
	code, stdout, stderr = s.look("list", "--dir", s.dir, "--brokers", b.Addr())
	require.Zero(t, code, stderr)
	require.Regexp(t, `(?m)^3-0000000000000abc .* orders/0$`, stdout)
	require.NoError(t, os.Remove(s.path(s.refs[3].Path)))
	require.NoError(t, os.Remove(s.path(s.beside(3, ".committed"))))
	_, stdout, _ = s.look("list", "--dir", s.dir, "--brokers", b.Addr())
	require.Contains(t, stdout, "group: orders/0 at offset 300 names checkpoint 3-0000000000000abc ("+s.refs[3].Path+"), which is not in this directory")
	s.commitText(adm, "by hand")
	_, stdout, _ = s.look("list", "--dir", s.dir, "--brokers", b.Addr())
	require.Contains(t, stdout, "group: orders/0: not a millweir handle")

	s.listsALaterLife(b.Addr(), adm, h)
	code, _, stderr = s.look("list", "--dir", s.dir, "--brokers", "127.0.0.1:1")
	require.Equal(t, 10, code, stderr)
}

// Beside a service that commits and removes checkpoints, no handle is told to lead to nothing because of the order in which the
// directory and the group were looked at.
func TestCheckpointsAreLookedAtWhileTheyComeAndGo(t *testing.T) {
	root := func(id int) string { return fmt.Sprintf("shop/i-1/chk-%d.root", id) }
	for name, c := range map[string]struct {
		lists, handles []int // one after the other, the last one for ever; one checkpoint is kept
		want           bool  // the handle leads to a root
	}{
		"nothing happens":                    {[]int{1}, []int{1}, true},
		"one was committed since":            {[]int{1, 2}, []int{2}, true},
		"and the next one, before the list":  {[]int{1, 3, 3}, []int{2, 3}, true},
		"it is missing":                      {[]int{1}, []int{2}, false},
		"it goes on and on":                  {[]int{1, 3, 5, 7, 7}, []int{2, 4, 6, 7}, true},
		"it is missing behind one that went": {[]int{1, 3}, []int{2, 4}, false},
	} {
		t.Run(name, func(t *testing.T) {
			next := func(of *[]int) (id int) {
				if id = (*of)[0]; len(*of) > 1 {
					*of = (*of)[1:]
				}
				return id
			}
			infos, group, err := lookAtBoth(func() ([]snapshot.RootInfo, error) {
				return []snapshot.RootInfo{{Ref: snapshot.RootRef{Path: root(next(&c.lists))}}}, nil
			}, func([]snapshot.RootInfo) ([]groupHandle, error) {
				return []groupHandle{{File: root(next(&c.handles))}}, nil
			})
			require.NoError(t, err)
			require.Equal(t, c.want, !misses(infos, group))
		})
	}
	calls := 0
	_, _, err := lookAtBoth(func() ([]snapshot.RootInfo, error) { return nil, nil }, func([]snapshot.RootInfo) ([]groupHandle, error) {
		calls++
		return []groupHandle{{File: root(calls)}}, nil
	})
	require.NoError(t, err)
	require.Equal(t, lookTries+1, calls, "there is an end to it")
}

// listsALaterLife: a cancel that deletes was interrupted behind its first request. Handles that it has not come to have no state.
func (s *checkpointStore) listsALaterLife(addr string, adm *kadm.Client, before snapshot.Handle) {
	_, err := adm.CreateTopic(s.t.Context(), 1, 1, nil, "other")
	require.NoError(s.t, err)
	o := kadm.Offsets{}
	for topic, h := range map[string]snapshot.Handle{"orders": before, "other": before.WithoutState(before.Life + 1)} {
		text, err := h.Encode()
		require.NoError(s.t, err)
		o.Add(kadm.Offset{Topic: topic, At: 300, LeaderEpoch: -1, Metadata: text})
	}
	require.NoError(s.t, adm.CommitAllOffsets(s.t.Context(), "shop", o))
	code, stdout, stderr := s.look("list", "--dir", s.dir, "--brokers", addr)
	require.Zero(s.t, code, stderr)
	require.Contains(s.t, stdout, "group: orders/0: starts without state: the application was cancelled since checkpoint 3-0000000000000abc, and its state deleted\n")
	require.NotRegexp(s.t, `(?m) orders/0$`, stdout)
}

// A marker is written after the commit, and may be missing. A committed handle says as much, of all that its checkpoint follows, too.
func TestCheckpointsThatTheGroupNamesAreCommitted(t *testing.T) {
	s := newCheckpointStore(t)
	b, adm := s.cluster()
	for id := 1; id <= 3; id++ {
		require.NoError(t, os.Remove(s.path(s.beside(id, ".committed"))))
	}
	other := s.refs[4]
	other.Digest[0]++
	s.commit(adm, other)
	_, stdout, _ := s.look("list", "--dir", s.dir, "--brokers", b.Addr())
	require.Regexp(t, `(?m)^4-\S+ .* unconfirmed `, stdout, "the handle names another root")

	s.commit(adm, s.refs[4])
	_, stdout, _ = s.look("list", "--dir", s.dir)
	require.NotContains(t, stdout, " committed ", "without the cluster nothing is known")
	code, stdout, stderr := s.look("list", "--dir", s.dir, "--brokers", b.Addr(), "--output", "json")
	require.Zero(t, code, stderr)
	var doc struct{ Checkpoints []listed }
	require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
	require.Len(t, doc.Checkpoints, 4)
	for _, c := range doc.Checkpoints {
		require.Equal(t, statusCommitted, c.Status, c.Name)
		require.True(t, c.Committed, c.Name)
	}

	_, stdout, _ = s.look("inspect", "4", "--dir", s.dir)
	require.Contains(t, stdout, "checkpoint 4-0000000000000abc: unconfirmed\n")
	require.NotContains(t, stdout, "named by")
	code, stdout, stderr = s.look("inspect", "4", "--dir", s.dir, "--brokers", b.Addr())
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "checkpoint 4-0000000000000abc: committed\n")
	require.Contains(t, stdout, "named by    orders/0\n")
	require.Contains(t, stdout, "follows     3-0000000000000abc (committed)\n")

	_, stdout, _ = s.look("verify", "--dir", s.dir)
	require.NotContains(t, stdout, " committed, ")
	for _, names := range [][]string{nil, {"4"}, {"1"}} {
		code, stdout, stderr = s.look(append([]string{"verify", "--dir", s.dir, "--brokers", b.Addr()}, names...)...)
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, " committed, ")
		require.NotContains(t, stdout, "unconfirmed")
	}
}
