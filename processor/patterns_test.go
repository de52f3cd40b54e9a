package processor

import (
	"encoding/binary"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// One pattern, whose topics are all inputs of the test's suffix; a topic that comes while it runs is taken in at the next
// start, and what was read of the others stays read.
func TestTopicsThatMatchAreRead(t *testing.T) {
	testbed.Alongside(t)
	t.Run("as they are", func(t *testing.T) {
		topicsThatMatch(t, func(in topology.Stream[[]byte, []byte]) {
			topology.ToTopic(in, "out", outTopic(), serde.Bytes(), serde.Bytes())
		})
	})
	// The values are what a count gives, too: that goes on where it was when a topic has come.
	t.Run("counted behind an exchange", func(t *testing.T) {
		topicsThatMatch(t, func(in topology.Stream[[]byte, []byte]) {
			byKey := topology.GroupBy(in, "by-key", serde.Bytes(), serde.Bytes(), func(k, _ []byte) []byte { return k })
			topology.ToTopic(topology.Count(byKey, "count"), "out", outTopic(), serde.Bytes(), serde.Int64())
		})
	})
}

// Who looks at an instance while it finds out which topics match reads nothing that changes then. (With -race.)
func TestAnInstanceIsLookedAtWhileItMatchesTopics(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	b.groups["looked-at"] = true
	tb := topology.New("looked-at")
	topology.ToTopic(topology.FromPattern(tb, "in", inTopic(), serde.Bytes(), serde.Bytes()), "out", outTopic(), serde.Bytes(), serde.Bytes())
	plan, err := tb.Plan()
	require.NoError(t, err)
	cfg, o := b.instance("a")
	cfg.InstanceID = "a"
	stop := b.start(plan, cfg)
	for ready := 0; ready != http.StatusOK; {
		require.Equal(t, map[string]float64{`{application="looked-at",instance="a"}`: 1}, o.metrics("instance_info"))
		for _, path := range []string{"checkpoints", "attempts"} {
			code, body := o.get("/api/v1/" + path)
			require.Equal(t, http.StatusOK, code, body)
			require.Contains(t, body, `"looked-at"`)
		}
		ready, _ = o.get("/readyz")
	}
	require.NoError(t, stop())
}

func topicsThatMatch(t *testing.T, behind func(topology.Stream[[]byte, []byte])) {
	b := newBed(t)
	adm := kadm.NewClient(b.cl)
	b.groups["patterns"] = true
	var made []string
	topic := func(name string, value int) {
		name += inTopic()
		_, err := adm.CreateTopic(t.Context(), 1, 1, nil, name)
		require.NoError(t, err)
		made = append(made, name)
		r := &kgo.Record{Topic: name, Key: []byte("k"), Value: binary.BigEndian.AppendUint64(nil, uint64(value))}
		require.NoError(t, b.cl.ProduceSync(t.Context(), r).FirstErr())
	}
	t.Cleanup(func() { _, _ = adm.DeleteTopics(t.Context(), made...) })
	plan := func() *topology.Plan {
		tb := topology.New("patterns")
		in := topology.FromPattern(tb, "in", `(eu|us|ap)-?`+inTopic()+`|patterns-.*`, serde.Bytes(), serde.Bytes())
		behind(in)
		p, err := tb.Plan()
		require.NoError(t, err)
		return p
	}
	err := Run(t.Context(), plan(), b.config())
	require.ErrorContains(t, err, "no topic matches")
	require.Equal(t, int(fault.UnknownTopic), ExitCode(err))

	topic("eu", 1)
	topic("us-", 2)
	topic("other", 99)
	reads := func(want ...int) {
		var log logBuffer
		cfg := b.config()
		cfg.Logger = log.logger()
		stop := b.start(plan(), cfg)
		require.Eventually(t, func() bool { return len(b.output()) == len(want) }, 20*time.Second, 20*time.Millisecond)
		topic("ap"+string(rune('0'+len(want))), 98) // matches nothing
		require.NoError(t, stop())
		require.Equal(t, want, b.output())
		matched := regexp.MustCompile(`msg="topics matched.*`).FindString(log.text())
		require.Len(t, strings.Fields(matched[strings.Index(matched, "topics=")+1:]), len(want), "not those of the application itself: %s", matched)
		there, err := adm.ListTopics(t.Context(), "patterns-checkpoints", "patterns-control")
		require.NoError(t, err)
		require.NoError(t, there.Error(), "which are there at the next start")
	}
	reads(1, 2)
	topic("ap", 3)
	reads(1, 2, 3)
}
