package processor

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// passPlan hands records on.
func passPlan(t testing.TB, app string, opts ...topology.SourceOption) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", inTopic(), serde.Bytes(), serde.Bytes(), opts...)
	topology.ToTopic(in, "out", outTopic(), serde.Bytes(), serde.Bytes())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

func input(p int32) element.TopicPartition {
	return element.TopicPartition{Topic: inTopic(), Partition: p}
}

// writes puts records with values from, from+1, … into a partition of the input. at gives their timestamps in seconds.
func (b *bed) writes(p int32, from, n int, at func(i int) int64) {
	b.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(b.t, err)
	defer cl.Close()
	for i := range n {
		r := &kgo.Record{Topic: inTopic(), Partition: p, Key: fmt.Append(nil, from+i), Value: binary.BigEndian.AppendUint64(nil, uint64(from+i))}
		if at != nil {
			r.Timestamp = time.Unix(at(from+i), 0)
		}
		require.NoError(b.t, cl.ProduceSync(b.t.Context(), r).FirstErr())
	}
}

func (b *bed) deletes(p int32, below int64) {
	b.t.Helper()
	del := kadm.Offsets{}
	del.AddOffset(inTopic(), p, below, -1)
	_, err := kadm.NewClient(b.cl).DeleteRecords(b.t.Context(), del)
	require.NoError(b.t, err)
}

// output gives the committed values of the output topic, sorted.
func (b *bed) output() (values []int) {
	b.t.Helper()
	b.eachOutput(func(r *kgo.Record) { values = append(values, int(binary.BigEndian.Uint64(r.Value))) })
	slices.Sort(values)
	return values
}

// eachOutput gives the records of the output topic that are committed now, those of each partition in order.
func (b *bed) eachOutput(f func(*kgo.Record)) {
	b.t.Helper()
	adm := kadm.NewClient(b.cl)
	ends, err := adm.ListCommittedOffsets(b.t.Context(), outTopic())
	require.NoError(b.t, err)
	at, left := map[string]map[int32]kgo.Offset{outTopic(): {}}, map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		at[o.Topic][o.Partition] = kgo.NewOffset().At(0)
		left[o.Partition] = o.Offset
	})
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.ConsumePartitions(at), kgo.FetchMaxWait(100*time.Millisecond))
	require.NoError(b.t, err)
	defer cl.Close()
	open := func() bool {
		for _, end := range left {
			if end > 0 {
				return true
			}
		}
		return false
	}
	for open() {
		fetches := cl.PollFetches(b.t.Context())
		require.NoError(b.t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				f(r)
			}
			if r.Offset+1 >= left[r.Partition] {
				left[r.Partition] = 0
			}
		})
	}
}

func upTo(from, to int) (values []int) {
	for v := from; v < to; v++ {
		values = append(values, v)
	}
	return values
}

func TestStartPositions(t *testing.T) {
	b := newBed(t)
	now := time.Now().Unix()
	b.writes(0, 0, 10, func(i int) int64 { return 1000 + int64(i) })
	b.writes(1, 0, 10, func(i int) int64 { return now - 3600 + 600*int64(i) }) // one every ten minutes
	b.writes(2, 0, 6, func(i int) int64 { return []int64{100, 300, 200, 400, 350, 500}[i] })
	b.deletes(0, 3)
	defer b.leavesOpen(1, 10)() // one record at the end, of a transaction that nobody has ended
	b.groups["plain"] = true
	b.commitsPlain("plain", 5)
	r := reads{cl: b.cl, group: "plain"}
	all := []element.TopicPartition{input(0), input(1), input(2), input(3)}
	for name, c := range map[string]struct {
		start topology.Start
		want  []int64
	}{
		"committed":           {topology.Committed(), []int64{3, 0, 0, 0}}, // of our checkpoints, of which there is none
		"earliest":            {topology.Earliest(), []int64{3, 0, 0, 0}},
		"latest":              {topology.Latest(), []int64{10, 10, 6, 0}},
		"timestamp":           {topology.StartTimestamp(time.Unix(1005, 0)), []int64{5, 0, 6, 0}},
		"timestamp, disorder": {topology.StartTimestamp(time.Unix(250, 0)), []int64{3, 0, 1, 0}},
		"ago":                 {topology.StartAgo(45 * time.Minute), []int64{10, 2, 6, 0}},
		"offsets":             {topology.StartOffsets(map[int32]int64{0: 3, 2: 6, 3: 0}), []int64{3, 0, 6, 0}},
		"offsets, latest":     {topology.StartOffsets(map[int32]int64{2: 1}).Otherwise(topology.Latest()), []int64{10, 10, 1, 0}},
	} {
		got, err := r.Start(t.Context(), c.start, all)
		require.NoError(t, err, name)
		for p, want := range c.want {
			require.Equal(t, want, got[input(int32(p))], "%s, partition %d", name, p)
		}
	}
	for says, offsets := range map[string]map[int32]int64{
		"start at offset 2, but it has offsets 3 to 10":  {0: 2},
		"start at offset 11, but it has offsets 3 to 10": {0: 11},
		"name partition 4, but it has 4 partitions":      {4: 1},
	} {
		_, err := r.Start(t.Context(), topology.StartOffsets(offsets), all)
		require.ErrorContains(t, err, says)
		require.Equal(t, fault.Stop, fault.RecoveryOf(err))
		require.Equal(t, fault.BadFile, fault.CodeOf(err), "it is the file that names what is not there")
	}
}

// leavesOpen writes a record in a transaction that goes on until done is called.
func (b *bed) leavesOpen(p int32, value int) (done func()) {
	b.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID("left-open-"+inTopic()))
	require.NoError(b.t, err)
	require.NoError(b.t, cl.BeginTransaction())
	r := &kgo.Record{Topic: inTopic(), Partition: p, Value: binary.BigEndian.AppendUint64(nil, uint64(value))}
	require.NoError(b.t, cl.ProduceSync(b.t.Context(), r).FirstErr())
	return func() {
		assert.NoError(b.t, cl.EndTransaction(context.Background(), kgo.TryAbort))
		cl.Close()
	}
}

// commitsPlain puts plain offsets of all partitions into a group, as a consumer or a tool does.
func (b *bed) commitsPlain(group string, at int64) {
	b.t.Helper()
	offsets := kadm.Offsets{}
	for p := range int32(4) {
		offsets.AddOffset(inTopic(), p, at, -1)
	}
	require.NoError(b.t, kadm.NewClient(b.cl).CommitAllOffsets(b.t.Context(), group, offsets))
}

// What another program has committed for the group is no start position, whatever the source's start is: it may as well be what
// a tool made of our own, whose state would be gone without a word. Nothing is read, and nothing is written.
func TestOffsetsOfAnotherProgramAreRefused(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	b.writes(0, 0, 10, nil)
	for _, start := range []topology.Start{topology.Committed(), topology.Earliest(), topology.Latest(), topology.StartOffsets(map[int32]int64{0: 5})} {
		app := "foreign-" + strings.Fields(start.String())[0]
		b.groups[app] = true
		b.commitsPlain(app, 5)
		err := Run(t.Context(), passPlan(t, app, topology.StartAt(start)), b.config())
		require.Equal(t, int(fault.HandleMismatch), ExitCode(err), "%s: %v", start, err)
		require.ErrorContains(t, err, "was not written by a checkpoint", start)
		require.ErrorContains(t, err, "delete the group's offsets or choose another application name", start)
		got, err := kadm.NewClient(b.cl).FetchOffsets(t.Context(), app)
		require.NoError(t, err)
		at, _ := got.Lookup(inTopic(), 0)
		require.EqualValues(t, 5, at.At, "%s: the offset is as it was", start)
		require.Empty(t, at.Metadata, start)
	}
	require.Empty(t, b.output())
	require.NoError(t, b.start(passPlan(t, "own"), b.config())())
}

// A start position is resolved once: what "ago" means later does not matter, nor what has come meanwhile.
func TestAStartPositionIsCommittedBeforeTheFirstRecord(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	b.writes(0, 0, 10, func(i int) int64 { return 1000 + int64(i) })
	plan := passPlan(t, "starts", topology.StartAt(topology.StartTimestamp(time.Unix(1006, 0))))
	stop := b.start(plan, b.config())
	require.Eventually(t, func() bool { return b.lag("starts") == 0 }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	b.writes(0, 10, 3, func(int) int64 { return 5 })
	stop = b.start(passPlan(t, "starts", topology.StartAt(topology.Latest())), b.config())
	require.Eventually(t, func() bool { return b.lag("starts") == 0 }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	require.Equal(t, upTo(6, 13), b.output(), "from record 6 on, also those with older timestamps")
}

func TestATopicHasThePartitionsThatAreAssigned(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	r := reads{cl: b.cl, group: "none", owned: func() []element.TopicPartition { return []element.TopicPartition{input(1), input(4)} }}
	time.AfterFunc(200*time.Millisecond, func() {
		_, err := kadm.NewClient(b.cl).CreatePartitions(context.Background(), 1, inTopic())
		assert.NoError(t, err)
	})
	got, err := r.Topics(t.Context(), []string{inTopic()})
	require.NoError(t, err)
	require.EqualValues(t, 5, got[inTopic()].Partitions)
}

// What is assigned when the topics have been read already is of a topic that has grown since, not of one that was made anew.
func TestAPartitionThatIsAssignedBehindTheReadIsNotOneTooMany(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	looks := 0
	r := reads{cl: b.cl, group: "none", learnt: func(map[string]int32) {}, fewer: func(few map[string]int32) { assert.Failf(t, "the group is told", "%v", few) }}
	r.owned = func() []element.TopicPartition {
		if looks++; looks == 1 {
			return []element.TopicPartition{input(1)}
		}
		return []element.TopicPartition{input(1), input(4)}
	}
	_, err := r.Topics(t.Context(), []string{inTopic()})
	require.NoError(t, err)
}
