package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/embedded"
)

// balance is an output of examples/merge.yaml.
type balance struct{ Bookings, Cents int64 }

// TestAMergedAndGroupedFileIsExactOverKills runs examples/merge.yaml, a merge of merges with a local exchange behind it, as
// a process that gets kill -9 while records flow, with barriers that wait and with barriers that overtake.
func TestAMergedAndGroupedFileIsExactOverKills(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("PARALLEL_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("replay: PARALLEL_SEED=%d go test -count=1 -run %s ./cmd/processor", seed, t.Name())
	for i, unaligned := range []string{"false", "true"} {
		t.Run("unaligned="+unaligned, func(t *testing.T) {
			t.Parallel()
			mergedOverKills(t, rand.New(rand.NewPCG(seed, uint64(i))), unaligned)
		})
	}
}

func mergedOverKills(t *testing.T, rnd *rand.Rand, unaligned string) {
	var topics []embedded.Topic
	for _, name := range []string{"web-orders", "shop-orders", "returns", "bookings", "balances"} {
		topics = append(topics, embedded.Topic{Name: name, Partitions: 3})
	}
	b, err := embedded.Start(t.Context(), embedded.Config{Topics: topics})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	dir := t.TempDir()
	start := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], "run", "../../examples/merge.yaml", "--set", "data-dir="+filepath.Join(dir, "data"),
			"--set", "checkpointing.interval=100ms", "--set", "checkpointing.unaligned="+unaligned)
		cmd.Env = append(os.Environ(), asProcessor+"=1", "KAFKA_BROKERS="+b.Addr())
		log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		defer log.Close()
		cmd.Stderr = log
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			if t.Failed() {
				text, _ := os.ReadFile(filepath.Join(dir, "log"))
				t.Logf("log of the service:\n%s", text[max(0, len(text)-8000):])
			}
		})
		return cmd
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.ProducerLinger(2*time.Millisecond))
	require.NoError(t, err)
	defer cl.Close()
	want := map[string]balance{}
	write := func(n int) {
		var recs []*kgo.Record
		for range n {
			customer, amount := fmt.Sprintf("customer-%d", rnd.IntN(50)), 1+rnd.Int64N(1000)
			topic := []string{"web-orders", "shop-orders", "returns"}[rnd.IntN(3)]
			field, sum := "amount", want[customer]
			sum.Bookings, sum.Cents = sum.Bookings+1, sum.Cents+amount
			if topic == "returns" {
				field, sum.Cents = "refund", sum.Cents-2*amount
			}
			want[customer] = sum
			recs = append(recs, &kgo.Record{Topic: topic, Key: []byte(customer), Value: fmt.Appendf(nil, `{"%s":%d,"at":1}`, field, amount)})
		}
		require.NoError(t, cl.ProduceSync(t.Context(), recs...).FirstErr())
	}
	for range 3 {
		cmd := start()
		for end := time.Now().Add(time.Duration(700+rnd.IntN(900)) * time.Millisecond); time.Now().Before(end); {
			write(40)
		}
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
	cmd := start()
	write(100)
	require.Eventually(t, func() bool { return sameBalances(want, readBalances(t, b.Addr())) }, 30*time.Second, 200*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait(), "the service ends in order")
	got := readBalances(t, b.Addr())
	for customer, w := range want {
		outputs := got[customer]
		require.Len(t, outputs, int(w.Bookings), "%s: one output for every booking", customer)
		for i, o := range outputs {
			require.EqualValues(t, i+1, o.Bookings, "%s: output %d", customer, i)
		}
		require.Equal(t, w, outputs[len(outputs)-1], customer)
	}
}

func sameBalances(want map[string]balance, got map[string][]balance) bool {
	for customer, w := range want {
		if n := len(got[customer]); n == 0 || got[customer][n-1].Bookings < w.Bookings {
			return false
		}
	}
	return true
}

// readBalances gives the committed outputs by customer, in order: all below the last stable offsets at the time of the call.
func readBalances(t *testing.T, broker string) map[string][]balance {
	cl, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumeTopics("balances"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond), kgo.KeepControlRecords())
	require.NoError(t, err)
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListCommittedOffsets(t.Context(), "balances")
	require.NoError(t, err)
	require.NoError(t, ends.Error())
	left := map[int32]int64{} // the marker of a transaction is the last record below the end
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	out := map[string][]balance{}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
			if r.Attrs.IsControl() {
				return
			}
			var v balance
			require.NoError(t, json.Unmarshal(r.Value, &v))
			out[string(r.Key)] = append(out[string(r.Key)], v)
		})
	}
	return out
}
