package processor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/snapshot"
)

// An instance was out of the group for a while, with nothing on disk that somebody needed, and was forgotten: its announcement
// is as old as its process. Before it begins a transaction again it is known again, or nobody would end that one.
func TestAnInstanceThatComesBackIsKnownBeforeItsFirstTransaction(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	open := func(instance string) *service {
		cfg := b.config()
		cfg.InstanceID, cfg.CheckpointsDir = instance, b.dir
		cfg = cfg.withDefaults()
		s := &service{plan: countPlan(t, "back"+inTopic()), cfg: cfg, log: cfg.Logger, instance: instance, incarnation: 1}
		s.patience = t.Context()
		t.Cleanup(func() { require.NoError(t, s.close()) })
		require.NoError(t, s.openCluster(t.Context()))
		require.NoError(t, s.openCheckpoints(t.Context()))
		require.NoError(t, s.openReads(t.Context()))
		require.NoError(t, s.openKafka(t.Context()))
		return s
	}
	s, other := open("a"), open("b")
	known := func() []string {
		names, err := other.repo.Instances(t.Context())
		require.NoError(t, err)
		return names
	}
	require.Equal(t, []string{"a", "b"}, known())
	_, err := other.repo.CleanGone(t.Context(), snapshot.GoneInput{
		Live:      func(context.Context) ([]string, error) { return []string{"b"}, nil },
		Committed: func(context.Context) ([]snapshot.RootRef, error) { return nil, nil },
		Grace:     time.Hour, Now: time.Now().Add(2 * time.Hour),
	})
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, known())

	require.NoError(t, committer{s.manager, s}.Init(t.Context()))
	require.Equal(t, []string{"a", "b"}, known())
}
