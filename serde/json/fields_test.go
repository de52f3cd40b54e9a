package json

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// fieldNames are few, so that random objects have them.
var fieldNames = []string{"a", "b", "ab", "amount", "é", "", `"`, "\u2028", "c", "d", "e"}

// checkFields wants of Fields what Any makes of the same bytes, errors included.
func checkFields(t require.TestingT, in []byte, names []string) {
	want, wantErr := Any().Decode(in)
	out := make([]Value, len(names))
	object, err := NewFields(names...).Decode(in, out)
	m, isObject := want.(map[string]any)
	if !object {
		require.NoError(t, err)
		require.False(t, isObject, "%q", in)
		return
	}
	require.Equal(t, wantErr, err, "%q", in)
	if err != nil {
		return
	}
	for i, name := range names {
		v, has := m[name]
		require.Equal(t, has, out[i].Kind() != KindMissing, "%q %q", in, name)
		require.Equal(t, v, out[i].Any(), "%q %q", in, name)
		if has {
			require.Equal(t, ValueOf(v).Kind(), out[i].Kind())
		}
	}
}

// TestFieldsGivesWhatAnyGives, for right texts and for such with a mistake at any place.
func TestFieldsGivesWhatAnyGives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		object := rapid.MapOfN(rapid.OneOf(rapid.SampledFrom(fieldNames), rapid.String()), values(), 0, 8).Draw(t, "object")
		in, err := Any().Append(nil, object)
		require.NoError(t, err)
		names := fieldNames[:rapid.IntRange(0, len(fieldNames)).Draw(t, "names")]
		switch rapid.IntRange(0, 5).Draw(t, "mistake") {
		case 0:
			in = in[:rapid.IntRange(0, len(in)).Draw(t, "cut")]
		case 1:
			in[rapid.IntRange(0, len(in)-1).Draw(t, "at")] = rapid.SampledFrom([]byte("\x00\x1f \"\\/,:{}[]0-+.eEtfnu\x80\xc3\xff")).Draw(t, "byte")
		case 2:
			at := rapid.IntRange(0, len(in)).Draw(t, "at")
			part := rapid.SampledFrom([]string{" ", "\n", `"a":1,`, `\u0061`, `\ud800`, "1e400", "-0", "0", "\t", "x", "null", `{"a":[{}]}`}).Draw(t, "part")
			in = []byte(string(in[:at]) + part + string(in[at:]))
		}
		checkFields(t, in, names)
	})
}

func TestFieldsOfChosenTexts(t *testing.T) {
	deep := strings.Repeat(`[`, MaxDepth-1) + strings.Repeat(`]`, MaxDepth-1)
	for _, in := range []string{
		``, ` `, `{`, `{}`, ` { } `, `{} x`, `[]`, `null`, `7`, `{"a":1,"a":2}`, `{"a":1,"a":null}`, `{"\u0061":1}`, `{"a":{"a":2},"b":[1,{"a":3}]}`,
		`{"a":9223372036854775808,"b":-0,"ab":1e400,"amount":1.5}`, `{"x":` + deep + `}`, `{"x":[` + deep + `]}`, `{"a":` + deep + `}`, `{"a":[` + deep + `]}`,
		`{"x":01}`, `{"x":1.}`, `{"x":tru}`, `{"x":"\ud800"}`, `{"x":"\uD83D\uDE00"}`, "{\"x\":\"\xff\"}", "{\"\xff\":1}", "{\"x\":\"\x01\"}", `{"x":"\q"}`, `{"x" 1}`, `{"x":1 "a":2}`,
		`{"x":1,}`, `{"x":[1,]}`, `{"x":[1 2]}`, `{"x":{"y"}}`, `{x:1}`, `{"x":nulL}`, `{"a":tru}`, `{"a":"`,
	} {
		checkFields(t, []byte(in), fieldNames)
		checkFields(t, []byte(in), fieldNames[:2])
		checkFields(t, []byte(in), nil)
	}
}

func FuzzFields(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":{"a":[1.5,"\u00e9é"]},"amount":-0}`))
	f.Add([]byte(`{"a":"\ud83d\ude00","x":[[],{}]} `))
	f.Fuzz(func(t *testing.T, in []byte) {
		checkFields(t, in, fieldNames)
		checkFields(t, in, fieldNames[:1])
	})
}

// TestPlainRunStopsAtTheFirst compares with a look at each byte.
func TestPlainRunStopsAtTheFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.OneOf(rapid.ByteRange(' ', 0x7f), rapid.SampledFrom([]byte("!\"#[\\]\x1f \x7f\x80\xa2\xdc")), rapid.Byte()), 0, 40).Draw(t, "bytes")
		want := len(b)
		for i, c := range b {
			if c < ' ' || c == '"' || c == '\\' || c >= 0x80 {
				want = i
				break
			}
		}
		require.Equal(t, want, plainRun(b))
	})
}

func TestValuesAreWrittenAsAnyWritesThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.OneOf(values(), rapid.Just[any](math.NaN()), rapid.Just[any](Number("x")), rapid.Just[any]("\xff"), rapid.Just[any]([]byte("ab"))).Draw(t, "value")
		v := ValueOf(a)
		if f, ok := a.(float64); !ok || f == f {
			require.Equal(t, a, v.Any())
		}
		want, wantErr := Any().Append([]byte("before"), a)
		got, err := AppendValue([]byte("before"), &v)
		require.Equal(t, wantErr, err)
		require.Equal(t, string(want), string(got))
	})
	var missing Value
	got, err := AppendValue(nil, &missing)
	require.NoError(t, err)
	require.Equal(t, "null", string(got))
}

func BenchmarkFields(b *testing.B) {
	in := []byte(`{"order_id":"o-17","customer":"anna","amount":1250,"status":"paid","placed_at":1767225600000}`)
	f := NewFields("amount", "order_id")
	out := make([]Value, f.Len())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Decode(in, out); err != nil {
			b.Fatal(err)
		}
	}
}
