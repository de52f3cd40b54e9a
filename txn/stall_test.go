package txn

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// Too few replicas are in sync: the client tries again as long as it may. The log says what is waited for, and the work goes
// on when they are back.
func TestOutputsThatAreNotAcknowledgedAreTold(t *testing.T) {
	testbed.Alongside(t)
	e := newEnv(t)
	var log bytes.Buffer
	m := e.manager(func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	require.NoError(t, e.checkpoint(m, 1, "one"))
	short := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Answer: testbed.Always(kerr.NotEnoughReplicas)})
	e.produce(m, "two", "three")
	ctx, cancel := context.WithTimeout(e.ctx, stallAfter+500*time.Millisecond)
	defer cancel()
	err := m.Seal(ctx, 2)
	require.Equal(t, fault.Restart, fault.RecoveryOf(err), "%v", err)
	require.Contains(t, log.String(), `msg="the brokers do not acknowledge the outputs" component=txn waiting=3s records=2`)
	short.Remove()
	require.NoError(t, m.Init(e.ctx))
	e.stands(true, 1)
	require.NoError(t, e.checkpoint(m, 3, "four"))
	require.Equal(t, []string{"one", "four"}, e.read(e.out))
}

// lines are those of a log.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// What the cluster says of the partitions is in the line: without it nobody knows where to look.
func TestPartitionsThatAreNotWellAreInTheLog(t *testing.T) {
	testbed.Alongside(t)
	b, fake := testbed.NewFake(t, "metadata of a partition without a leader")
	topic := b.Topic("out", 2, nil)
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers...))
	require.NoError(t, err)
	defer cl.Close()
	fake.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		asked := req.(*kmsg.MetadataRequest).Topics
		fake.KeepControl()
		if len(asked) != 1 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		rt := kmsg.NewMetadataResponseTopic()
		rt.Topic, rt.TopicID = asked[0].Topic, asked[0].TopicID
		for p := range int32(2) {
			rp := kmsg.NewMetadataResponseTopicPartition()
			rp.Partition, rp.Leader, rp.Replicas, rp.ISR = p, -p, []int32{0}, []int32{0}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	l := &limits{asked: map[string]int32{topic: 1 << 20}}
	told := make(lines, 10)
	defer tellStall(t.Context(), slog.New(slog.NewTextHandler(told, nil)), cl, l)()
	select {
	case line := <-told:
		require.Contains(t, line, `partitions="[`+topic+`/1 has no leader]"`)
	case <-time.After(20 * time.Second):
		t.Fatal("the log does not tell")
	}
}
