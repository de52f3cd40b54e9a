package pipeline

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

// net runs all tasks of a plan in one goroutine, parcels in the order in which they are sent.
type net struct {
	plan        *topology.Plan
	parallelism int
	// encoded sends every parcel through its encoded form, as if each were part of a snapshot that is restored.
	encoded bool
	tasks   map[element.TaskID]*netTask
	sent    []func() error
	out     []string
	skipped []string
	offset  int
}

// netTask is the Env of one of them.
type netTask struct {
	*world
	net  *net
	task *topology.Task
}

func newNet(t require.TestingT, plan *topology.Plan, parallelism int, encoded bool) *net {
	n := &net{plan: plan, parallelism: parallelism, encoded: encoded, tasks: map[element.TaskID]*netTask{}}
	for i, s := range plan.Stages {
		subtasks := n.subtasks(i)
		if s.Kind == topology.SourceStage {
			subtasks = 2
		}
		for p := range subtasks {
			nt := &netTask{world: newWorld(plan), net: n}
			task, err := plan.NewTask(s.Name, int32(p), nt)
			require.NoError(t, err)
			nt.task = task
			n.tasks[task.ID()] = nt
		}
	}
	return n
}

func (n *net) subtasks(stage int) int {
	if p := n.plan.Stages[stage].Parallelism; p > 0 {
		return p
	}
	return n.parallelism
}

func (e *netTask) Parallelism(stage int) int { return e.net.subtasks(stage) }

func (e *netTask) Emit(sink int, recs []element.Record) error {
	err := e.world.Emit(sink, recs)
	e.net.out = append(e.net.out, e.world.out...)
	e.world.out = nil
	return err
}

func (e *netTask) Skipped(step string, reason error) {
	e.net.skipped = append(e.net.skipped, step+": "+reason.Error())
}

func (e *netTask) Send(stage, subtask int, p topology.Parcel) error {
	to := e.net.tasks[element.TaskID{Source: e.net.plan.Stages[stage].Name, Partition: int32(subtask)}]
	e.net.sent = append(e.net.sent, func() error {
		if !e.net.encoded {
			return to.task.Receive(p)
		}
		var data [][]byte
		if err := p.Encode(func(_ int, b []byte) error { data = append(data, bytes.Clone(b)); return nil }); err != nil {
			return err
		}
		again, err := to.task.Restore(data)
		if err != nil {
			return err
		}
		return to.task.Receive(again)
	})
	return nil
}

// feed gives key=value texts to a task of a source and runs everything that comes of them.
func (n *net) feed(t require.TestingT, source string, partition int32, records ...string) error {
	nt := n.tasks[element.TaskID{Source: source, Partition: partition}]
	i := slices.IndexFunc(n.plan.Sources, func(s topology.SourcePlan) bool { return s.Name == source })
	var in []element.Record
	for _, text := range records {
		k, v, ok := strings.Cut(text, "=")
		require.True(t, ok)
		r := element.Record{Offset: int64(n.offset), Timestamp: int64(1000 + n.offset), Headers: []element.Header{{Key: "n", Value: []byte(strconv.Itoa(n.offset))}}}
		n.offset++
		if k != "null" {
			r.Key = []byte(k)
		}
		if v != "null" {
			r.Value = []byte(v)
		}
		in = append(in, r)
	}
	if err := nt.task.Process(element.TopicPartition{Topic: n.plan.Sources[i].Topic, Partition: partition}, in); err != nil {
		return err
	}
	for len(n.sent) > 0 {
		next := n.sent[0]
		n.sent = n.sent[1:]
		if err := next(); err != nil {
			return err
		}
	}
	return nil
}

// bothWays runs a test with parcels as they are and with encoded ones.
func bothWays(t *testing.T, text string, test func(t *testing.T, n *net)) {
	for _, encoded := range []bool{false, true} {
		t.Run(fmt.Sprintf("encoded=%t", encoded), func(t *testing.T) { test(t, newNet(t, mustBuild(t, text), 3, encoded)) })
	}
}

// withSinks adds sinks to a file that pipe has made.
func withSinks(text string, sinks ...string) string {
	return strings.Replace(text, "sinks: {", "sinks: {"+strings.Join(sinks, ", ")+", ", 1)
}

func TestAGroupByWithAnAggregateMakesTwoNodes(t *testing.T) {
	text := pipe(`  paid: {from: in, filter: value.status == "paid"}
  totals: {from: paid, group-by: value.customer, exchange: local, parallelism: 2, aggregate: {orders: count(), spent: sum(value.amount)}}`, "totals")
	plan := mustBuild(t, text)
	require.Equal(t, []topology.StepPlan{
		{Name: "paid", Kind: "filter", Source: "in", From: "in"},
		{Name: "totals-by", Kind: "group-by", Source: "totals-by", From: "paid"},
		{Name: "totals", Kind: "aggregate", Source: "totals-by", From: "totals-by"},
	}, plan.Steps)
	require.Equal(t, []topology.StatePlan{{Source: "totals-by", Step: "totals", Name: "aggregate", KeyCodec: "string", Codec: "aggregate1(orders=count,spent=sum)"}}, plan.States)
	require.Equal(t, 2, plan.Stages[1].Parallelism)
	require.Contains(t, plan.Describe(), "group-by totals-by: from in, parallelism 2, key string, value json\n└─ aggregate totals: state totals/aggregate@")
	bothWays(t, text, func(t *testing.T, n *net) {
		require.NoError(t, n.feed(t, "in", 0, `1={"status":"paid","customer":"anna","amount":5}`, `2={"status":"open"}`, `3={"status":"paid","customer":"bob","amount":1}`))
		require.NoError(t, n.feed(t, "in", 1, `4=null`, `5={"status":"paid","customer":"anna","amount":0.5}`))
		require.ElementsMatch(t, []string{`out anna={\"orders\":1,\"spent\":5}`, `out bob={\"orders\":1,\"spent\":1}`, `out anna={\"orders\":2,\"spent\":5.5}`}, n.out)
		require.Equal(t, []string{"totals-by: tombstone"}, n.skipped)
	})
}

func TestAGroupByAloneGivesANewKey(t *testing.T) {
	bothWays(t, withSinks(pipe(`  by-customer: {from: in, group-by: value.customer, exchange: local}
  shown: {from: by-customer, map: {key: key, at: timestamp, n: headers.n}}`, "by-customer"),
		"shown: {from: shown, topic: shown, key: string, value: json}", "json: {from: by-customer, topic: json, key: json, value: json}"), func(t *testing.T, n *net) {
		require.NoError(t, n.feed(t, "in", 0, `1={ "customer":"anna" }`, `null={"customer":""}`))
		require.ElementsMatch(t, []string{
			`out anna={ \"customer\":\"anna\" }`, `json \"anna\"={ \"customer\":\"anna\" }`, `shown anna={\"at\":1000,\"key\":\"anna\",\"n\":\"0\"}`,
			`out ={\"customer\":\"\"}`, `json \"\"={\"customer\":\"\"}`, `shown ={\"at\":1001,\"key\":\"\",\"n\":\"1\"}`,
		}, n.out)
	})
}

func TestANewKeyThatCannotBeMade(t *testing.T) {
	text := pipe("  g: {from: in, group-by: value.customer, exchange: local}", "g")
	for value, want := range map[string]string{
		`{}`:                "topic in partition 0 offset 0: step g: null key",
		`{"customer":null}`: "topic in partition 0 offset 0: step g: null key",
		`{"customer":7}`:    "topic in partition 0 offset 0: step g: value.customer: encode key as string: ",
		`[1]`:               "step g: value.customer: ",
	} {
		require.ErrorContains(t, newNet(t, mustBuild(t, text), 2, false).feed(t, "in", 0, "k="+value), want, value)
	}
	n := newNet(t, mustBuild(t, strings.Replace(text, "value: json}}\nsteps", "value: json, on-error: skip}}\nsteps", 1)), 2, false)
	require.NoError(t, n.feed(t, "in", 0, `k={}`, `k={"customer":7}`, `k={"customer":"anna"}`))
	require.Equal(t, []string{`out anna={\"customer\":\"anna\"}`}, n.out)
	require.Len(t, n.skipped, 2)
}

func TestTombstonesWithANewKey(t *testing.T) {
	for expression, want := range map[string][]string{
		"value":                            {`out x=\"x\"`},
		`headers.n + "-"`:                  {"out 0-=null", `out 1-=\"x\"`},
		`tombstone ? "gone" : "here"`:      {"out gone=null", `out here=\"x\"`},
		`key`:                              {"out a=null", `out b=\"x\"`},
		`tombstone ? key : string(value)`:  {"out a=null", `out x=\"x\"`},
		`tombstone ? nil : string(value)`:  nil,
		`(tombstone ? "gone" : "h") + key`: {"out gonea=null", `out hb=\"x\"`},
	} {
		bothWays(t, pipe(fmt.Sprintf("  g: {from: in, group-by: %q, exchange: local}", expression), "g"), func(t *testing.T, n *net) {
			err := n.feed(t, "in", 0, "a=null", `b="x"`)
			if want == nil {
				require.ErrorContains(t, err, "null key")
				return
			}
			require.NoError(t, err, expression)
			require.ElementsMatch(t, want, n.out, expression)
		})
	}
}

func TestGroupByTheSameKeySpreadsAgain(t *testing.T) {
	bothWays(t, "sources: {a: {topic: a, key: int64, value: string}, b: {topic: b, key: int64, value: bytes}}\n"+
		"steps: {all: {merge: [a, b]}, n: {from: all, group-by: key, exchange: local, aggregate: {n: count(), last: last(value)}}}\n"+
		"sinks: {out: {from: n, topic: out, key: json, value: json}}\n", func(t *testing.T, n *net) {
		seven := "\x00\x00\x00\x00\x00\x00\x00\x07"
		require.NoError(t, n.feed(t, "a", 0, seven+"=x"))
		require.NoError(t, n.feed(t, "b", 1, seven+"=y"))
		require.Equal(t, "int64", n.plan.Stages[2].KeyCodec)
		require.Equal(t, flightCodec, n.plan.Stages[2].ValueCodec)
		require.Equal(t, []string{`out 7={\"last\":\"x\",\"n\":1}`, `out 7={\"last\":\"eQ==\",\"n\":2}`}, n.out)
		require.ErrorContains(t, n.feed(t, "a", 0, "null=x"), "null key")
	})
}

func TestKeysOfOtherFormats(t *testing.T) {
	bothWays(t, withSinks(pipe(`  i: {from: in, group-by: value.n, key: int64, exchange: local}
  j: {from: in, group-by: '[value.n, key]', key: json, exchange: local}
  d: {from: j, group-by: len(key) / 4, key: double, exchange: local}`, "in"),
		"i: {from: i, topic: i, key: int64, value: json}", "j: {from: j, topic: j, key: json, value: json}", "d: {from: d, topic: d, key: json, value: json}"), func(t *testing.T, n *net) {
		require.NoError(t, n.feed(t, "in", 0, `a={"n":7}`))
		require.ElementsMatch(t, []string{
			`out a={\"n\":7}`, `i \x00\x00\x00\x00\x00\x00\x00\a={\"n\":7}`, `j [7,\"a\"]={\"n\":7}`, `d 0.5={\"n\":7}`,
		}, n.out)
	})
}

func TestMergesOfOneFormatKeepTheirBytesAndPickFields(t *testing.T) {
	text := "sources: {a: {topic: a, key: string, value: json}, b: {topic: b, key: string, value: json}}\n" +
		"steps:\n  big: {from: b, filter: value.amount > 10}\n  all: {merge: [a, big]}\n  paid: {from: all, filter: value.status == \"paid\"}\n" +
		"  g: {from: paid, group-by: value.customer, exchange: local, aggregate: {n: count(), spent: sum(value.amount)}}\n" +
		"sinks: {out: {from: g, topic: out, key: string, value: json}, copy: {from: paid, topic: copy, key: string, value: json}}\n"
	plan := mustBuild(t, text)
	require.Equal(t, "json", plan.Stages[2].ValueCodec, "the bytes pass the exchange")
	bothWays(t, text, func(t *testing.T, n *net) {
		require.NoError(t, n.feed(t, "a", 0, `1={ "status":"paid","customer":"anna","amount":5}`))
		require.NoError(t, n.feed(t, "b", 0, `2={"amount":11, "status":"paid","customer":"anna"}`, `3={"amount":5,"status":"paid","customer":"anna"}`))
		require.ElementsMatch(t, []string{
			`copy 1={ \"status\":\"paid\",\"customer\":\"anna\",\"amount\":5}`, `copy 2={\"amount\":11, \"status\":\"paid\",\"customer\":\"anna\"}`,
			`out anna={\"n\":1,\"spent\":5}`, `out anna={\"n\":2,\"spent\":16}`,
		}, n.out)
	})
}

func TestMergesOfDifferentStreams(t *testing.T) {
	text := "sources: {a: {topic: a, key: string, value: json}, b: {topic: b, key: string, value: json}, c: {topic: c, key: string, value: string}}\n" +
		"steps:\n  m: {from: b, map: {x: value.y, z: 1}}\n  all: {merge: [a, m, c]}\n  f: {from: all, filter: 'value != \"no\"'}\n" +
		"  w: {from: f, rebalance: local}\n  x: {from: w, map: 'type(value) == \"map\" ? value.x : value'}\n" +
		"sinks: {whole: {from: f, topic: whole, key: string, value: json}, x: {from: x, topic: x, key: string, value: json}}\n"
	bothWays(t, text, func(t *testing.T, n *net) {
		require.NoError(t, n.feed(t, "a", 0, `1={"x":1,"other":[2]}`))
		require.NoError(t, n.feed(t, "b", 0, `2={"y":9007199254740993}`, `3=null`))
		require.NoError(t, n.feed(t, "c", 0, `4=text`, `5=no`))
		require.ElementsMatch(t, []string{
			`whole 1={\"other\":[2],\"x\":1}`, `whole 2={\"x\":9007199254740993,\"z\":1}`, "whole 3=null", `whole 4=\"text\"`,
			"x 1=1", "x 2=9007199254740993", "x 3=null", `x 4=\"text\"`,
		}, n.out)
	})
}

func TestBroadcastReachesEverySubtask(t *testing.T) {
	bothWays(t, pipe("  b: {from: in, broadcast: local, parallelism: 4}\n  r: {from: in, rebalance: local, parallelism: 2}\n  all: {merge: [b, r]}", "all"), func(t *testing.T, n *net) {
		require.NoError(t, n.feed(t, "in", 0, `k={"a":1}`))
		require.Equal(t, slices.Repeat([]string{`out k={\"a\":1}`}, 5), n.out)
	})
}

func TestALoopThroughATopic(t *testing.T) {
	plan := mustBuild(t, "sources: {jobs: {topic: jobs, key: string, value: json}}\n"+
		"steps: {again: {from: jobs, filter: value.left > 0}, less: {from: again, map: {left: value.left - 1}}}\n"+
		"sinks: {again: {from: less, topic: jobs, key: string, value: json, loop: true}}\n")
	require.Contains(t, plan.Describe(), "sink again: topic jobs, key string (as read), value json, loop")
}

// TestGroupedTotalsMatchTheModel runs random documents through group-by and aggregate, over parcels that are encoded or
// not, at random parallelism: per new key the totals of all its records, in the end.
func TestGroupedTotalsMatchTheModel(t *testing.T) {
	keys := []string{"value.b", "value.a", `value.b ?? "none"`, "string(value.a ?? 0)", "value.deep", "value", "key + headers.n", "[value.a, value.b]", "value.list", "value[key]"}
	rapid.Check(t, func(t *rapid.T) {
		tame := rapid.Bool().Draw(t, "tame")
		source, format := rapid.SampledFrom(keys).Draw(t, "key"), rapid.SampledFrom([]string{"string", "json", "int64", "bytes"}).Draw(t, "format")
		merged := rapid.Bool().Draw(t, "merged")
		first := rapid.SampledFrom([]string{"", "  f: {from: in, filter: 'value.a != 7'}\n", "  f: {from: in, map: {a: value.a, b: value.b, deep: value.deep}}\n"}).Draw(t, "first")
		from := "in"
		if first != "" {
			from = "f"
		}
		steps := first
		if merged {
			steps += "  all: {merge: [" + from + ", other]}\n"
			from = "all"
		}
		steps += fmt.Sprintf("  g: {from: %s, group-by: %q, key: %s, exchange: local, aggregate: {n: count(), last: last(value.b)}}\n", from, source, format)
		text := "sources:\n  in: {topic: in, key: string, value: json, on-error: skip}\n"
		if merged {
			text += "  other: {topic: other, key: string, value: json, on-error: skip}\n"
		}
		plan, ps := buildText(text + "steps:\n" + steps + "sinks: {out: {from: g, topic: out, key: " + format + ", value: json}}\n")
		if ps.Len() > 0 {
			require.ErrorContains(t, ps.Err(), "cannot hold")
			t.Skip("types refuse it")
		}
		n := newNet(t, plan, rapid.IntRange(1, 5).Draw(t, "parallelism"), rapid.Bool().Draw(t, "encoded"))
		e, err := compile(source, environment{key: stringKey(t)})
		require.NoError(t, err)
		codec, _ := plainFormat(format)
		want := map[string]modelTotal{}
		for range rapid.IntRange(0, 30).Draw(t, "records") {
			src, key, doc := "in", rapid.SampledFrom([]string{"a", "k1"}).Draw(t, "record key"), genDocument(t, tame)
			if merged {
				src = rapid.SampledFrom([]string{"in", "other"}).Draw(t, "source")
			}
			offset := n.offset
			require.NoError(t, n.feed(t, src, rapid.Int32Range(0, 1).Draw(t, "partition"), key+"="+doc))
			modelGroup(want, e, codec, src == "in", first, offset, key, doc)
		}
		got := map[string]modelTotal{}
		for _, line := range n.out {
			k, v, _ := strings.Cut(strings.TrimPrefix(line, "out "), "=")
			got[k] = modelTotal{got[k].n + 1, v}
		}
		require.Equal(t, want, got)
	})
}

// modelTotal is how many records a key has, and its last output.
type modelTotal struct {
	n    int
	last string
}

// modelGroup takes one record without any short cut.
func modelGroup(want map[string]modelTotal, e *expression, f format, filtered bool, first string, offset int, key, doc string) {
	r := &record{RawKey: []byte(key), Timestamp: int64(1000 + offset), Headers: []element.Header{{Key: "n", Value: []byte(strconv.Itoa(offset))}}}
	v, err := json.Any().Decode([]byte(doc))
	if err != nil || doc == "null" {
		return
	}
	r.Value = v
	failed := false
	eval := func(source string) any {
		e, err := compile(source, environment{})
		if err != nil {
			panic(err)
		}
		got, err := modelEval(e, r)
		failed = failed || err != nil
		return got
	}
	switch {
	case !filtered || first == "":
	case strings.Contains(first, "filter"):
		if eval("value.a != 7") != true {
			return
		}
	default:
		v = map[string]any{"a": eval("value.a"), "b": eval("value.b"), "deep": eval("value.deep")}
	}
	if failed {
		return
	}
	r.Value = v
	k, err := modelEval(e, r)
	if err != nil || k == nil {
		return
	}
	raw, err := f.codec.Append([]byte{}, k)
	if err != nil {
		return
	}
	b := eval("value.b")
	if failed {
		return
	}
	t := want[show(raw)]
	t.n++
	out, err := json.Any().Append(nil, map[string]any{"n": int64(t.n), "last": b})
	if err != nil {
		panic(err)
	}
	want[show(raw)] = modelTotal{t.n, show(out)}
}

func TestKeysHaveMemoryOfTheirOwn(t *testing.T) {
	e := mustCompile(t, "value")
	f, ok := plainFormat("string")
	require.True(t, ok)
	k := newKeyer(e, f)
	var keys []wireKey
	var want []string
	for i := range 3000 {
		text := strings.Repeat(strconv.Itoa(i%10), []int{0, 1, 30, 63, 64, 65, 500, keyPiece, keyPiece + 1}[i%9])
		got, null, err := k.key(&record{Value: text})
		require.NoError(t, err)
		require.False(t, null)
		require.Equal(t, len(got), cap(got), "appending to a key must not reach the next one")
		keys, want = append(keys, got), append(want, text)
	}
	for i := range keys {
		require.Equal(t, want[i], string(keys[i]))
	}
	short := &record{Value: any("customer-17")}
	require.Zero(t, int(testing.AllocsPerRun(1000, func() { _, _, _ = k.key(short) })), "keys are cut from pieces")
}

func TestDamagedValuesInFlight(t *testing.T) {
	for _, b := range [][]byte{nil, {99}, {tagInt, 1}, {tagNull, tagNull}, {tagObject, 200}} {
		_, err := flightValue{}.Decode(b)
		require.ErrorIs(t, err, errFlightDamaged, b)
	}
}

// BenchmarkGroupBy is both sides of an exchange, one after the other.
func BenchmarkGroupBy(b *testing.B) {
	plan := mustBuild(b, pipe("  totals: {from: in, group-by: value.customer, exchange: local, parallelism: 1, aggregate: {orders: count(), spent: sum(value.amount)}}", "totals"))
	to, err := plan.NewTask("totals-by", 0, discard{newWorld(plan)})
	require.NoError(b, err)
	from, err := plan.NewTask("in", 0, handOver{newWorld(plan), to})
	require.NoError(b, err)
	recs := make([]element.Record, 256)
	for i := range recs {
		recs[i] = element.Record{Key: []byte("k"), Value: fmt.Appendf(nil, `{"order_id":"o-17","customer":"customer-%d","amount":1250,"status":"paid"}`, i%64)}
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := from.Process(element.TopicPartition{Topic: "in"}, recs); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(recs)), "ns/record")
}

type handOver struct {
	*world
	to *topology.Task
}

func (h handOver) Send(_, _ int, p topology.Parcel) error { return h.to.Receive(p) }
