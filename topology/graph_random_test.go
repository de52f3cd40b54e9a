package topology_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// pair is a record of the model; a nil key or value is null.
type pair struct{ key, value *string }

func (p pair) String() string { return textOf(p.key) + "=" + textOf(p.value) }

func textOf(s *string) string {
	if s == nil {
		return "null"
	}
	return strconv.Quote(*s)
}

// drawn is a stream with what it must carry, as a multiset.
type drawn struct {
	s     topology.Stream[string, string]
	want  []pair
	plain bool // nothing about the stages forbids keyed state behind it
	stage int  // which one it is in
}

// drawGraph makes a random graph and folds its inputs directly, record by record.
type drawGraph struct {
	b        *topology.Builder
	streams  []drawn
	par      map[string]int
	restores bool // no broadcast: a snapshot with records in flight can be restored
	stages   int
}

func strings2() (serde.Serde[string], serde.Serde[string]) { return serde.String(), serde.String() }

// otherString is String under another name, so that bytes are encoded again.
type otherString struct{ serde.Serde[string] }

func (otherString) Name() string { return "other" }

func (d *drawGraph) add(t *rapid.T, i int) {
	from := d.streams[rapid.IntRange(0, len(d.streams)-1).Draw(t, "from")]
	name := fmt.Sprintf("n%d", i)
	k, v := strings2()
	if rapid.Bool().Draw(t, "other codecs") {
		k, v = otherString{k}, otherString{v}
	}
	parallelism := rapid.IntRange(1, 4).Draw(t, "parallelism")
	next := drawn{plain: from.plain, stage: from.stage}
	exchange := func(keyed bool) {
		d.stages++
		next.plain, next.stage = keyed, d.stages
		d.par[name] = parallelism
	}
	switch op := rapid.SampledFrom([]string{"map", "filter", "group", "group", "group-rec", "count", "count", "rebalance", "broadcast", "merge", "merge"}).Draw(t, "operation"); op {
	case "map":
		next.s = topology.Map(from.s, name, func(_, v string) string { return v + "." })
		for _, p := range from.want {
			if p.value != nil {
				p.value = ref(*p.value + ".")
			}
			next.want = append(next.want, p)
		}
	case "filter":
		next.s = topology.Filter(from.s, name, func(_, v string) bool { return len(v)%3 != 0 })
		next.want = slices.DeleteFunc(slices.Clone(from.want), func(p pair) bool { return p.value != nil && len(*p.value)%3 == 0 })
	case "group":
		next.s = topology.GroupBy(from.s, name, k, v, func(_, v string) string { return v[:min(1, len(v))] })
		for _, p := range from.want {
			if p.value != nil {
				next.want = append(next.want, pair{ref((*p.value)[:min(1, len(*p.value))]), p.value})
			}
		}
		exchange(true)
	case "group-rec":
		next.s = topology.GroupByRec(from.s, name, k, v, func(r *topology.Rec[string, string]) (string, bool, error) {
			return r.Key + "x", r.RawKey == nil, nil
		})
		for _, p := range from.want {
			if p.key != nil {
				next.want = append(next.want, pair{ref(*p.key + "x"), p.value})
			}
		}
		exchange(true)
	case "count":
		if !from.plain {
			return
		}
		next.s = topology.Map(topology.Count(from.s, name), name+"-text", func(_ string, n int64) string { return strconv.FormatInt(n, 10) })
		next.want = counted(from.want)
	case "rebalance":
		next.s, next.want = topology.Rebalance(from.s, name, k, v), from.want
		exchange(false)
	case "broadcast":
		next.s = topology.Broadcast(from.s, name, k, v)
		if len(from.want) > 2000 {
			return
		}
		for range parallelism {
			next.want = append(next.want, from.want...)
		}
		exchange(false)
		d.restores = false
	case "merge":
		other := d.streams[rapid.IntRange(0, len(d.streams)-1).Draw(t, "with")]
		if other.s == from.s || len(from.want)+len(other.want) > 2000 {
			return
		}
		next.s = topology.Merge(name, from.s, other.s)
		next.want = slices.Concat(from.want, other.want)
		next.plain = from.plain && other.plain && from.stage == other.stage
	}
	d.streams = append(d.streams, next)
}

func ref(s string) *string { return &s }

// counted gives the outputs of Count: they do not depend on the order of the records.
func counted(in []pair) []pair {
	var out []pair
	n := map[string]int{}
	for _, p := range in {
		if p.key != nil && p.value != nil {
			n[*p.key]++
			out = append(out, pair{p.key, ref(strconv.Itoa(n[*p.key]))})
		}
	}
	return out
}

// drawInput makes the records of one source, by partition.
func drawInput(t *rapid.T, partitions int) [][]element.Record {
	out := make([][]element.Record, partitions)
	value := rapid.Custom(func(t *rapid.T) []byte {
		return [][]byte{nil, {}, []byte("a"), []byte("bc"), []byte("cde"), []byte("d"), []byte("abcd")}[rapid.IntRange(0, 6).Draw(t, "value")]
	})
	for p := range out {
		for i := range rapid.SampledFrom([]int{0, 1, 5, 40}).Draw(t, "records") {
			out[p] = append(out[p], rec(int64(i), value.Draw(t, "key"), value.Draw(t, "value")))
		}
	}
	return out
}

// A graph of stages gives what a direct fold of its inputs gives, also when it is cut short by a snapshot with everything
// that is in flight and goes on from that at another parallelism.
func TestAStageGraphEqualsTheDirectFold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const partitions = 2
		d := &drawGraph{b: topology.New("app"), par: map[string]int{}, restores: true}
		inputs := map[string][][]element.Record{}
		for _, name := range []string{"in", "also"} {
			s := topology.FromTopic(d.b, name, name, serde.String(), serde.String(), topology.OnError(topology.Skip))
			inputs[name] = drawInput(t, partitions)
			dr := drawn{s: s, stage: -len(d.streams) - 1}
			for _, recs := range inputs[name] {
				for _, r := range recs {
					dr.want = append(dr.want, pair{asText(r.Key), asText(r.Value)})
				}
			}
			d.streams = append(d.streams, dr)
		}
		for i := range rapid.IntRange(1, 12).Draw(t, "steps") {
			d.add(t, i)
		}
		want := map[string][]string{}
		for i, s := range d.streams {
			name := fmt.Sprintf("sink%d", i)
			k, v := strings2()
			if i%2 == 1 {
				k, v = otherString{k}, otherString{v}
			}
			topology.ToTopic(s.s, name, name, k, v)
			for _, p := range s.want {
				want[name] = append(want[name], p.String())
			}
			slices.Sort(want[name])
		}
		plan, err := d.b.Plan()
		require.NoError(t, err)

		out := runGraph(t, d, plan, inputs, partitions)
		for _, s := range plan.Sinks {
			var got []string
			for _, r := range out[s.Name] {
				got = append(got, pair{asText(r.Key), asText(r.Value)}.String())
			}
			slices.Sort(got)
			require.Equal(t, want[s.Name], got, "sink %s of\n%s", s.Name, plan.Describe())
		}
	})
}

func asText(b []byte) *string {
	if b == nil {
		return nil
	}
	return ref(string(b))
}

// runGraph feeds the inputs in random order, with up to two restores on the way.
func runGraph(t *rapid.T, d *drawGraph, plan *topology.Plan, inputs map[string][][]element.Record, partitions int) map[string][]element.Record {
	pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") }
	const groups = 13
	g := newGraph(t, plan, partitions, groups, d.par, nil)
	at := map[string][]int{"in": make([]int, partitions), "also": make([]int, partitions)}
	left := func() (n int) {
		for name, parts := range inputs {
			for p := range parts {
				n += len(parts[p]) - at[name][p]
			}
		}
		return n
	}
	restores := 0
	for left() > 0 {
		switch busy := g.busy(); {
		case len(busy) > 0 && rapid.IntRange(0, 2).Draw(t, "serve") > 0:
			require.NoError(t, busy[pick(len(busy))].step())
		case d.restores && restores < 2 && rapid.IntRange(0, 5).Draw(t, "restore") == 0:
			restores++
			flights, states := g.snapshot()
			out := g.out
			par := maps.Clone(d.par)
			for _, name := range slices.Sorted(maps.Keys(par)) {
				par[name] = rapid.IntRange(1, 4).Draw(t, "new parallelism")
			}
			g.close()
			g = restore(t, plan, partitions, groups, par, flights, states, pick)
			g.out = out
		default:
			name := rapid.SampledFrom([]string{"in", "also"}).Draw(t, "source")
			p := pick(partitions)
			recs := inputs[name][p][at[name][p]:]
			recs = recs[:min(len(recs), rapid.IntRange(1, 20).Draw(t, "records"))]
			at[name][p] += len(recs)
			require.NoError(t, g.process(name, int32(p), recs...))
		}
	}
	require.NoError(t, g.settle(pick))
	g.close()
	return g.out
}
