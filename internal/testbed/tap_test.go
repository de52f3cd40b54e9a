package testbed

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestMain(m *testing.M) { Main(m) }

// world is a client with a Tap and a topic.
func world(t *testing.T) (*Bed, *Tap, *kgo.Client, string) {
	t.Helper()
	b, tap := New(t), &Tap{}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers...), kgo.MetadataMinAge(20*time.Millisecond), tap.Opt())
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return b, tap, cl, b.Topic("t", 1, nil)
}

func put(t *testing.T, cl *kgo.Client, topic string) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	res := cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("v")})
	require.NoError(t, res.FirstErr())
	return res[0].Record.Offset
}

func TestTapReadsRequests(t *testing.T) {
	_, tap, cl, topic := world(t)
	asked := tap.Watch(func(r kmsg.Request) bool {
		m := r.(*kmsg.MetadataRequest)
		return len(m.Topics) == 1 && m.Topics[0].Topic != nil && *m.Topics[0].Topic == topic
	}, kmsg.Metadata)
	all := tap.Watch(nil)
	produced := tap.Watch(nil, kmsg.Produce)
	put(t, cl, topic)
	require.Positive(t, asked.Hits())
	require.Equal(t, 1, produced.Hits())
	require.Greater(t, all.Hits(), asked.Hits())
	produced.Remove()
	put(t, cl, topic)
	require.Equal(t, 1, produced.Hits())
}

func TestTapBreaksBeforeAndAfterARequest(t *testing.T) {
	_, tap, cl, topic := world(t)
	require.Zero(t, put(t, cl, topic))
	n := 0
	tap.Add(&Rule{Keys: []kmsg.Key{kmsg.Produce}, Before: func(kmsg.Request) error {
		if n++; n == 1 {
			return errors.New("before")
		}
		return nil
	}})
	require.EqualValues(t, 1, put(t, cl, topic))
	require.Equal(t, 2, n)
	cut := tap.Add(&Rule{Keys: []kmsg.Key{kmsg.Produce}, When: func(kmsg.Request) bool { return n == 2 }, Cut: true})
	require.EqualValues(t, 2, put(t, cl, topic), "the broker has it once, although it was sent twice")
	require.Equal(t, 1, cut.Hits())
}

func TestTapHoldsAnswersBack(t *testing.T) {
	_, tap, cl, topic := world(t)
	put(t, cl, topic)
	release := make(chan struct{})
	rule := tap.Add(&Rule{Keys: []kmsg.Key{kmsg.Produce}, Mute: release})
	done := make(chan int64, 1)
	go func() { done <- put(t, cl, topic) }()
	require.Eventually(t, func() bool { return rule.Hits() == 1 }, 5*time.Second, time.Millisecond)
	select {
	case <-done:
		t.Fatal("answered")
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	require.EqualValues(t, 1, <-done)
}

// A client must be able to close while an answer is held back.
func TestTapLetsGoOfAClosedClient(t *testing.T) {
	_, tap, cl, topic := world(t)
	put(t, cl, topic)
	rule := tap.Add(&Rule{Keys: []kmsg.Key{kmsg.Produce}, Mute: make(chan struct{})})
	cl.Produce(t.Context(), &kgo.Record{Topic: topic}, nil)
	require.Eventually(t, func() bool { return rule.Hits() == 1 }, 5*time.Second, time.Millisecond)
	start := time.Now()
	cl.Close()
	require.Less(t, time.Since(start), 5*time.Second)
}

func TestParseRefusesWhatIsNoRequest(t *testing.T) {
	whole := kmsg.NewRequestFormatter(kmsg.FormatterClientID("id")).AppendRequest(nil, kmsg.NewPtrMetadataRequest(), 7)
	require.IsType(t, &kmsg.MetadataRequest{}, parse(whole))
	for n := range len(whole) {
		require.NotPanics(t, func() { parse(whole[:n]) })
	}
	require.Nil(t, parse(make([]byte, 12)))
	require.Nil(t, parse([]byte{0, 0, 0, 10, 0x7f, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff}))
}

func TestBedsDoNotShareNames(t *testing.T) {
	a, b := New(t), New(t)
	require.NotEqual(t, a.Name("in"), b.Name("in"))
	topic := a.Topic("in", 3, nil)
	require.Equal(t, a.Name("in"), topic)
	require.NotZero(t, a.TopicID(topic))
	_, err := a.Admin().DeleteTopic(t.Context(), topic)
	require.NoError(t, err)
	a.CreateTopic(topic, 1, nil)
}
