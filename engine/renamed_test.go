package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// namedPlan counts by key what a source of a name reads, over an exchange if wanted.
func namedPlan(t *testing.T, source string, exchange bool) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, source, "in", serde.String(), serde.String())
	if exchange {
		in = topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(2))
	}
	topology.ToTopic(topology.Count(in, "count"), "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// TestARenamedSource: what a source has of state is refused under another name, and let go when that is allowed. What is
// behind an exchange stays.
func TestARenamedSource(t *testing.T) {
	t.Run("exchange", func(t *testing.T) {
		w := newWorld(t, 2)
		for _, name := range []string{"in", "other", "in"} {
			stop := w.startPlan(namedPlan(t, name, true), w.config(), w.ports(), nil)
			w.produce(100, 5)
			w.outputs()
			require.NoError(t, stop())
		}
		w.exact()
	})
	t.Run("chained", func(t *testing.T) {
		w := newWorld(t, 2)
		stop := w.startPlan(namedPlan(t, "in", false), w.config(), w.ports(), nil)
		w.produce(100, 5)
		w.outputs()
		require.NoError(t, stop())
		cfg := w.config()
		r, err := New(namedPlan(t, "other", false), cfg, w.ports(), nil)
		require.NoError(t, err)
		err = r.Run(t.Context())
		require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
		require.ErrorContains(t, err, "belongs to source in,")
		require.ErrorContains(t, err, "as source other now")
		cfg.AllowDropped = true
		var l losses
		stop = w.startPlan(namedPlan(t, "other", false), cfg, w.ports(), l.listener())
		w.produce(100, 5)
		w.outputs()
		require.NoError(t, stop())
		require.Len(t, l.dropped, 1)
		require.Equal(t, "in", l.dropped[0].Stage)
		n, err := serde.Int64().Decode(w.output[100].Value)
		require.NoError(t, err)
		require.EqualValues(t, 1, n, "it began empty")
		from := len(w.output)
		stop = w.startPlan(namedPlan(t, "other", false), w.config(), w.ports(), nil) // it goes on with its own state, unasked
		w.produce(100, 5)
		w.outputs()
		require.NoError(t, stop())
		n, err = serde.Int64().Decode(w.output[from].Value)
		require.NoError(t, err)
		require.Greater(t, n, int64(1))
	})
}

// TestARenamedSourceWhoseOffsetsExpired: it is refused as it is with its offsets, also when the store is to be asked, and goes on
// from there without its state when that is allowed.
func TestARenamedSourceWhoseOffsetsExpired(t *testing.T) {
	w := newWorld(t, 2)
	stop := w.startPlan(namedPlan(t, "in", false), w.config(), w.ports(), nil)
	w.produce(100, 5)
	w.caughtUp()
	require.NoError(t, stop())
	w.forget()
	cfg := w.config()
	for _, cfg.RecoverFromStore = range []bool{false, true} {
		r, err := New(namedPlan(t, "other", false), cfg, w.ports(), nil)
		require.NoError(t, err)
		err = r.Run(t.Context())
		require.Equal(t, fault.StateMismatch, fault.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "belongs to source in,")
		require.ErrorContains(t, err, "as source other now")
		require.Empty(t, w.committed)
	}
	cfg.AllowDropped = true
	lis, told := recoveries()
	var l losses
	lis.Dropped = l.listener().Dropped
	stop = w.startPlan(namedPlan(t, "other", false), cfg, w.ports(), lis)
	w.produce(100, 5)
	w.outputs()
	require.NoError(t, stop())
	require.Len(t, told(), 1)
	require.Equal(t, snapshot.ReasonOffsetsExpired, told()[0].Reason)
	require.Len(t, l.dropped, 1)
	require.Equal(t, "in", l.dropped[0].Stage)
	require.Len(t, w.output, 200, "no record is processed again")
	n, err := serde.Int64().Decode(w.output[100].Value)
	require.NoError(t, err)
	require.EqualValues(t, 1, n, "it began empty")
}
