package topology_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/serde/avro"
	"github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

// noNulls is a serde that fails the test when a null gets to it.
type noNulls struct {
	serde.Serde[any]
	t     testing.TB
	calls *int
}

func (s noNulls) Decode(b []byte) (any, error) {
	*s.calls++
	require.NotNil(s.t, b, "a null reached the decoder")
	return s.Serde.Decode(b)
}

const recordV = `{"type":"record","name":"V","fields":[{"name":"v","type":"int"}]}`

func avroCodec(t testing.TB, schema string) *avro.Codec {
	c, err := avro.New(schema)
	require.NoError(t, err)
	return c
}

// TestC20_TombstonesPassThroughAvro: null is not decoded, and is null on the wire again; empty stays empty.
func TestC20_TombstonesPassThroughAvro(t *testing.T) {
	calls := 0
	in := noNulls{avroCodec(t, recordV), t, &calls}
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.Serde[any](in), serde.Serde[any](in))
	keep := topology.Filter(s, "keep", func(any, any) bool { return true })
	topology.ToTopic(keep, "same", "out1", serde.Serde[any](in), serde.Serde[any](in))
	topology.ToTopic(keep, "asjson", "out2", json.Any(), json.Any())
	task, env := drive(t, b)

	one := []byte{2} // {"v":1}
	require.NoError(t, task.Process(from, []element.Record{rec(0, one, one), rec(1, one, nil), rec(2, nil, nil), rec(3, nil, one)}))
	require.Equal(t, 4, calls)
	require.Equal(t, []string{"\x02=\x02", "\x02=null", "null=null", "null=\x02"}, pairs(env.Out[0]))
	require.Equal(t, []string{`{"v":1}={"v":1}`, `{"v":1}=null`, "null=null", `null={"v":1}`}, pairs(env.Out[1]))
	require.Empty(t, env.Skips)
}

// TestC20_EmptyIsNotNull: a zero-length value passes as zero-length, through the raw path and through encoding.
func TestC20_EmptyIsNotNull(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.Bytes())
	topology.ToTopic(s, "pass", "out1", serde.String(), serde.Bytes())
	text := topology.Map(s, "text", func(_ string, v []byte) string { return string(v) })
	topology.ToTopic(text, "encoded", "out2", renamed{"other"}, serde.String())
	task, env := drive(t, b)

	require.NoError(t, task.Process(from, []element.Record{rec(0, []byte{}, []byte{}), rec(1, []byte("k"), nil), rec(2, nil, []byte{})}))
	for sink := range 2 {
		out := env.Out[sink]
		require.Len(t, out, 3)
		require.Equal(t, []byte{}, out[0].Key)
		require.Equal(t, []byte{}, out[0].Value)
		require.Nil(t, out[1].Value)
		require.Nil(t, out[2].Key)
		require.Equal(t, []byte{}, out[2].Value)
	}
}

// renamed is the string codec under another name, so that keys are encoded anew.
type renamed struct{ name string }

func (r renamed) Name() string { return r.name }

func (renamed) Append(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil }

func (renamed) Decode(b []byte) (string, error) { return string(b), nil }

// TestC20_NullKeyInAKeyedStep goes to the error policy with that reason, also when the value is null too.
func TestC20_NullKeyInAKeyedStep(t *testing.T) {
	build := func(opts ...topology.SourceOption) *topology.Builder {
		b := topology.New("app")
		s := topology.FromTopic(b, "src", "in", serde.String(), serde.Bytes(), opts...)
		topology.ToTopic(topology.Count(s, "totals"), "out", "out", serde.String(), serde.Int64())
		return b
	}
	for _, bad := range []element.Record{rec(17, nil, []byte("x")), rec(17, nil, nil)} {
		task, env := drive(t, build())
		err := task.Process(from, []element.Record{kv(16, "a", "x"), bad})
		require.EqualError(t, err, "topic in partition 3 offset 17: step totals: null key")
		require.ErrorIs(t, err, topology.ErrNullKey)
		require.Equal(t, fault.Stop, fault.RecoveryOf(err))
		require.Equal(t, fault.BadRecord, fault.CodeOf(err))
		require.Empty(t, env.Out)

		task, env = drive(t, build(topology.OnError(topology.Skip)))
		require.NoError(t, task.Process(from, []element.Record{kv(16, "a", "x"), bad, kv(18, "a", "x")}))
		require.Equal(t, []string{"a=\x00\x00\x00\x00\x00\x00\x00\x01", "a=\x00\x00\x00\x00\x00\x00\x00\x02"}, pairs(env.Out[0]))
		require.Len(t, env.Skips, 1)
		require.Equal(t, "totals", env.Skips[0].Step)
		var rerr *topology.RecordError
		require.ErrorAs(t, env.Skips[0].Reason, &rerr)
		require.Equal(t, topology.RecordError{From: from, Offset: 17, Step: "totals", Reason: topology.ErrNullKey}, *rerr)
	}
}

// TestC20_AggregatesIgnoreTombstones under every policy, and say so; AggregateRec and Process see them.
func TestC20_AggregatesIgnoreTombstones(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.String())
	topology.ToTopic(topology.Last(s, "last", serde.String()), "last", "out1", serde.String(), serde.String())
	seen := topology.AggregateRec(s, "seen", serde.String(), func(acc string, r *topology.Rec[string, string]) (string, error) {
		if r.Tombstone {
			require.Zero(t, r.Value)
			return acc + "-", nil
		}
		return acc + r.Value, nil
	})
	topology.ToTopic(seen, "seen", "out2", serde.String(), serde.String())
	task, env := drive(t, b)

	require.NoError(t, task.Process(from, []element.Record{kv(0, "k", "1"), rec(1, []byte("k"), nil), kv(2, "k", "2")}))
	require.Equal(t, []string{"k=1", "k=2"}, pairs(env.Out[0]))
	require.Equal(t, []string{"k=1", "k=1-", "k=1-2"}, pairs(env.Out[1]))
	require.Len(t, env.Skips, 1)
	require.Equal(t, "last", env.Skips[0].Step)
	require.True(t, errors.Is(env.Skips[0].Reason, topology.ErrTombstone))
}

// TestC20_PlainStepsPassTombstonesOnAndTheRecFormsSeeThem.
func TestC20_PlainStepsPassTombstonesOnAndTheRecFormsSeeThem(t *testing.T) {
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.String())
	none := topology.Filter(s, "none", func(string, string) bool { return false })
	twice := topology.Map(none, "twice", func(_, v string) string { return v + v })
	topology.ToTopic(twice, "plain", "out1", serde.String(), serde.String())
	alive := topology.FilterRec(s, "alive", func(r *topology.Rec[string, string]) (bool, error) { return !r.Tombstone, nil })
	topology.ToTopic(alive, "alive", "out2", serde.String(), serde.String())
	swap := topology.MapRec(s, "swap", func(in *topology.Rec[string, string], out *topology.Rec[string, string]) error {
		require.False(t, out.Tombstone)
		require.Zero(t, out.Value)
		out.Value = "was null"
		out.Tombstone = !in.Tombstone
		return nil
	})
	topology.ToTopic(swap, "swap", "out3", serde.String(), serde.String())
	task, env := drive(t, b)

	require.NoError(t, task.Process(from, []element.Record{kv(0, "k", "1"), rec(1, []byte("k"), nil)}))
	require.Equal(t, []string{"k=null"}, pairs(env.Out[0]))
	require.Equal(t, []string{"k=1"}, pairs(env.Out[1]))
	require.Equal(t, []string{"k=null", "k=was null"}, pairs(env.Out[2]))
}

// theFour are headers with a repeated key, a null and an empty value.
func theFour() []element.Header {
	return []element.Header{{Key: "a", Value: []byte("1")}, {Key: "b"}, {Key: "a", Value: []byte("2")}, {Key: "a", Value: []byte{}}}
}

// TestC21_HeadersPassAsTheyAre: through PASS, a keyed step, a user step and an Avro re-encode.
func TestC21_HeadersPassAsTheyAre(t *testing.T) {
	longer := avroCodec(t, `{"type":"record","name":"W","fields":[{"name":"v","type":"long"}]}`)
	b := topology.New("app")
	s := topology.FromTopic[string, any](b, "src", "in", serde.String(), avroCodec(t, recordV))
	topology.ToTopic[string, any](s, "pass", "out1", serde.String(), avroCodec(t, recordV))
	topology.ToTopic[string, any](s, "reencode", "out2", serde.String(), longer)
	topology.ToTopic(topology.Count(s, "count"), "count", "out3", serde.String(), serde.Int64())
	p := topology.Process(s, "process", func() topology.Processor[string, any, string] { return emitter{} })
	topology.ToTopic(p, "process", "out4", serde.String(), serde.String())
	topology.ToTopic[string, any](s, "without", "out5", serde.String(), longer, topology.WithoutHeaders())
	task, env := drive(t, b)

	in := []element.Record{rec(0, []byte("k"), []byte{2}, theFour()...)}
	require.NoError(t, task.Process(from, in))
	require.Equal(t, theFour(), in[0].Headers)
	for sink := range 4 {
		require.Len(t, env.Out[sink], 1)
		require.Equal(t, theFour(), env.Out[sink][0].Headers, sink)
		require.Nil(t, env.Out[sink][0].Headers[1].Value)
		require.NotNil(t, env.Out[sink][0].Headers[3].Value)
		require.Equal(t, int64(1000), env.Out[sink][0].Timestamp)
	}
	require.Nil(t, env.Out[4][0].Headers)
	require.Equal(t, []byte{2}, env.Out[1][0].Value)
}

type emitter struct{}

func (emitter) Open(*topology.ProcessContext) error { return nil }

func (emitter) Process(_ *topology.ProcessContext, _ *topology.Rec[string, any], out *topology.Collector[string, string]) error {
	out.Emit("x")
	return nil
}

// TestC21_SettingHeaders: set replaces all of the key and comes last, add appends, null and empty are kept apart, and
// other branches do not see it.
func TestC21_SettingHeaders(t *testing.T) {
	type R = topology.Rec[string, string]
	set := func(change func(*R)) func(*R, *R) error {
		return func(in, out *R) error {
			out.Value = in.Value
			change(out)
			return nil
		}
	}
	h := func(k string, v []byte) element.Header { return element.Header{Key: k, Value: v} }
	four := theFour()
	cases := []struct {
		change func(*R)
		want   []element.Header
	}{
		{func(r *R) { r.SetHeader("c", []byte("3")) }, append(theFour(), h("c", []byte("3")))},
		{func(r *R) { r.SetHeader("a", []byte("new")) }, []element.Header{four[1], h("a", []byte("new"))}},
		{func(r *R) { r.SetHeader("b", nil) }, []element.Header{four[0], four[2], four[3], h("b", nil)}},
		{func(r *R) { r.SetHeader("b", []byte{}) }, []element.Header{four[0], four[2], four[3], h("b", []byte{})}},
		{func(r *R) { r.AddHeader("a", nil) }, append(theFour(), h("a", nil))},
		{func(r *R) { r.AddHeader("x", nil); r.AddHeader("y", nil) }, append(theFour(), h("x", nil), h("y", nil))},
		{func(r *R) { r.DeleteHeader("a") }, []element.Header{four[1]}},
		{func(r *R) {}, theFour()},
	}
	b := topology.New("app")
	s := topology.FromTopic(b, "src", "in", serde.String(), serde.String())
	for i, c := range cases {
		name := string(rune('a' + i))
		topology.ToTopic(topology.MapRec(s, name, set(c.change)), name, "out", serde.String(), serde.String())
	}
	task, env := drive(t, b)
	// Spare capacity behind the headers: whoever appends in place is found out.
	backing := append(theFour(), h("spare", nil), h("spare", nil))
	require.NoError(t, task.Process(from, []element.Record{rec(0, []byte("k"), []byte("v"), backing[:4]...)}))
	for i, c := range cases {
		require.Equal(t, c.want, env.Out[i][0].Headers, i)
	}
	require.Equal(t, append(theFour(), h("spare", nil), h("spare", nil)), backing)

	r := &R{Headers: theFour()}
	v, ok := r.Header("a")
	require.True(t, ok)
	require.Equal(t, []byte{}, v)
	v, ok = r.Header("b")
	require.True(t, ok)
	require.Nil(t, v)
	_, ok = r.Header("none")
	require.False(t, ok)
}
