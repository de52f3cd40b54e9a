package processor

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/topology"
)

// The only topic ahead of an exchange is replaced by another one, and comes back beside it: it goes on at its offset, with the state
// that there is.
func TestATopicComesBackBesideTheOneThatReplacedIt(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	b.groups["takenoutall"] = true
	adm, north, south := kadm.NewClient(b.cl), "north-"+inTopic(), "south-"+inTopic()
	t.Cleanup(func() { _, _ = adm.DeleteTopics(t.Context(), north, south) })
	for _, name := range []string{north, south} {
		_, err := adm.CreateTopic(t.Context(), 1, 1, nil, name)
		require.NoError(t, err)
	}
	produce := func(topic string) {
		r := &kgo.Record{Topic: topic, Key: []byte("k"), Value: binary.BigEndian.AppendUint64(nil, 1)}
		require.NoError(t, b.cl.ProduceSync(t.Context(), r).FirstErr())
	}
	plan := func(topics ...string) *topology.Plan { return countTopics(t, "takenoutall", topics) }
	var want []int
	counts := func(dropped bool, to int, topics ...string) {
		t.Helper()
		cfg := b.config()
		if dropped {
			err := Run(t.Context(), plan(topics...), cfg)
			require.ErrorContains(t, err, "--allow-dropped-state")
			require.Contains(t, []int{int(fault.StateMismatch), int(fault.HandleMismatch)}, ExitCode(err))
			cfg.AllowDroppedState = true
		}
		want = append(want, to)
		stop := b.start(plan(topics...), cfg)
		require.Eventually(t, func() bool { return len(b.output()) >= len(want) }, 20*time.Second, 20*time.Millisecond)
		require.NoError(t, stop())
		require.Equal(t, want, b.output())
	}
	produce(north)
	counts(false, 1, north)
	produce(south)
	counts(true, 1, south)
	produce(north)
	counts(true, 2, south, north)
	produce(south)
	counts(false, 3, south, north)
}
