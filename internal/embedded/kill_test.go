package embedded

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

// leaveOpen begins a transaction on both partitions of "out" with a client that stays.
func leaveOpen(t *testing.T, addr string) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.TransactionalID("tx"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	require.NoError(t, cl.BeginTransaction())
	for p := range int32(2) {
		require.NoError(t, cl.ProduceSync(testContext(t), &kgo.Record{Topic: "out", Partition: p, Value: []byte("never committed")}).FirstErr())
	}
	return cl
}

// A transaction that was open when the broker was killed ends there: what the same id commits later is seen.
func TestWhatIsCommittedAfterAKillIsSeen(t *testing.T) {
	dir := t.TempDir()
	want := 0
	for range 3 {
		addr, _, kill := startChild(t, dir)
		commitTxn(t, addr, 4, kgo.TryCommit)
		want += 4
		leaveOpen(t, addr)
		kill()
		_, _, kill = startChild(t, dir) // and once more before anything is written
		kill()
	}
	b, err := Start(testContext(t), Config{DataDir: dir})
	require.NoError(t, err)
	defer b.Close()
	commitTxn(t, b.Addr(), 2, kgo.TryCommit)
	values, _, _ := committed(t, b.Addr(), want+2)
	require.Len(t, values, want+2)
	require.NotContains(t, values, "never committed")
	adm := kadm.NewClient(b.client)
	stable, err := adm.ListCommittedOffsets(testContext(t), "out")
	require.NoError(t, err)
	ends, err := adm.ListEndOffsets(testContext(t), "out")
	require.NoError(t, err)
	require.Equal(t, ends.KOffsets(), stable.KOffsets(), "nothing is open")
}

// A client that outlives the broker, with a transaction open, is not told that it was committed.
func TestACommitAcrossAKillIsRefused(t *testing.T) {
	dir := t.TempDir()
	b, err := Start(testContext(t), Config{DataDir: dir, Topics: []Topic{{"in", 2}, {"out", 2}}})
	require.NoError(t, err)
	_, port, _ := strings.Cut(b.Addr(), ":")
	require.NoError(t, b.Close())

	addr, _, kill := startChild(t, dir, port)
	commitTxn(t, addr, 2, kgo.TryCommit)
	cl := leaveOpen(t, addr)
	id, epoch, err := cl.ProducerID(testContext(t))
	require.NoError(t, err)
	kill()
	addr, _, _ = startChild(t, dir, port)
	adm := kadm.NewClient(cl)
	states, err := adm.DescribeTransactions(testContext(t), "tx")
	require.NoError(t, err)
	require.Equal(t, id, states["tx"].ProducerID)
	require.Greater(t, states["tx"].ProducerEpoch, epoch+1)
	require.ErrorIs(t, cl.EndTransaction(testContext(t), kgo.TryCommit), kerr.ProducerFenced)
	values, _, _ := committed(t, addr, 2)
	require.NotContains(t, values, "never committed")
}

// A batch whose index entry was not written yet was never acknowledged, and belongs to no transaction that ended.
func TestABatchWithoutIndexEntryIsCutOff(t *testing.T) {
	dir := t.TempDir()
	addr, _, kill := startChild(t, dir)
	commitTxn(t, addr, 2, kgo.TryCommit)
	leaveOpen(t, addr)
	kill()
	for _, p := range []string{"out-0", "out-1"} {
		path := filepath.Join(dir, "cluster", "partitions", p, "0.idx")
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.EqualValues(t, 3*indexEntry, info.Size(), "a record, its marker, the open one")
		require.NoError(t, os.Truncate(path, info.Size()-indexEntry))
	}
	b, err := Start(testContext(t), Config{DataDir: dir})
	require.NoError(t, err)
	defer b.Close()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.ConsumeTopics("out"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	require.NoError(t, err)
	defer cl.Close()
	commitTxn(t, b.Addr(), 2, kgo.TryCommit)
	var values []string
	for len(values) < 4 {
		f := cl.PollFetches(testContext(t))
		require.NoError(t, f.Err())
		f.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	require.NotContains(t, values, "never committed")
}

// kfake makes the two files of a segment one after the other: a kill between leaves an empty one without its index. Nothing
// is lost with it, also where it was made for the marker of a commit that is to be completed.
func TestASegmentWithoutItsIndex(t *testing.T) {
	for name, marker := range map[string]bool{"of a record": false, "of a marker": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			addr, _, kill := startChild(t, dir)
			commitTxn(t, addr, 2, kgo.TryCommit)
			kill()
			next := "2.dat" // behind a record and its marker
			if marker {
				cutLast(t, dir, "out-1")
				next = "1.dat"
			}
			path := filepath.Join(dir, "cluster", "partitions", "out-1", next)
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			b, err := Start(testContext(t), Config{DataDir: dir})
			require.NoError(t, err)
			defer b.Close()
			commitTxn(t, b.Addr(), 4, kgo.TryCommit)
			values, _, _ := committed(t, b.Addr(), 6)
			require.ElementsMatch(t, []string{"0", "1", "0", "1", "2", "3"}, values)
		})
	}
}

// cutLast takes the last batch of a partition away, as if the broker had been killed before it wrote that.
func cutLast(t *testing.T, dir, partition string) {
	t.Helper()
	path := filepath.Join(dir, "cluster", "partitions", partition, "0")
	dat, err := os.ReadFile(path + ".dat")
	require.NoError(t, err)
	at, n := 0, 0
	for next := 0; next < len(dat); n++ {
		at, next = next, next+12+int(binary.BigEndian.Uint32(dat[next+atLength:]))
	}
	require.NoError(t, os.Truncate(path+".dat", int64(at)))
	require.NoError(t, os.Truncate(path+".idx", int64(n-1)*indexEntry))
}

// A kill in the middle of a commit: some markers are written, the others and the offsets are not. The next start completes
// it. If no marker is written nothing of it is seen.
func TestACommitThatHadBegunIsCompleted(t *testing.T) {
	for name, cut := range map[string][]string{"begun": {"out-1"}, "not begun": {"out-0", "out-1"}, "all but the offsets": nil} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			addr, _, kill := startChild(t, dir)
			commitTxn(t, addr, 2, kgo.TryCommit)
			groups, err := os.ReadFile(filepath.Join(dir, "cluster", "groups.log"))
			require.NoError(t, err)
			commitTxn(t, addr, 4, kgo.TryCommit)
			kill()
			for _, p := range cut {
				cutLast(t, dir, p)
			}
			require.NoError(t, os.WriteFile(filepath.Join(dir, "cluster", "groups.log"), groups, 0o600))
			want, at, handle := []string{"0", "1", "0", "1", "2", "3"}, 44, "handle-4"
			if len(cut) == 2 {
				want, at, handle = want[:2], 42, "handle-2"
			}
			for range 2 { // the repair itself may be killed
				addr, _, kill = startChild(t, dir)
				values, offset, metadata := committed(t, addr, len(want))
				require.ElementsMatch(t, want, values)
				require.EqualValues(t, at, offset)
				require.Equal(t, handle, metadata)
				kill()
			}
			addr, _, _ = startChild(t, dir)
			commitTxn(t, addr, 6, kgo.TryCommit)
			values, offset, _ := committed(t, addr, len(want)+6)
			require.Len(t, values, len(want)+6)
			require.EqualValues(t, 46, offset)
		})
	}
}

// A commit cannot be noted for a while. It is not done before it is, what comes after it is noted as well, and none of it is
// taken back or cut in two by a kill.
func TestACommitThatCannotBeNotedWaits(t *testing.T) {
	for name, cut := range map[string]bool{"killed later": false, "killed before its offsets are kept": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			addr, _, kill := startChild(t, dir)
			commitTxn(t, addr, 2, kgo.TryCommit)
			log := filepath.Join(dir, "cluster", "groups.log")
			groups, err := os.ReadFile(log)
			require.NoError(t, err)
			inTheWay := filepath.Join(dir, "cluster", journalFile+".tmp")
			require.NoError(t, os.Mkdir(inTheWay, 0o700))
			done := make(chan struct{})
			go func() {
				defer close(done)
				commitTxn(t, addr, 4, kgo.TryCommit)
			}()
			select {
			case <-done:
				require.Fail(t, "committed without a note")
			case <-time.After(300 * time.Millisecond):
			}
			require.NoError(t, os.Remove(inTheWay))
			<-done
			want, at := 6, 44
			if cut {
				kill()
				require.NoError(t, os.WriteFile(log, groups, 0o600))
			} else {
				commitTxn(t, addr, 6, kgo.TryCommit)
				want, at = 12, 46
				kill()
			}
			addr, _, _ = startChild(t, dir)
			values, offset, metadata := committed(t, addr, want)
			require.Len(t, values, want)
			require.EqualValues(t, at, offset)
			require.Equal(t, fmt.Sprintf("handle-%d", at-40), metadata)
		})
	}
}

// A transaction that outlived a stop of the broker, and not the kill that followed: the snapshots of the stop know it as
// open, and are not believed.
func TestATransactionOpenOverAStopAndAKill(t *testing.T) {
	dir := t.TempDir()
	b, err := Start(testContext(t), Config{DataDir: dir, Topics: []Topic{{"in", 2}, {"out", 2}}})
	require.NoError(t, err)
	leaveOpen(t, b.Addr())
	require.NoError(t, b.Close())
	_, _, kill := startChild(t, dir)
	kill()
	for range 2 {
		b, err = Start(testContext(t), Config{DataDir: dir})
		require.NoError(t, err)
		commitTxn(t, b.Addr(), 2, kgo.TryCommit)
		values, _, _ := committed(t, b.Addr(), 2)
		require.NotContains(t, values, "never committed")
		require.NoError(t, b.Close())
	}
}

// A client without transaction.version 2 has the same epoch in each of its transactions. The one that is open at a kill is
// aborted also behind one that was committed.
func TestAnOpenTransactionOfAnOldClientIsAborted(t *testing.T) {
	dir, ctx := t.TempDir(), testContext(t)
	addr, _, kill := startChild(t, dir)
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.TransactionalID("old"), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MaxVersions(kversion.V3_3_0()))
	require.NoError(t, err)
	defer cl.Close()
	produce := func(value string) int16 {
		require.NoError(t, cl.BeginTransaction())
		require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: "out", Value: []byte(value)}).FirstErr())
		_, epoch, err := cl.ProducerID(ctx)
		require.NoError(t, err)
		return epoch
	}
	epoch := produce("committed")
	require.NoError(t, cl.EndTransaction(ctx, kgo.TryCommit))
	require.Equal(t, epoch, produce("never committed"), "the epoch of both")
	kill()

	b, err := Start(ctx, Config{DataDir: dir})
	require.NoError(t, err)
	defer b.Close()
	commitTxn(t, b.Addr(), 2, kgo.TryCommit)
	values, _, _ := committed(t, b.Addr(), 3)
	require.ElementsMatch(t, []string{"committed", "0", "1"}, values)
	adm := kadm.NewClient(b.client)
	stable, err := adm.ListCommittedOffsets(ctx, "out")
	require.NoError(t, err)
	ends, err := adm.ListEndOffsets(ctx, "out")
	require.NoError(t, err)
	require.Equal(t, ends.KOffsets(), stable.KOffsets(), "nothing is open")
}
