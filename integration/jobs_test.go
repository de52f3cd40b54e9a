//go:build unix

package integration

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millweir/millweir/processor"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// recordsRead counts the records that the topology of this process was handed.
var recordsRead atomic.Int64

// jobs are topologies of the Go DSL that tests start as processes.
var jobs = map[string]func(b *topology.Builder, in, out string){
	"totals": processTotals, "drop-all": dropAll, "set-header": setHeader, "expand": expand,
	"by-group": countByGroup, "of-two": countOfTwo, "over-hops": countOverHops,
}

// runJob is the whole life of such a process. At a graceful end it tells how many records it read.
func runJob(name string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	env := func(key string) string { return os.Getenv("JOB_" + key) }
	fail := func(err error) int {
		fmt.Fprintf(os.Stderr, "job: %v\n", err)
		return processor.ExitCode(err)
	}
	b := topology.New(env("APPLICATION"))
	jobs[name](b, env("IN"), env("OUT"))
	plan, err := b.Plan()
	if err != nil {
		return fail(err)
	}
	interval, err := time.ParseDuration(env("INTERVAL"))
	if err != nil {
		return fail(err)
	}
	cfg := processor.Config{
		Brokers: strings.Split(env("BROKERS"), ","), DataDir: env("DIR"), Interval: interval,
		CheckpointTimeout: 5 * time.Second, TransactionTimeout: transactionTimeout,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if env("FILES") != "" {
		cfg.MemoryThreshold = -1
	}
	if env("EXCHANGE") != "" {
		exchangeJob().apply(&cfg)
	}
	if err := processor.Run(ctx, plan, cfg); err != nil {
		return fail(err)
	}
	fmt.Printf("read %d\n", recordsRead.Load())
	return 0
}

// total is a count and a sum, in the binary form that the checker reads.
type total struct{ n, sum int64 }

type totalSerde struct{}

func (totalSerde) Name() string { return "test-total" }
func (totalSerde) Append(dst []byte, t total) ([]byte, error) {
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.n))
	return binary.BigEndian.AppendUint64(dst, uint64(t.sum)), nil
}
func (totalSerde) Decode(b []byte) (total, error) {
	if len(b) != 16 {
		return total{}, fmt.Errorf("%d bytes, want 16", len(b))
	}
	return total{int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))}, nil
}

// totalsProcessor keeps count and sum in two states that must move together.
type totalsProcessor struct {
	count *topology.Value[int64]
	sum   *topology.Value[total]
}

func (p *totalsProcessor) Open(ctx *topology.ProcessContext) error {
	p.count = topology.ValueState(ctx, "count", serde.Int64())
	p.sum = topology.ValueState(ctx, "sum", totalSerde{})
	return nil
}

func (p *totalsProcessor) Process(_ *topology.ProcessContext, in *topology.Rec[[]byte, int64], out *topology.Collector[[]byte, total]) error {
	n, _ := p.count.Get()
	t, _ := p.sum.Get()
	if n != t.n {
		return fmt.Errorf("the states have parted: %d and %d", n, t.n)
	}
	t.n, t.sum = t.n+1, t.sum+in.Value
	p.count.Set(t.n)
	p.sum.Set(t)
	out.Emit(t)
	return nil
}

func processTotals(b *topology.Builder, in, out string) {
	s := topology.FromTopic(b, "in", in, serde.Bytes(), serde.Int64())
	t := topology.Process(s, "totals", func() topology.Processor[[]byte, int64, total] { return &totalsProcessor{} })
	topology.ToTopic(t, "out", out, serde.Bytes(), totalSerde{})
}

// dropAll has one branch that lets nothing through to its sink and one that ends without a sink.
func dropAll(b *topology.Builder, in, out string) {
	s := topology.FromTopic(b, "in", in, serde.Bytes(), serde.Bytes())
	none := topology.Filter(s, "none", func([]byte, []byte) bool { recordsRead.Add(1); return false })
	topology.ToTopic(none, "out", out, serde.Bytes(), serde.Bytes())
	topology.Count(s, "counted")
}

func setHeader(b *topology.Builder, in, out string) {
	s := topology.FromTopic(b, "in", in, serde.Bytes(), serde.Bytes())
	set := topology.MapRec(s, "set", func(in *topology.Rec[[]byte, []byte], out *topology.Rec[[]byte, []byte]) error {
		out.Value, out.Tombstone = in.Value, in.Tombstone
		out.SetHeader("c", []byte("3"))
		if _, ok := in.Header("replace"); ok {
			out.SetHeader("a", []byte("new"))
		}
		return nil
	})
	topology.ToTopic(set, "out", out, serde.Bytes(), serde.Bytes())
}

// expand passes all records on, but one that says so grows to 5,000 bytes that cannot be compressed.
func expand(b *topology.Builder, in, out string) {
	s := topology.FromTopic(b, "in", in, serde.Bytes(), serde.Bytes())
	grown := topology.Map(s, "grown", func(_, v []byte) []byte {
		if string(v) != "grow" {
			return v
		}
		big := make([]byte, 5000)
		_, _ = rand.NewChaCha8([32]byte{7}).Read(big) // never fails
		return big
	})
	topology.ToTopic(grown, "out", out, serde.Bytes(), serde.Bytes())
}
