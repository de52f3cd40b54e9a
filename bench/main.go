package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/integration/kafkatest"
)

// options are the flags; the lower ones are for contenders' processes only.
type options struct {
	records, keys, valueSize, partitions, rounds int
	interval                                     time.Duration
	floor, exchangeFloor                         float64
	syncOnly                                     bool
	names                                        string

	role, brokerList, in, out, group, dir string
	profile, profiled                     string
}

func (o options) brokers() []string   { return strings.Split(o.brokerList, ",") }
func (o options) partitions32() int32 { return int32(o.partitions) }
func (o options) workload() workload {
	return workload{records: o.records, keys: o.keys, valueSize: o.valueSize, partitions: o.partitions32(), seed: 1}
}

func main() {
	var o options
	flag.IntVar(&o.records, "n", 10_000_000, "records")
	flag.IntVar(&o.keys, "keys", 100_000, "distinct keys")
	flag.IntVar(&o.valueSize, "value", 100, "bytes of a value")
	flag.IntVar(&o.partitions, "partitions", 4, "partitions of both topics")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds of both contenders")
	flag.DurationVar(&o.interval, "interval", time.Second, "checkpoint and commit interval")
	flag.Float64Var(&o.floor, "floor", 0.40, "fail when the ratio of millweir to raw is below")
	flag.Float64Var(&o.exchangeFloor, "exchange-floor", 0.60, "fail when the ratio of exchange to millweir is below")
	flag.StringVar(&o.names, "contenders", "raw,millweir,exchange", "who takes part")
	flag.BoolVar(&o.syncOnly, "sync", false, "only the synchronous phase against the number of keys; needs no broker")
	flag.StringVar(&o.role, "role", "", "internal: the contender that this process is")
	flag.StringVar(&o.brokerList, "brokers", os.Getenv("KAFKA_BROKERS"), "a running Kafka; otherwise one is started from Maven artefacts")
	flag.StringVar(&o.in, "in", "", "internal")
	flag.StringVar(&o.out, "out", "", "internal")
	flag.StringVar(&o.group, "group", "", "internal")
	flag.StringVar(&o.dir, "dir", "", "internal")
	flag.StringVar(&o.profile, "cpuprofile", os.Getenv("BENCH_CPUPROFILE"), "write a CPU profile of a contender")
	flag.StringVar(&o.profiled, "profiled", cmp.Or(os.Getenv("BENCH_PROFILED"), "millweir"), "the contender that is profiled")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.role != "" {
		if o.profile != "" && o.role == o.profiled {
			f, err := os.Create(o.profile)
			if err != nil {
				return err
			}
			if err := pprof.StartCPUProfile(f); err != nil {
				return err
			}
			defer pprof.StopCPUProfile()
		}
		return runChild(ctx, o)
	}
	if err := syncPhase(); err != nil || o.syncOnly {
		return err
	}
	if o.brokerList == "" {
		b, err := kafkatest.Run(ctx, kafkatest.Options{Log: func(f string, a ...any) { fmt.Printf(f+"\n", a...) }, Heap: "1g"})
		if err != nil {
			return err
		}
		defer b.Close()
		o.brokerList = b.Addr
	}
	return compare(ctx, o)
}

// compare runs the rounds and prints the table.
func compare(ctx context.Context, o options) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(o.brokers()...))
	if err != nil {
		return err
	}
	defer cl.Close()
	id := time.Now().Unix()
	o.in = fmt.Sprintf("bench-%d-in", id)
	fmt.Printf("%s %s, %d cores; COUNT of %d records, %d keys, %d-byte values, %d partitions, interval %s\n",
		runtime.Version(), runtime.GOARCH, runtime.NumCPU(), o.records, o.keys, o.valueSize, o.partitions, o.interval)
	if err := load(ctx, o.brokers(), o.in, o.workload()); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	names := strings.Split(o.names, ",")
	// One unrecorded run warms the broker's JVM.
	if _, err := measure(ctx, cl, o, names[0], fmt.Sprintf("bench-%d-warm", id)); err != nil {
		return err
	}
	all := map[string][]result{}
	for round := range o.rounds {
		for _, name := range names {
			r, err := measure(ctx, cl, o, name, fmt.Sprintf("bench-%d-%s-%d", id, name, round))
			if err != nil {
				return err
			}
			all[name] = append(all[name], r)
			fmt.Printf("  round %d %-9s %9.0f records/s, first output after %s, %.2f µs CPU, %.2f allocations and %.0f bytes per record, %d MiB at most; output verified\n",
				round+1, name, r.rate, r.first.Round(10*time.Millisecond), r.cpu, r.allocs, r.allocBytes, r.rss>>10)
		}
		slices.Reverse(names)
	}
	return judge(o, all)
}

func judge(o options, all map[string][]result) error {
	rate := func(r result) float64 { return r.rate }
	cpu := func(r result) float64 { return r.cpu }
	allocs := func(r result) float64 { return r.allocs }
	for _, name := range strings.Split(o.names, ",") {
		rs := all[name]
		fmt.Printf("median %9s %.0f records/s, %.2f µs CPU, %.2f allocations per record\n", name, median(rs, rate), median(rs, cpu), median(rs, allocs))
		if !(median(rs, rate) > 0) {
			return fmt.Errorf("%d records are too few for a rate: they became visible in one or two commits; use a larger -n", o.records)
		}
	}
	var errs []error
	for _, pair := range []struct {
		of, to string
		floor  float64
	}{{"millweir", "raw", o.floor}, {"exchange", "millweir", o.exchangeFloor}} {
		of, to := all[pair.of], all[pair.to]
		if of == nil || to == nil {
			continue
		}
		ratio := median(of, rate) / median(to, rate)
		fmt.Printf("%s: ratio %.2f of the rate of %s, %.2f of its CPU per record\n", pair.of, ratio, pair.to, median(of, cpu)/median(to, cpu))
		if ratio < pair.floor {
			errs = append(errs, fmt.Errorf("%s: ratio %.2f is below the floor %.2f", pair.of, ratio, pair.floor))
		}
	}
	return errors.Join(errs...)
}

func median(rs []result, f func(result) float64) float64 {
	vs := make([]float64, 0, len(rs))
	for _, r := range rs {
		vs = append(vs, f(r))
	}
	slices.Sort(vs)
	return vs[len(vs)/2]
}
