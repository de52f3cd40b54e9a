package avro

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/linkedin/goavro/v2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// typed draws a schema and a generator of values that decode to themselves.
type typed struct {
	schema string
	value  *rapid.Generator[any]
}

func boxedGen[T any](g *rapid.Generator[T]) *rapid.Generator[any] {
	return rapid.Map(g, func(v T) any { return v })
}

func leafTypes(n int) []typed {
	return []typed{
		{`"null"`, rapid.Just[any](nil)},
		{`"boolean"`, boxedGen(rapid.Bool())},
		{`"int"`, rapid.Map(rapid.Int32(), func(v int32) any { return int64(v) })},
		{`"long"`, boxedGen(rapid.Int64())},
		{`"float"`, rapid.Map(rapid.Float32(), func(v float32) any { return float64(v) })},
		{`"double"`, boxedGen(rapid.Float64())},
		{`"string"`, boxedGen(rapid.String())},
		{`"bytes"`, rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) any { return append([]byte{}, b...) })},
		{fmt.Sprintf(`{"type":"enum","name":"x.E%d","symbols":["A","B","C"]}`, n), boxedGen(rapid.SampledFrom([]string{"A", "B", "C"}))},
		{fmt.Sprintf(`{"type":"fixed","name":"F%d","size":3}`, n), boxedGen(rapid.SliceOfN(rapid.Byte(), 3, 3))},
		{`{"type":"bytes","logicalType":"decimal","precision":20,"scale":3}`, rapid.Custom(func(t *rapid.T) any {
			return decimalOf(rapid.Int64().Draw(t, "unscaled"), 3)
		})},
	}
}

func decimalOf(unscaled int64, scale int) json.Number {
	return json.Number(new(big.Rat).SetFrac(big.NewInt(unscaled), new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil)).FloatString(scale))
}

// drawType draws a type; names are made unique by the counter.
func drawType(t *rapid.T, levels int, count *int) typed {
	*count++
	leaves := leafTypes(*count)
	pick := rapid.IntRange(0, len(leaves)+3).Draw(t, "type")
	if pick < len(leaves) || levels == 0 {
		return leaves[pick%len(leaves)]
	}
	switch pick - len(leaves) {
	case 0:
		item := drawType(t, levels-1, count)
		return typed{fmt.Sprintf(`{"type":"array","items":%s}`, item.schema), rapid.Map(rapid.SliceOfN(item.value, 0, 5), func(v []any) any {
			return append([]any{}, v...)
		})}
	case 1:
		item := drawType(t, levels-1, count)
		return typed{fmt.Sprintf(`{"type":"map","values":%s}`, item.schema), boxedGen(rapid.MapOfN(rapid.String(), item.value, 0, 5))}
	case 2:
		item := drawType(t, levels-1, count)
		if item.schema == `"null"` || item.schema[0] == '[' {
			return item
		}
		return typed{fmt.Sprintf(`["null",%s]`, item.schema), rapid.OneOf(rapid.Just[any](nil), item.value)}
	}
	name := fmt.Sprintf("R%d", *count)
	fields := make([]typed, rapid.IntRange(0, 4).Draw(t, "fields"))
	texts := make([]string, len(fields))
	for i := range fields {
		fields[i] = drawType(t, levels-1, count)
		texts[i] = fmt.Sprintf(`{"name":"f%d","type":%s}`, i, fields[i].schema)
	}
	return typed{
		fmt.Sprintf(`{"type":"record","name":"%s","fields":[%s]}`, name, strings.Join(texts, ",")),
		rapid.Custom(func(t *rapid.T) any {
			m := map[string]any{}
			_ = rapid.Bool().Draw(t, "a generator has to draw something, also for no fields")
			for i, f := range fields {
				m[fmt.Sprintf("f%d", i)] = f.value.Draw(t, "field")
			}
			return m
		}),
	}
}

func TestRoundTripOfAnySchema(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := 0
		typ := drawType(t, 3, &count)
		c, err := New(typ.schema)
		require.NoError(t, err, typ.schema)
		v := typ.value.Draw(t, "value")
		b, err := c.Append(nil, v)
		require.NoError(t, err, typ.schema)
		got, err := c.Decode(b)
		require.NoError(t, err, typ.schema)
		require.Equal(t, v, got, typ.schema)

		// goavro, given the canonical form, takes the bytes too, and to the last one.
		oracle, err := goavro.NewCodec(c.CanonicalSchema())
		require.NoError(t, err)
		_, rest, err := oracle.NativeFromBinary(b)
		require.NoError(t, err)
		require.Empty(t, rest)

		// goavro writes the same bytes, but for the order of maps.
		if !strings.Contains(typ.schema, `"map"`) {
			native, err := toNative(v, c.root, 0)
			require.NoError(t, err)
			want, err := c.native.BinaryFromNative(nil, native)
			require.NoError(t, err)
			require.Equal(t, want, b, typ.schema)
		}

		// Cut short, it is never a value.
		if len(b) > 0 {
			_, err = c.Decode(b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")])
			require.Error(t, err)
		}
	})
}

func TestDecimalsOfAnyForm(t *testing.T) {
	d := newDecimal(map[string]any{"precision": json.Number("30"), "scale": json.Number("4")}, maxPrecision)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`-?[0-9]{1,12}(\.[0-9]{1,6})?([eE][+-]?[0-9])?`).Draw(t, "text")
		want, ok := new(big.Rat).SetString(text)
		require.True(t, ok)
		scaled := new(big.Rat).Mul(want, big.NewRat(10_000, 1))
		b, err := d.bytes(json.Number(text), 0)
		if !scaled.IsInt() {
			require.ErrorContains(t, err, "digits behind the point")
			return
		}
		require.NoError(t, err)
		got, err := d.text(b)
		require.NoError(t, err)
		require.Equal(t, want.FloatString(4), strings.Replace(string(got), "-0.0000", "0.0000", 1))

		wide, err := d.bytes(json.Number(text), 16)
		require.NoError(t, err)
		require.Len(t, wide, 16)
		same, err := d.text(wide)
		require.NoError(t, err)
		require.Equal(t, got, same)
	})
}

func TestNumbersThatAreNoDecimals(t *testing.T) {
	for _, text := range []string{"", "-", ".", "1.", ".5", "+1", "1e", "1e99999", "0x1", "1_0", "NaN", "--1", "1.2.3", strings.Repeat("1", maxNumberText+1)} {
		_, _, err := parseDecimal(text)
		require.Error(t, err, text)
	}
}

func FuzzAvroDecode(f *testing.F) {
	schemas := []string{
		everything,
		`{"type":"array","items":"null"}`,
		`{"type":"map","values":["null","boolean",{"type":"array","items":{"type":"record","name":"E","fields":[]}}]}`,
		`{"type":"record","name":"L","fields":[{"name":"next","type":["null","L"]},{"name":"kids","type":{"type":"array","items":"L"}}]}`,
		`{"type":"bytes","logicalType":"decimal","precision":12,"scale":4}`,
	}
	codecs := make([]*Codec, len(schemas))
	for i, s := range schemas {
		codecs[i] = codec(f, s)
	}
	b, err := codecs[0].Append(nil, node(node(nil)))
	require.NoError(f, err)
	f.Add(0, b)
	f.Add(1, []byte{0x80, 0x80, 0x80, 0x01, 0})
	f.Add(2, []byte{2, 2, 'a', 4, 2, 0, 0})
	f.Add(3, []byte{2, 2, 0, 0, 0})
	f.Add(4, []byte{4, 0, 0x80})
	f.Fuzz(func(t *testing.T, which int, in []byte) {
		c := codecs[uint(which)%uint(len(codecs))]
		before := bytes.Clone(in)
		var m0, m1 runtime.MemStats
		runtime.ReadMemStats(&m0)
		start := time.Now()
		v, err := c.Decode(in)
		took := time.Since(start)
		runtime.ReadMemStats(&m1)
		require.Equal(t, before, in, "the input was changed")
		require.Less(t, took, 5*time.Second)
		require.Less(t, m1.TotalAlloc-m0.TotalAlloc, uint64(4*(memoryBase+memoryPerByte*len(in))))
		if err != nil {
			require.Nil(t, v)
			return
		}
		once, err := c.Append(nil, v)
		require.NoError(t, err)
		again, err := c.Decode(once)
		require.NoError(t, err)
		twice, err := c.Append(nil, again)
		require.NoError(t, err)
		require.Equal(t, once, twice)
	})
}

func FuzzAvroSchema(f *testing.F) {
	f.Add(everything)
	f.Add(`["null",{"type":"fixed","name":"a.F","size":3,"logicalType":"decimal","precision":2}]`)
	f.Add(`{"type":"record","name":"R","fields":[{"name":"a","type":"R"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := New(text)
		if err != nil {
			return
		}
		again, err := New(c.CanonicalSchema())
		require.NoError(t, err)
		require.Equal(t, c.Name(), again.Name())
		if v, err := c.Decode([]byte{0, 0, 0, 0}); err == nil {
			_, _ = c.Append(nil, v)
		}
	})
}
