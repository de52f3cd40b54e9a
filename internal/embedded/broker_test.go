package embedded

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// childDir makes the test binary a broker process on that directory: the victim of kill -9.
const (
	childDir  = "TEST_BROKER_DIR"
	childPort = "TEST_BROKER_PORT"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		port, _ := strconv.Atoi(os.Getenv(childPort))
		b, err := Start(context.Background(), Config{Port: port, DataDir: dir, SyncWrites: true, Topics: []Topic{{"in", 2}, {"out", 2}}})
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println("addr", b.Addr(), b.ClusterID())
		select {}
	}
	os.Exit(m.Run())
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// commitTxn ends a transaction of n records on both partitions of "out" and the offset 40+n of "in"/1 with metadata.
func commitTxn(t *testing.T, addr string, n int, end kgo.TransactionEndTry) {
	t.Helper()
	ctx := testContext(t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.TransactionalID("tx"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer cl.Close()
	require.NoError(t, cl.BeginTransaction())
	for i := range n {
		require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: "out", Partition: int32(i % 2), Value: []byte(strconv.Itoa(i))}).FirstErr())
	}
	pid, epoch, err := cl.ProducerID(ctx)
	require.NoError(t, err)
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch = "tx", "g", pid, epoch
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	details, err := kadm.NewClient(cl).ListTopics(ctx, "in")
	require.NoError(t, err)
	topic.Topic, topic.TopicID = "in", details["in"].ID
	part := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	part.Partition, part.Offset, part.Metadata = 1, int64(40+n), kmsg.StringPtr("handle-"+strconv.Itoa(n))
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, cl)
	require.NoError(t, err)
	require.Zero(t, resp.Topics[0].Partitions[0].ErrorCode)
	require.NoError(t, cl.EndTransaction(ctx, end))
}

// committed reads what a read_committed reader sees of "out", and the group's offset.
func committed(t *testing.T, addr string, want int) (values []string, offset int64, metadata string) {
	t.Helper()
	ctx := testContext(t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics("out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	require.NoError(t, err)
	defer cl.Close()
	for len(values) < want {
		f := cl.PollFetches(ctx)
		require.NoError(t, f.Err())
		f.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	offsets, err := kadm.NewClient(cl).FetchOffsets(ctx, "g")
	require.NoError(t, err)
	o, _ := offsets.Lookup("in", 1)
	return values, o.At, o.Metadata
}

func TestDataSurvivesARestart(t *testing.T) {
	dir, ctx := t.TempDir(), testContext(t)
	topics := []Topic{{"in", 2}, {"out", 2}}
	b, err := Start(ctx, Config{DataDir: dir, Topics: topics})
	require.NoError(t, err)
	id := b.ClusterID()
	require.Len(t, id, 22)
	commitTxn(t, b.Addr(), 5, kgo.TryCommit)
	require.NoError(t, b.Close())
	require.NoError(t, b.Close(), "a second Close is allowed")

	b, err = Start(ctx, Config{DataDir: dir, Topics: append(topics, Topic{"later", 3})})
	require.NoError(t, err)
	defer b.Close()
	require.Equal(t, id, b.ClusterID())
	values, offset, metadata := committed(t, b.Addr(), 5)
	require.ElementsMatch(t, []string{"0", "1", "2", "3", "4"}, values)
	require.EqualValues(t, 45, offset)
	require.Equal(t, "handle-5", metadata)
	details, err := kadm.NewClient(b.client).ListTopics(ctx)
	require.NoError(t, err)
	require.Len(t, details["later"].Partitions, 3)
	commitTxn(t, b.Addr(), 2, kgo.TryCommit)
	values, offset, _ = committed(t, b.Addr(), 7)
	require.Len(t, values, 7)
	require.EqualValues(t, 42, offset)
}

// Retention removes nothing, however old the records say they are: a partition that it had emptied would begin at offset 0
// again after a restart.
func TestOldRecordsAreKept(t *testing.T) {
	dir, ctx := t.TempDir(), testContext(t)
	for n := range int64(2) {
		b, err := Start(ctx, Config{DataDir: dir, Topics: []Topic{{"in", 1}}})
		require.NoError(t, err)
		require.NoError(t, b.client.ProduceSync(ctx, &kgo.Record{Topic: "in", Timestamp: time.Now().AddDate(-1, 0, 0), Value: []byte("old")}).FirstErr())
		b.cluster.ApplyRetention()
		adm := kadm.NewClient(b.client)
		starts, err := adm.ListStartOffsets(ctx, "in")
		require.NoError(t, err)
		ends, err := adm.ListEndOffsets(ctx, "in")
		require.NoError(t, err)
		require.Zero(t, starts["in"][0].Offset)
		require.Equal(t, n+1, ends["in"][0].Offset)
		require.NoError(t, b.Close())
	}
}

// startChild runs a broker in a process of its own and gives its address, cluster id and how to kill -9 it.
func startChild(t *testing.T, dir string, port ...string) (addr, id string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir, childPort+"="+strings.Join(port, ""))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	f := strings.Fields(line)
	require.Len(t, f, 3, line)
	require.Equal(t, "addr", f[0], line)
	return f[1], f[2], kill
}

func TestDataSurvivesKill9(t *testing.T) {
	dir := t.TempDir()
	addr, id, kill := startChild(t, dir)
	commitTxn(t, addr, 6, kgo.TryCommit)
	ctx := testContext(t)
	open, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.TransactionalID("open"))
	require.NoError(t, err)
	defer open.Close()
	require.NoError(t, open.BeginTransaction())
	require.NoError(t, open.ProduceSync(ctx, &kgo.Record{Topic: "out", Value: []byte("never committed")}).FirstErr())
	kill()

	addr, again, _ := startChild(t, dir)
	require.Equal(t, id, again)
	commitTxn(t, addr, 1, kgo.TryCommit) // visible only when the open transaction was aborted at the start
	values, offset, metadata := committed(t, addr, 7)
	require.ElementsMatch(t, []string{"0", "1", "2", "3", "4", "5", "0"}, values)
	require.EqualValues(t, 41, offset)
	require.Equal(t, "handle-1", metadata)
}

func TestClientsSeeTransactionVersion2(t *testing.T) {
	b, err := Start(testContext(t), Config{})
	require.NoError(t, err)
	defer b.Close()
	resp, err := kmsg.NewPtrApiVersionsRequest().RequestWith(testContext(t), b.client)
	require.NoError(t, err)
	level := int16(-1)
	for _, f := range resp.FinalizedFeatures {
		if f.Name == "transaction.version" {
			level = f.MaxVersionLevel
		}
	}
	require.GreaterOrEqual(t, level, int16(2))
}

func TestAbortedOutputIsInvisible(t *testing.T) {
	b, err := Start(testContext(t), Config{Topics: []Topic{{"in", 2}, {"out", 2}}})
	require.NoError(t, err)
	defer b.Close()
	commitTxn(t, b.Addr(), 3, kgo.TryAbort)
	commitTxn(t, b.Addr(), 2, kgo.TryCommit)
	values, offset, _ := committed(t, b.Addr(), 2)
	require.ElementsMatch(t, []string{"0", "1"}, values)
	require.EqualValues(t, 42, offset)
}

func TestRefusals(t *testing.T) {
	ctx, dir := testContext(t), t.TempDir()
	b, err := Start(ctx, Config{DataDir: dir, Topics: []Topic{{"t", 2}}})
	require.NoError(t, err)
	defer b.Close()
	_, err = Start(ctx, Config{DataDir: dir})
	require.ErrorContains(t, err, "another broker uses "+dir)
	_, port, _ := strings.Cut(b.Addr(), ":")
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	_, err = Start(ctx, Config{Port: n})
	require.ErrorContains(t, err, "address already in use")
	require.ErrorContains(t, b.EnsureTopic(ctx, Topic{"t", 3}), "exists with 2 partitions, 3 were asked for")
	_, err = Start(ctx, Config{Port: -1})
	require.Error(t, err)
}

func TestParseTopic(t *testing.T) {
	for s, want := range map[string]Topic{"a:1": {"a", 1}, "a.b-c_D9": {"a.b-c_D9", DefaultPartitions}, "x:1024": {"x", 1024}} {
		got, err := ParseTopic(s)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, s := range []string{"", ":3", "a:", "a:0", "a:-1", "a:x", "a:1025", "a b:1", ".", "..:2", "a:1:2", strings.Repeat("x", 250)} {
		_, err := ParseTopic(s)
		require.Error(t, err, s)
	}
}
