package topology_test

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

// Order is what comes in.
type Order struct {
	Status string `json:"status"`
	Cents  int64  `json:"cents"`
}

// Total is what is kept per customer: several aggregates in one state.
type Total struct {
	Orders int64 `json:"orders"`
	Cents  int64 `json:"cents"`
	Most   int64 `json:"most"`
}

// feed runs records through the first source of a plan and prints what its sinks get.
func feed(b *topology.Builder, recs ...element.Record) {
	plan, err := b.Plan()
	if err != nil {
		fmt.Println(err)
		return
	}
	env := newMemEnv()
	task, err := plan.NewTask(plan.Sources[0].Name, 0, env)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer task.Close()
	if err := task.Process(element.TopicPartition{Topic: plan.Sources[0].Topic}, recs); err != nil {
		fmt.Println(err)
	}
	for _, sink := range plan.Sinks {
		for _, r := range env.Out[sink.Index] {
			fmt.Printf("%s: %s %s\n", sink.Topic, r.Key, r.Value)
		}
	}
	for _, s := range env.Skips {
		fmt.Println("skipped:", s.Reason)
	}
}

func record(offset int64, key, value string) element.Record {
	return element.Record{Key: []byte(key), Value: []byte(value), Offset: offset}
}

func Example() {
	b := topology.New("order-totals")
	orders := topology.FromTopic(b, "orders", "orders", serde.String(), json.Of[Order]())
	paid := topology.Filter(orders, "paid", func(_ string, o Order) bool { return o.Status == "paid" })
	totals := topology.Aggregate(paid, "totals", json.Of[Total](), func(t Total, o Order) Total {
		return Total{Orders: t.Orders + 1, Cents: t.Cents + o.Cents, Most: max(t.Most, o.Cents)}
	})
	topology.ToTopic(totals, "totals", "order-totals", serde.String(), json.Of[Total]())

	feed(b,
		record(0, "ann", `{"status":"paid","cents":500}`),
		record(1, "bob", `{"status":"open","cents":100}`),
		record(2, "ann", `{"status":"paid","cents":250}`),
	)
	// Output:
	// order-totals: ann {"orders":1,"cents":500,"most":500}
	// order-totals: ann {"orders":2,"cents":750,"most":500}
}

func ExamplePlan_Describe() {
	b := topology.New("order-totals")
	orders := topology.FromTopic(b, "orders", "orders", serde.String(), json.Of[Order](), topology.StartAt(topology.Earliest()))
	topology.ToTopic(orders, "archive", "order-archive", serde.String(), json.Of[Order]())
	sums := topology.Sum(orders, "revenue", func(_ string, o Order) int64 { return o.Cents })
	topology.ToTopic(sums, "revenue", "revenue", serde.String(), serde.Int64())

	plan, err := b.Plan()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(plan.Describe())
	// Output:
	// application order-totals
	// source orders: topic orders, key string, value json, start earliest
	// ├─ sink archive: topic order-archive, key string (as read), value json (as read)
	// └─ sum revenue: state revenue/aggregate@int64
	//    └─ sink revenue: topic revenue, key string (as read), value int64
}

func ExampleBuilder_Plan_problems() {
	b := topology.New("my app")
	in := topology.FromTopic(b, "in", "events", serde.String(), serde.String())
	topology.ToTopic(topology.Count(in, "in"), "out", "events", serde.String(), serde.Int64())
	_, err := b.Plan()
	fmt.Println(err)
	// Output:
	// topology "my app" has 3 problems: application "my app": a name matches ^[A-Za-z0-9._-]{1,128}$; step "in": the name is taken by another source; sink "out": topic "events" is read by source "in": a loop; where that is meant, say so with Loop()
}

func ExampleOnError() {
	b := topology.New("counts")
	in := topology.FromTopic(b, "in", "events", serde.String(), json.Any(),
		topology.OnDecodeError(topology.Skip), topology.OnError(topology.Skip))
	topology.ToTopic(topology.Count(in, "counts"), "out", "counts", serde.String(), json.Of[int64]())
	feed(b,
		record(0, "a", `1`),
		record(1, "a", `{`),
		element.Record{Value: []byte(`2`), Offset: 2},
		record(3, "a", `3`),
	)
	// Output:
	// counts: a 1
	// counts: a 2
	// skipped: topic events partition 0 offset 1: step in: decode value as json: unexpected end, want a key in quotes at byte 1
	// skipped: topic events partition 0 offset 2: step counts: null key
}

func ExampleMapRec() {
	b := topology.New("tagged")
	in := topology.FromTopic(b, "in", "events", serde.String(), serde.String())
	tagged := topology.MapRec(in, "tag", func(in, out *topology.Rec[string, string]) error {
		out.Value, out.Tombstone = in.Value, in.Tombstone
		out.SetHeader("seen-at", time.UnixMilli(in.Timestamp).UTC().AppendFormat(nil, time.RFC3339))
		return nil
	})
	topology.ToTopic(tagged, "out", "tagged", serde.String(), serde.String())
	feed(b, record(0, "k", "v"))
	// Output:
	// tagged: k v
}

// changes passes on a value only when it differs from the last one of its key.
type changes struct{ last *topology.Value[string] }

func (c *changes) Open(ctx *topology.ProcessContext) error {
	c.last = topology.ValueState(ctx, "last", serde.String())
	return nil
}

func (c *changes) Process(_ *topology.ProcessContext, in *topology.Rec[string, string], out *topology.Collector[string, string]) error {
	if in.Tombstone {
		c.last.Clear()
		out.EmitTombstone()
		return nil
	}
	if last, ok := c.last.Get(); ok && last == in.Value {
		return nil
	}
	c.last.Set(in.Value)
	out.Emit(in.Value)
	return nil
}

func ExampleProcess() {
	b := topology.New("changes")
	in := topology.FromTopic(b, "in", "readings", serde.String(), serde.String())
	changed := topology.Process(in, "changes", func() topology.Processor[string, string, string] { return &changes{} })
	topology.ToTopic(changed, "out", "changes", serde.String(), serde.String())
	feed(b, record(0, "k", "1"), record(1, "k", "1"), record(2, "j", "1"), record(3, "k", "2"))
	// Output:
	// changes: k 1
	// changes: j 1
	// changes: k 2
}

// mean is an accumulator of 16 bytes.
type mean struct{ n, sum int64 }

// meanSerde says its size, so the state of a key is updated where it is.
type meanSerde struct{}

func (meanSerde) Name() string   { return "mean" }
func (meanSerde) FixedSize() int { return 16 }
func (meanSerde) Append(dst []byte, m mean) ([]byte, error) {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(dst, uint64(m.n)), uint64(m.sum)), nil
}
func (meanSerde) Decode(b []byte) (mean, error) {
	if len(b) != 16 {
		return mean{}, &serde.LengthError{Codec: "mean", Want: 16, Got: len(b)}
	}
	return mean{int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))}, nil
}

func ExampleAggregate_fixedSize() {
	b := topology.New("means")
	in := topology.FromTopic(b, "in", "readings", serde.String(), json.Of[int64]())
	means := topology.Aggregate(in, "means", meanSerde{}, func(m mean, v int64) mean { return mean{m.n + 1, m.sum + v} })
	out := topology.Map(means, "value", func(_ string, m mean) float64 { return float64(m.sum) / float64(m.n) })
	topology.ToTopic(out, "out", "means", serde.String(), json.Of[float64]())
	feed(b, record(0, "k", "1"), record(1, "k", "2"))
	// Output:
	// means: k 1
	// means: k 1.5
}
