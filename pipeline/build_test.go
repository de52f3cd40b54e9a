package pipeline

import (
	"flag"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

var update = flag.Bool("update", false, "write the golden files anew")

// buildText makes the plan of a file's text; schema files are looked for in testdata.
func buildText(text string) (*topology.Plan, *yamlx.Problems) {
	ps := &yamlx.Problems{}
	root := yamlx.Parse("f.yaml", []byte(text), os.LookupEnv, ps)
	if root == nil {
		return nil, ps
	}
	return Build("app", root, "testdata", ps), ps
}

func mustBuild(t testing.TB, text string) *topology.Plan {
	t.Helper()
	plan, ps := buildText(text)
	require.NoError(t, ps.Err())
	return plan
}

// TestC43_MistakesInTopologies compares what is said about whole files: testdata/NAME.yaml with testdata/NAME.errors.
func TestC43_MistakesInTopologies(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			plan, ps := buildText(string(text))
			require.Nil(t, plan)
			require.Equal(t, fault.BadFile, fault.CodeOf(ps.Err()))
			golden := strings.TrimSuffix(file, ".yaml") + ".errors"
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(ps.Error()+"\n"), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), ps.Error()+"\n")
		})
	}
}

// table is a StateTable in memory.
type table map[string][]byte

func (m table) Get(key []byte) ([]byte, bool) { v, ok := m[string(key)]; return v, ok }
func (m table) Delete(key []byte)             { delete(m, string(key)) }

func (m table) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		for k, v := range m {
			if !yield([]byte(k), v) {
				return
			}
		}
	}
}

// Put spoils the bytes that Get has given before: they are valid until the next write only.
func (m table) Put(key, value []byte) {
	old := m[string(key)]
	m[string(key)] = append([]byte{}, value...)
	for i := range old {
		old[i] = 0xff
	}
}

func (m table) Upsert(key []byte, size int) ([]byte, bool) {
	if v, ok := m[string(key)]; ok && len(v) == size {
		return v, true
	}
	m[string(key)] = make([]byte, size)
	return m[string(key)], false
}

// world is the Env of one task; it keeps what was put out as text.
type world struct {
	plan    *topology.Plan
	tables  map[string]table
	out     []string
	skipped []string
}

func newWorld(plan *topology.Plan) *world { return &world{plan: plan, tables: map[string]table{}} }

func (w *world) State(step, name, codec string) (topology.StateTable, error) {
	id := step + "/" + name + "@" + codec
	if w.tables[id] == nil {
		w.tables[id] = table{}
	}
	return w.tables[id], nil
}

func (w *world) Emit(sink int, recs []element.Record) error {
	for _, r := range recs {
		w.out = append(w.out, fmt.Sprintf("%s %s=%s", w.plan.Sinks[sink].Name, show(r.Key), show(r.Value)))
	}
	return nil
}

func (w *world) Send(stage, subtask int, _ topology.Parcel) error {
	return fmt.Errorf("a parcel for stage %d subtask %d", stage, subtask)
}

func (w *world) Parallelism(int) int { return 1 }

func (w *world) MaxParallelism() int { return element.DefaultMaxParallelism }

func (w *world) Now() int64 { return 0 }

func (w *world) Skipped(step string, reason error) {
	w.skipped = append(w.skipped, step+": "+reason.Error())
}

func show(b []byte) string {
	if b == nil {
		return "null"
	}
	q := strconv.Quote(string(b))
	return q[1 : len(q)-1]
}

// run feeds key=value texts to a new task of the first source; "null" is a null key or value.
func (w *world) run(t require.TestingT, records ...string) error {
	src := w.plan.Sources[0]
	task, err := w.plan.NewTask(src.Name, 0, w)
	require.NoError(t, err)
	in := make([]element.Record, len(records))
	for i, text := range records {
		k, v, ok := strings.Cut(text, "=")
		require.True(t, ok)
		in[i] = element.Record{Offset: int64(i), Timestamp: int64(1000 + i), Headers: []element.Header{{Key: "n", Value: []byte(strconv.Itoa(i))}}}
		if k != "null" {
			in[i].Key = []byte(k)
		}
		if v != "null" {
			in[i].Value = []byte(v)
		}
	}
	if err := task.Process(element.TopicPartition{Topic: src.Topic}, in); err != nil {
		return err
	}
	return task.Flush()
}

func pipe(steps, from string) string {
	return "sources: {in: {topic: in, key: string, value: json}}\nsteps:\n" + steps +
		"\nsinks: {out: {from: " + from + ", topic: out, key: string, value: json}}\n"
}

func TestRunningTotals(t *testing.T) {
	plan := mustBuild(t, pipe("  totals: {from: in, aggregate: {orders: count(), spent: sum(value.amount), last: last(value.id), low: min(value.amount), mean: avg(value.amount), first: first(value.id)}}", "totals"))
	require.Equal(t, []topology.StatePlan{{Source: "in", Step: "totals", Name: "aggregate", KeyCodec: "string", Codec: "aggregate1(first=first,last=last,low=min,mean=avg,orders=count,spent=sum)"}}, plan.States)
	w := newWorld(plan)
	require.NoError(t, w.run(t, `anna={"amount":5,"id":"a"}`, `bob={"amount":7,"id":null}`, `anna=null`, `anna={"amount":3,"id":"b"}`))
	// A new task continues from the state.
	require.NoError(t, w.run(t, `anna={"amount":2.5,"id":{"x":[1]}}`))
	require.Equal(t, []string{
		`out anna={\"first\":\"a\",\"last\":\"a\",\"low\":5,\"mean\":5,\"orders\":1,\"spent\":5}`,
		`out bob={\"first\":null,\"last\":null,\"low\":7,\"mean\":7,\"orders\":1,\"spent\":7}`,
		`out anna={\"first\":\"a\",\"last\":\"b\",\"low\":3,\"mean\":4,\"orders\":2,\"spent\":8}`,
		`out anna={\"first\":\"a\",\"last\":{\"x\":[1]},\"low\":2.5,\"mean\":3.5,\"orders\":3,\"spent\":10.5}`,
	}, w.out)
}

func TestARecordThatCannotBeFoldedNamesTheField(t *testing.T) {
	text := pipe("  totals: {from: in, aggregate: {n: count(), spent: sum(value.amount)}}", "totals")
	for value, want := range map[string]string{
		`{"amont":1}`:                    "topic in partition 0 offset 1: step totals: sum(value.amount): missing or null; write sum(value.amount ?? DEFAULT) if that may be",
		`{"amount":null}`:                "sum(value.amount): missing or null",
		`{"amount":"x"}`:                 "sum(value.amount): expected a number, found a text",
		`{"amount":9223372036854775807}`: "sum(value.amount): int64 overflow",
		`[1]`:                            "step totals: sum: value.amount: ",
		`{`:                              "decode value as json",
	} {
		w := newWorld(mustBuild(t, text))
		err := w.run(t, `k={"amount":1}`, "k="+value)
		require.ErrorContains(t, err, want, value)
		require.Equal(t, fault.BadRecord, fault.CodeOf(err))
		var re *topology.RecordError
		require.ErrorAs(t, err, &re)
		require.Equal(t, int64(1), re.Offset)
	}
	w := newWorld(mustBuild(t, text))
	require.ErrorContains(t, w.run(t, `null={"amount":1}`), "null key")
}

func TestSkippedRecordsLeaveTheAggregateAsItWas(t *testing.T) {
	text := strings.Replace(pipe("  totals: {from: in, aggregate: {n: count(), spent: sum(value.amount)}}", "totals"), "value: json}}\nsteps", "value: json, on-error: skip}}\nsteps", 1)
	w := newWorld(mustBuild(t, text))
	require.NoError(t, w.run(t, `k={"amount":1}`, `k={"amount":"x"}`, `k={`, `k={"amount":2}`))
	require.Equal(t, []string{`out k={\"n\":1,\"spent\":1}`, `out k={\"n\":2,\"spent\":3}`}, w.out)
	require.Len(t, w.skipped, 2)
}

func TestFilterAndMap(t *testing.T) {
	w := newWorld(mustBuild(t, pipe(`  big: {from: in, filter: value.amount > 10}
  lines: {from: big, map: {who: key, cents: value.amount * 100, at: timestamp, n: headers.n, note: 'value.note ?? "none"'}}`, "lines")))
	require.NoError(t, w.run(t, `a={"amount":5}`, `b={"amount":11,"note":"x"}`, `c=null`, `d={"amount":12}`))
	require.Equal(t, []string{
		`out b={\"at\":1001,\"cents\":1100,\"n\":\"1\",\"note\":\"x\",\"who\":\"b\"}`,
		`out c=null`,
		`out d={\"at\":1003,\"cents\":1200,\"n\":\"3\",\"note\":\"none\",\"who\":\"d\"}`,
	}, w.out)
}

func TestAFilterThatIsNoBoolean(t *testing.T) {
	w := newWorld(mustBuild(t, pipe("  f: {from: in, filter: value.flag}", "f")))
	require.ErrorContains(t, w.run(t, `a={"flag":true}`, `a={"flag":"yes"}`), "offset 1: step f: value.flag: a filter is true or false, but the expression gives a text")
	require.Equal(t, []string(nil), w.out)
}

func TestTombstonesAreSeenByThoseWhoAsk(t *testing.T) {
	w := newWorld(mustBuild(t, pipe("  f: {from: in, filter: not tombstone}", "f")))
	require.NoError(t, w.run(t, `a=1`, `a=null`))
	require.Equal(t, []string{"out a=1"}, w.out)

	w = newWorld(mustBuild(t, pipe(`  m: {from: in, map: 'tombstone ? "gone" : (value > 1 ? value : nil)'}`, "m")))
	require.NoError(t, w.run(t, `a=1`, `a=2`, `a=null`))
	require.Equal(t, []string{`out a=null`, `out a=2`, `out a=\"gone\"`}, w.out)

	w = newWorld(mustBuild(t, pipe(`  g: {from: in, aggregate: {all: count(), gone: 'sum(tombstone ? 1 : 0)'}}`, "g")))
	require.NoError(t, w.run(t, `a=1`, `a=null`))
	require.Equal(t, []string{`out a={\"all\":1,\"gone\":0}`, `out a={\"all\":2,\"gone\":1}`}, w.out)
}

func TestARecordThatOnlyPassesKeepsItsBytes(t *testing.T) {
	w := newWorld(mustBuild(t, pipe("  f: {from: in, filter: value.a != 2}", "f")))
	require.NoError(t, w.run(t, `k={ "b":1.0, "a":1e0 }`, `={"a":2}`, `={"a":"x"}`))
	require.Equal(t, []string{`out k={ \"b\":1.0, \"a\":1e0 }`, `out ={\"a\":\"x\"}`}, w.out)
}

func TestKeysAreEncodedForTheSink(t *testing.T) {
	w := newWorld(mustBuild(t, "sources: {in: {topic: in, key: int64, value: string}}\nsteps: {s: {from: in, map: 'string(key) + value'}}\n"+
		"sinks: {a: {from: s, topic: a, key: json, value: string}, b: {from: in, topic: b, key: int64, value: bytes}}"))
	require.NoError(t, w.run(t, "\x00\x00\x00\x00\x00\x00\x00\x07=x"))
	require.ElementsMatch(t, []string{"a 7=7x", `b \x00\x00\x00\x00\x00\x00\x00\a=x`}, w.out)
	require.ErrorContains(t, w.run(t, "short=x"), "decode key as int64")
}

func TestAvroInAndOut(t *testing.T) {
	plan := mustBuild(t, `
sources: {in: {topic: in, key: string, value: avro, value-schema: reading.avsc}}
steps: {warm: {from: in, filter: value.celsius != nil}, ranges: {from: warm, aggregate: {n: count(), warmest: max(value.celsius)}}}
sinks: {out: {from: ranges, topic: out, key: string, value: avro, value-schema: range.avsc}}`)
	require.True(t, strings.HasPrefix(plan.Sources[0].ValueCodec, "avro:"))
	n := &yamlx.Problems{}
	in, _, err := readSchema(yamlx.Literal("x", "x", "reading.avsc", n), "testdata")
	require.NoError(t, err)
	out, _, err := readSchema(yamlx.Literal("x", "x", "range.avsc", n), "testdata")
	require.NoError(t, err)
	var records []element.Record
	for _, c := range []any{1.5, nil, 4.5} {
		b, err := in.Append(nil, map[string]any{"sensor": "s", "celsius": c, "taken_at": int64(1)})
		require.NoError(t, err)
		records = append(records, element.Record{Key: []byte("s"), Value: b})
	}
	w := &avroWorld{newWorld(plan), out, nil}
	task, err := plan.NewTask("in", 0, w)
	require.NoError(t, err)
	require.NoError(t, task.Process(element.TopicPartition{Topic: "in"}, records))
	require.NoError(t, task.Flush())
	require.Equal(t, []any{map[string]any{"n": int64(1), "warmest": 1.5}, map[string]any{"n": int64(2), "warmest": 4.5}}, w.values)
}

// TestASinkOfAnotherFormatGetsAllFields: expressions name one field, the sink needs two.
func TestASinkOfAnotherFormatGetsAllFields(t *testing.T) {
	plan := mustBuild(t, `
sources: {in: {topic: in, key: string, value: json}}
steps: {f: {from: in, filter: value.n > 1}}
sinks: {out: {from: f, topic: out, key: string, value: avro, value-schema: range.avsc}, same: {from: f, topic: same, key: string, value: json}}`)
	out, _, err := readSchema(yamlx.Literal("x", "x", "range.avsc", &yamlx.Problems{}), "testdata")
	require.NoError(t, err)
	w := newWorld(plan)
	require.NoError(t, w.run(t, `k={"n":1,"warmest":2.5}`, `k={"n":2,"warmest":3.5}`))
	want, err := out.Append(nil, map[string]any{"n": int64(2), "warmest": 3.5})
	require.NoError(t, err)
	require.Equal(t, []string{"out k=" + show(want), `same k={\"n\":2,\"warmest\":3.5}`}, w.out)
}

// TestManyFieldsAreDecodedWhole: beyond the limit of slots nothing is lost.
func TestManyFieldsAreDecodedWhole(t *testing.T) {
	var steps, doc strings.Builder
	doc.WriteString(`k={"z":0`)
	for i := range 2 * maxSlots {
		if i%maxSlots == 0 {
			fmt.Fprintf(&steps, "  m%d:\n    from: in\n    map:\n", i/maxSlots)
		}
		fmt.Fprintf(&steps, "      f%d: value.f%d\n", i, i)
		fmt.Fprintf(&doc, `,"f%d":%d`, i, i)
	}
	w := newWorld(mustBuild(t, strings.Replace(pipe(steps.String(), "m1"), "out: {", "first: {from: m0, topic: first, key: string, value: json}, out: {", 1)))
	require.NoError(t, w.run(t, doc.String()+"}"))
	require.Len(t, w.out, 2)
	for i := range 2 * maxSlots {
		require.Contains(t, w.out[i/maxSlots], fmt.Sprintf(`\"f%d\":%d`, i, i))
	}
}

type avroWorld struct {
	*world
	codec  serde.Serde[any]
	values []any
}

func (w *avroWorld) Emit(_ int, recs []element.Record) error {
	for _, r := range recs {
		v, err := w.codec.Decode(r.Value)
		if err != nil {
			return err
		}
		w.values = append(w.values, v)
	}
	return nil
}

func TestTheOrderOfFieldsIsNotPartOfTheState(t *testing.T) {
	a := mustBuild(t, pipe("  t: {from: in, aggregate: {x: count(), y: sum(value.a)}}", "t"))
	b := mustBuild(t, pipe("  t: {from: in, aggregate: {y: sum(value.b), x: count()}}", "t"))
	require.Equal(t, a.States, b.States)
	c := mustBuild(t, pipe("  t: {from: in, aggregate: {x: count(), y: max(value.a)}}", "t"))
	require.NotEqual(t, a.States, c.States)
}

func TestStepsMayStandInAnyOrder(t *testing.T) {
	w := newWorld(mustBuild(t, pipe("  c: {from: b, map: value + 1}\n  b: {from: a, map: value * 2}\n  a: {from: in, filter: value > 0}", "c")))
	require.NoError(t, w.run(t, "k=3", "k=0"))
	require.Equal(t, []string{"out k=7"}, w.out)
}

func TestTasksShareAPlan(t *testing.T) {
	plan := mustBuild(t, pipe("  f: {from: in, filter: value.a > 0}\n  m: {from: f, map: {a: value.a + 1}}\n  t: {from: m, aggregate: {s: sum(value.a)}}", "t"))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			w := newWorld(plan)
			records := make([]string, 500)
			for i := range records {
				records[i] = fmt.Sprintf(`k={"a":%d}`, i)
			}
			if err := w.run(t, records...); err != nil {
				t.Error(err)
				return
			}
			if want := `out k={\"s\":125249}`; w.out[len(w.out)-1] != want {
				t.Errorf("%s, want %s", w.out[len(w.out)-1], want)
			}
		})
	}
	wg.Wait()
}

func TestDamagedStateIsAnErrorOfTheRecord(t *testing.T) {
	for text, stored := range map[string][]byte{
		"sum(value)":   {tagText, 1, 'x', 0, 0, 0, 0, 0, 0},
		"max(value)":   {1, 2, 3},
		"last(value)":  {tagNull, 0},
		"first(value)": {},
	} {
		plan := mustBuild(t, pipe("  t: {from: in, aggregate: {s: "+text+"}}", "t"))
		w := newWorld(plan)
		table, err := w.State("t", "aggregate", plan.States[0].Codec)
		require.NoError(t, err)
		table.Put([]byte("k"), stored)
		require.ErrorIs(t, w.run(t, "k=1"), errDamaged, text)
	}
}

func TestLimitsOfAFile(t *testing.T) {
	var b strings.Builder
	b.WriteString("sources: {in: {topic: in, key: string, value: json}}\nsinks:\n")
	for i := range maxNodes {
		fmt.Fprintf(&b, "  s%d: {from: in, topic: t%d, key: string, value: json}\n", i, i)
	}
	_, ps := buildText(b.String())
	require.ErrorContains(t, ps.Err(), "1001 sources, steps and sinks; at most 1000 are possible")
	b.Reset()
	b.WriteString("sources: {in: {topic: in, key: string, value: json}}\nsinks: {o: {from: t, topic: o, key: string, value: json}}\nsteps:\n  t:\n    from: in\n    aggregate:\n")
	for i := range maxFields + 1 {
		fmt.Fprintf(&b, "      f%d: count()\n", i)
	}
	_, ps = buildText(b.String())
	require.ErrorContains(t, ps.Err(), "has 65 fields; from 1 to 64 are possible")
}

func TestASchemaFileIsBounded(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "big.avsc"), make([]byte, maxSchemaBytes+1), 0o600))
	ps := &yamlx.Problems{}
	for name, want := range map[string]string{"big.avsc": "is larger than 256kb", ".": "is not a file", "none.avsc": "no such file or directory"} {
		_, _, err := readSchema(yamlx.Literal("x", "x", name, ps), dir)
		require.ErrorContains(t, err, want, name)
	}
}

// BenchmarkOrders is examples/orders.yaml without Kafka: decode, aggregate, encode.
func BenchmarkOrders(b *testing.B) {
	benchmark(b, pipe("  totals: {from: in, aggregate: {orders: count(), spent: sum(value.amount), largest: max(value.amount), last_order: last(value.order_id)}}", "totals"))
}

// BenchmarkFixed is the same with an accumulator of a fixed size.
func BenchmarkFixed(b *testing.B) {
	benchmark(b, pipe("  totals: {from: in, aggregate: {orders: count(), spent: sum(value.amount)}}", "totals"))
}

// BenchmarkFilterMap has an expression that needs the evaluator, and a map.
func BenchmarkFilterMap(b *testing.B) {
	benchmark(b, pipe("  paid: {from: in, filter: value.status == \"paid\"}\n  lines: {from: paid, map: {customer: key, cents: value.amount}}", "lines"))
}

func benchmark(b *testing.B, text string) {
	plan := mustBuild(b, text)
	w := newWorld(plan)
	task, err := plan.NewTask("in", 0, discard{w})
	require.NoError(b, err)
	recs := make([]element.Record, 256)
	for i := range recs {
		recs[i] = element.Record{Key: []byte("customer-" + strconv.Itoa(i%64)), Value: []byte(`{"order_id":"o-17","customer":"anna","amount":1250,"status":"paid","placed_at":1767225600000}`)}
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := task.Process(element.TopicPartition{Topic: "in"}, recs); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(recs)), "ns/record")
}

type discard struct{ *world }

func (discard) Emit(int, []element.Record) error { return nil }

func (d discard) State(step, name, codec string) (topology.StateTable, error) {
	t, err := d.world.State(step, name, codec)
	return steady{t.(table)}, err
}

// steady is a table that does not allocate for a value of the old length.
type steady struct{ table }

func (s steady) Put(key, value []byte) {
	if old := s.table[string(key)]; len(old) == len(value) {
		copy(old, value)
		return
	}
	s.table.Put(key, value)
}
