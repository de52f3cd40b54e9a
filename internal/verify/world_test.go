package verify

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/embedded"
	"github.com/millweir/millweir/internal/kafka"
)

var (
	broker *embedded.Broker
	topics atomic.Int64
)

func TestMain(m *testing.M) {
	var err error
	if broker, err = embedded.Start(context.Background(), embedded.Config{}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	code := m.Run()
	_ = broker.Close()
	os.Exit(code)
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// rec is one record of a world, input (a = amount) or output (a = count, b = sum).
type rec struct {
	part int32
	key  string
	a, b int64
	raw  []byte // replaces the value; an empty one is null
}

// world is a pair of topics and what goes in.
type world struct {
	in, out         []rec
	inName, outName string
	cfg             Config
}

const partitions = 3

// rightWorld has n inputs over so many keys and the outputs that they must give.
func rightWorld(n, keys int) *world {
	w := &world{}
	count, sum := map[string]int64{}, map[string]int64{}
	for i := range n {
		id := i * i % keys
		r := rec{part: int32(id % partitions), key: fmt.Sprintf("k%d", id), a: int64(i%97 - 20)}
		w.in = append(w.in, r)
		count[r.key]++
		sum[r.key] += r.a
		w.out = append(w.out, rec{part: r.part, key: r.key, a: count[r.key], b: sum[r.key]})
	}
	return w
}

func (w *world) create(t testing.TB) {
	t.Helper()
	id := topics.Add(1)
	w.inName, w.outName = fmt.Sprintf("in%d", id), fmt.Sprintf("out%d", id)
	for _, name := range []string{w.inName, w.outName} {
		require.NoError(t, broker.EnsureTopic(within(t), embedded.Topic{Name: name, Partitions: partitions}))
	}
	w.cfg.Kafka = kafka.Config{Brokers: []string{broker.Addr()}}
	w.cfg.Input, w.cfg.Output = w.inName, w.outName
}

func producer(t testing.TB, txn string) *kgo.Client {
	t.Helper()
	opts := []kgo.Opt{kgo.SeedBrokers(broker.Addr()), kgo.RecordPartitioner(kgo.ManualPartitioner())}
	if txn != "" {
		opts = append(opts, kgo.TransactionalID(txn))
	}
	cl, err := kgo.NewClient(opts...)
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

func (w *world) value(r rec, output bool) []byte {
	switch {
	case r.raw != nil && len(r.raw) == 0:
		return nil
	case r.raw != nil:
		return r.raw
	case w.cfg.Format == Binary && output:
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(r.a)), uint64(r.b))
	case w.cfg.Format == Binary:
		return append(binary.BigEndian.AppendUint64(nil, uint64(r.a)), "rest of the value"...)
	case output:
		return fmt.Appendf(nil, `{"orders":%d,"spent":%d}`, r.a, r.b)
	}
	return fmt.Appendf(nil, `{"order_id":"x","customer":%q,"amount":%d,"nested":{"amount":"no"},"status":"paid"}`, r.key, r.a)
}

func (w *world) records(topic string, recs []rec, output bool) []*kgo.Record {
	var out []*kgo.Record
	for _, r := range recs {
		k := &kgo.Record{Topic: topic, Partition: r.part, Key: []byte(r.key), Value: w.value(r, output)}
		if r.key == "" {
			k.Key = nil
		}
		out = append(out, k)
	}
	return out
}

// txn writes records in one transaction.
func txn(t testing.TB, cl *kgo.Client, end kgo.TransactionEndTry, recs ...*kgo.Record) {
	t.Helper()
	require.NoError(t, cl.BeginTransaction())
	require.NoError(t, cl.ProduceSync(within(t), recs...).FirstErr())
	require.NoError(t, cl.EndTransaction(within(t), end))
}

// write puts both topics in place: the outputs in transactions of 50 records, so markers are everywhere.
func (w *world) write(t testing.TB) {
	t.Helper()
	w.create(t)
	require.NoError(t, producer(t, "").ProduceSync(within(t), w.records(w.inName, w.in, false)...).FirstErr())
	cl := producer(t, w.outName)
	recs := w.records(w.outName, w.out, true)
	for len(recs) > 0 {
		n := min(50, len(recs))
		txn(t, cl, kgo.TryCommit, recs[:n]...)
		recs = recs[n:]
	}
}

func (w *world) verify(t testing.TB) Report {
	t.Helper()
	r, err := Verify(within(t), w.cfg)
	require.NoError(t, err)
	require.Equal(t, r.Exact(), r.Verdict == Verified)
	require.True(t, strings.HasSuffix(r.String(), r.Verdict+"\n"))
	return r
}

// output gives the index of a key's output number count.
func (w *world) output(key string, count int64) int {
	for i, r := range w.out {
		if r.key == key && r.a == count {
			return i
		}
	}
	panic("no such output")
}
