package avro

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linkedin/goavro/v2"
	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/serde"
)

var _ serde.Serde[any] = (*Codec)(nil)

func codec(t testing.TB, schema string) *Codec {
	t.Helper()
	c, err := New(schema)
	require.NoError(t, err)
	return c
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

// everything is a schema with all types, recursion included.
const everything = `{
  "type": "record", "name": "Node", "namespace": "a.b", "doc": "x",
  "fields": [
    {"name": "null", "type": "null"},
    {"name": "flag", "type": "boolean", "default": true},
    {"name": "int", "type": "int"},
    {"name": "long", "type": {"type": "long"}},
    {"name": "float", "type": "float"},
    {"name": "double", "type": "double"},
    {"name": "bytes", "type": "bytes"},
    {"name": "string", "type": "string"},
    {"name": "enum", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}},
    {"name": "fixed", "type": {"type": "fixed", "name": "other.Four", "size": 4}},
    {"name": "array", "type": {"type": "array", "items": ["null", "Color"]}},
    {"name": "map", "type": {"type": "map", "values": "other.Four"}},
    {"name": "union", "type": ["null", "long", "string", "bytes", {"type": "array", "items": "double"}, "Node"]},
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "next", "type": ["null", "Node"], "default": null}
  ]}`

func node(next any) map[string]any {
	return map[string]any{
		"null": nil, "flag": false, "int": int64(-7), "long": int64(math.MinInt64), "float": 0.5, "double": 0.1,
		"bytes": []byte{0, 255}, "string": "é", "enum": "GREEN", "fixed": []byte("abcd"),
		"array": []any{nil, "RED"}, "map": map[string]any{"k": []byte("wxyz")},
		"union": []any{1.5}, "amount": json.Number("-12.30"), "at": int64(-1), "next": next,
	}
}

func TestRoundTripOfEveryType(t *testing.T) {
	c := codec(t, everything)
	v := node(node(nil))
	v["union"] = node(nil)
	b, err := c.Append([]byte("before"), v)
	require.NoError(t, err)
	require.Equal(t, "before", string(b[:6]))
	got, err := c.Decode(b[6:])
	require.NoError(t, err)
	require.Equal(t, any(v), got)
}

// TestGoavroReadsTheSameBytes compares with goavro on the original schema.
func TestGoavroReadsTheSameBytes(t *testing.T) {
	c := codec(t, everything)
	b, err := c.Append(nil, node(nil))
	require.NoError(t, err)
	oracle, err := goavro.NewCodec(everything)
	require.NoError(t, err)
	native, rest, err := oracle.NativeFromBinary(b)
	require.NoError(t, err)
	require.Empty(t, rest)
	m := native.(map[string]any)
	require.Equal(t, int64(math.MinInt64), m["long"])
	require.Equal(t, []any{nil, map[string]any{"a.b.Color": "RED"}}, m["array"])
	again, err := oracle.BinaryFromNative(nil, native)
	require.NoError(t, err)
	require.Equal(t, b, again)
}

func TestEqualMapsHaveEqualBytes(t *testing.T) {
	inner := map[string]any{}
	for i := range 8 {
		inner[string(rune('a'+i))] = int64(i)
	}
	for schema, v := range map[string]any{
		`{"type":"map","values":"long"}`: inner, `{"type":"array","items":["null",{"type":"map","values":"long"}]}`: []any{nil, inner},
		`{"type":"record","name":"R","fields":[{"name":"m","type":{"type":"map","values":"long"},"default":{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8}}]}`: map[string]any{},
	} {
		c := codec(t, schema)
		want, err := c.Append(nil, v)
		require.NoError(t, err)
		for range 20 {
			got, err := c.Append(nil, v)
			require.NoError(t, err)
			require.Equal(t, want, got, schema)
		}
	}
	b, err := codec(t, `{"type":"map","values":"string"}`).Append(nil, map[string]any{"b": "2", "": "0", "a": "1"})
	require.NoError(t, err)
	require.Equal(t, []byte("\x06\x00\x020\x02a\x021\x02b\x022\x00"), b)
}

func TestNameIsTheFingerprintOfTheCanonicalForm(t *testing.T) {
	// The two of primitive types are from the Avro specification's test data.
	for schema, want := range map[string]string{
		`"int"`:                        "avro:7275d51a3f395c8f",
		`"string"`:                     "avro:8f014872634503c7",
		` {"type" : "int", "doc":"x"}`: "avro:7275d51a3f395c8f",
	} {
		require.Equal(t, want, codec(t, schema).Name(), schema)
	}
	c := codec(t, everything)
	for range 20 {
		require.Equal(t, c.Name(), codec(t, everything).Name())
	}
	require.Equal(t, c.Name(), codec(t, c.CanonicalSchema()).Name(), "the canonical form is its own canonical form")
	oracle, err := goavro.NewCodec(c.CanonicalSchema())
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("avro:%016x", oracle.Rabin), c.Name())
	require.Contains(t, c.CanonicalSchema(), `{"name":"a.b.Node","type":"record","fields":[{"name":"null","type":"null"}`)
	require.Contains(t, c.CanonicalSchema(), `{"name":"next","type":["null","a.b.Node"]}`)
}

func TestFromFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "node.avsc")
	require.NoError(t, os.WriteFile(path, []byte(everything), 0o600))
	c, err := FromFile(path)
	require.NoError(t, err)
	require.Equal(t, codec(t, everything).Name(), c.Name())

	_, err = FromFile(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)

	require.NoError(t, os.WriteFile(path, []byte(`"nothing"`), 0o600))
	_, err = FromFile(path)
	require.EqualError(t, err, path+`: avro schema: unknown type "nothing"`)

	require.NoError(t, os.WriteFile(path, make([]byte, MaxSchemaBytes+1), 0o600))
	_, err = FromFile(path)
	require.EqualError(t, err, path+`: avro schema: longer than 262144 bytes`)
}

func TestSchemasThatAreRefused(t *testing.T) {
	for schema, want := range map[string]string{
		``:                 "not JSON: EOF",
		`{`:                "not JSON: unexpected EOF",
		`"int" "int"`:      "bytes left over behind the schema",
		`1`:                "a type is a string, an array or an object, not a number",
		`{}`:               `an object without "type"`,
		`[]`:               "a union without branches",
		`["int",["null"]]`: "a union directly in a union",
		`["int","int"]`:    "union with two branches int",
		`[{"type":"array","items":"int"},{"type":"array","items":"long"}]`: "union with two branches array",
		`{"type":"array"}`:                                                                            "items of array: a type is a string, an array or an object, not null",
		`{"type":"record","name":"R"}`:                                                                "record R: no array of fields",
		`{"type":"record","name":"1R","fields":[]}`:                                                   `record with the invalid name "1R"`,
		`{"type":"record","fields":[]}`:                                                               `record with the invalid name ""`,
		`{"type":"record","name":"int","fields":[]}`:                                                  "record with the name of the type int",
		`{"type":"record","name":"R","namespace":3,"fields":[]}`:                                      `record "R": the namespace is not a string`,
		`{"type":"record","name":"R","fields":[{"name":"a"}]}`:                                        `record R field a: no "type"`,
		`{"type":"record","name":"R","fields":[{"type":"int"}]}`:                                      "record R: field 0 has no valid name",
		`{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}`: "record R: two fields a",
		`{"type":"record","name":"R","fields":[{"name":"a","type":"S"}]}`:                             `record R field a: unknown type "S"`,
		`[{"type":"fixed","name":"F","size":1},{"type":"fixed","name":"F","size":2}]`:                 "branch 1 of union: two types F",
		`{"type":"enum","name":"E"}`:                                                                  "enum E: no symbols",
		`{"type":"enum","name":"E","symbols":["A","A"]}`:                                              "enum E: two symbols A",
		`{"type":"enum","name":"E","symbols":["a b"]}`:                                                "enum E: symbol 0 is not valid",
		`{"type":"fixed","name":"F","size":0}`:                                                        "fixed F: the size is not a number from 1 to 16777216",
		`{"type":"fixed","name":"F","size":1e9}`:                                                      "fixed F: the size is not a number from 1 to 16777216",
		`{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}`:             `record R field a: default: the string "x" is no int`,
		`{"type":"record","name":"R","fields":[{"name":"a","type":["int","null"],"default":"x"}]}`:    `record R field a: default: the string "x" is no member of the union [int, null]`,
		strings.Repeat(`{"type":"array","items":`, 70) + `"int"` + strings.Repeat("}", 70):            strings.Repeat("items of array: ", 64) + "nested deeper than 64",
	} {
		_, err := New(schema)
		require.EqualError(t, err, "avro schema: "+want, schema)
	}
}

// TestDefaultsOfAnySizeAreRefused: twenty records of two fields each stand for a million values.
func TestDefaultsOfAnySizeAreRefused(t *testing.T) {
	inner := `{"type":"record","name":"R0","fields":[{"name":"x","type":"int","default":0}]}`
	for i := 1; i <= 20; i++ {
		inner = fmt.Sprintf(`{"type":"record","name":"R%d","fields":[{"name":"a","type":%s,"default":{}},{"name":"b","type":"R%d","default":{}}]}`, i, inner, i-1)
	}
	_, err := New(inner)
	require.ErrorContains(t, err, "default: more than 65536 parts")
}

func TestDataThatIsRefused(t *testing.T) {
	list := `{"type":"record","name":"L","fields":[{"name":"next","type":["null","L"]}]}`
	for _, c := range []struct{ schema, data, want string }{
		{`"int"`, "", "the data ends within a value (at byte 0)"},
		{`"int"`, "02 ff", "1 bytes left over behind the value"},
		{`"null"`, "00", "1 bytes left over behind the value"},
		{`"int"`, "80 80 80 80 10", "2147483648 is no int (at byte 5)"},
		{`"long"`, "ff ff ff ff ff ff ff ff ff 02", "a number of more than 64 bits (at byte 9)"},
		{`"long"`, "80 80 80 80 80 80 80 80 80 80 80 00", "a number of more than 64 bits (at byte 9)"},
		{`"boolean"`, "02", "0x02 is no boolean (at byte 0)"},
		{`"string"`, "01", "negative length -1 (at byte 1)"},
		{`"bytes"`, "06 61 62", "the data ends within a value (at byte 1)"},
		{`"string"`, "fe ff ff ff 0f 61", "the data ends within a value (at byte 5)"},
		{`"double"`, "00 00", "the data ends within a value (at byte 0)"},
		{`["null","int"]`, "04", "union has 2 members, no member 2 (at byte 1)"},
		{`["null","int"]`, "01", "union has 2 members, no member -1 (at byte 1)"},
		{`{"type":"enum","name":"E","symbols":["A"]}`, "02", "enum E has 1 members, no member 1 (at byte 1)"},
		{`{"type":"fixed","name":"F","size":2}`, "00", "the data ends within a value (at byte 0)"},
		{`{"type":"array","items":"long"}`, "fe ff ff ff 0f", "block of 2147483647 items; at most 1048576 are allowed (at byte 5)"},
		{`{"type":"array","items":"long"}`, "ff ff ff ff ff ff ff ff ff 01 02", "block of -9223372036854775808 items; at most 1048576 are allowed (at byte 11)"},
		{`{"type":"array","items":"long"}`, "80 80 40 02", "the data ends within a value (at byte 4)"},
		{`{"type":"array","items":"long"}`, "01 04 02 00", "block of 1 bytes says that it has 2 (at byte 3)"},
		{`{"type":"array","items":"long"}`, "01 01 02 00", "block of -1 bytes; at most 16777216 are allowed (at byte 2)"},
		{`{"type":"map","values":"long"}`, "02 02", "the data ends within a value (at byte 2)"},
		{`{"type":"array","items":"null"}`, strings.Repeat("80 80 80 01", 50) + "00", "the value would take too much memory (at byte 12)"},
		{list, strings.Repeat("02", 300) + "00", "nested deeper than 256 (at byte 256)"},
		{`{"type":"bytes","logicalType":"decimal","precision":2}`, "02 64", "a decimal of more than 2 digits"},
		{`{"type":"bytes","logicalType":"decimal","precision":2}`, "04 7f ff", "a decimal of more than 2 digits"},
		{`{"type":"bytes","logicalType":"decimal","precision":2}`, "00", "a decimal of no bytes"},
	} {
		v, err := codec(t, c.schema).Decode(unhex(t, c.data))
		require.EqualError(t, err, "avro: "+c.want, "%s %.40s", c.schema, c.data)
		require.Nil(t, v)
	}
}

// TestValuesOfNoBytesAreBounded: 2^40 values would fit in an empty message.
func TestValuesOfNoBytesAreBounded(t *testing.T) {
	inner := `{"type":"record","name":"R0","fields":[]}`
	for i := 1; i <= 40; i++ {
		inner = fmt.Sprintf(`{"type":"record","name":"R%d","fields":[{"name":"a","type":%s},{"name":"b","type":"R%d"}]}`, i, inner, i-1)
	}
	_, err := codec(t, inner).Decode([]byte{})
	require.ErrorContains(t, err, "the value would take too much memory")
}

func TestEncodeConvertsWithoutLossOrRefuses(t *testing.T) {
	const person = `{"type":"record","name":"P","fields":[{"name":"name","type":"string"},{"name":"age","type":"int","default":-1},{"name":"tag","type":["null","string"],"default":null}]}`
	for _, c := range []struct {
		schema string
		in     any
		want   any    // what comes back
		err    string // or why not
	}{
		{`"int"`, 5.0, int64(5), ""},
		{`"int"`, int64(1) << 31, nil, "2147483648 (int64) is no int"},
		{`"long"`, json.Number("9223372036854775807"), int64(math.MaxInt64), ""},
		{`"long"`, 0.5, nil, "0.5 (float64) is no long"},
		{`"long"`, "5", nil, `the string "5" is no long`},
		{`"float"`, 0.1, float64(float32(0.1)), ""},
		{`"float"`, 1e39, nil, "1e+39 (float64) is no float"},
		{`"double"`, int64(7), 7.0, ""},
		{`"double"`, json.Number("1.10"), 1.1, ""},
		{`"double"`, json.Number("327267367867168100000"), 3.272673678671681e+20, ""},
		{`"double"`, json.Number("327267367867168100001"), nil, "327267367867168100001 (json.Number) is no double"},
		{`"double"`, json.Number("1e400"), nil, "1e400 (json.Number) is no double"},
		{`"boolean"`, nil, nil, "null is no boolean"},
		{`"null"`, false, nil, "false (bool) is no null"},
		{`"bytes"`, "é", []byte("é"), ""},
		{`"string"`, []byte("a"), nil, "a []uint8 is no string"},
		{`{"type":"fixed","name":"F","size":2}`, []byte("abc"), nil, "3 bytes are no fixed F of 2"},
		{`{"type":"enum","name":"E","symbols":["A"]}`, "B", nil, `the string "B" is no enum E`},
		{`{"type":"array","items":"int"}`, []any{int64(1), nil}, nil, "item 1: null is no int"},
		{`{"type":"array","items":"int"}`, []any{}, []any{}, ""},
		{`{"type":"map","values":"int"}`, map[string]any{}, map[string]any{}, ""},
		{`{"type":"map","values":"int"}`, map[string]any{"a": true}, nil, "a: true (bool) is no int"},
		{person, map[string]any{"name": "x"}, map[string]any{"name": "x", "age": int64(-1), "tag": nil}, ""},
		{person, map[string]any{}, nil, "record P: the field name is missing and has no default"},
		{person, map[string]any{"name": "x", "nam": 1, "zzz": 2}, nil, `record P has no field "nam"`},
		{person, map[string]any{"name": nil}, nil, "name: null is no string"},
		{person, "x", nil, `the string "x" is no record P`},
		{`["null","int"]`, "x", nil, `the string "x" is no int`},
		{`["int","string"]`, nil, nil, "null is no member of the union [int, string]"},
		{`["int","string"]`, true, nil, "true (bool) is no member of the union [int, string]"},
		{`["null","long","string"]`, 5.0, int64(5), ""},
		{`["null","long","double"]`, 5.0, 5.0, ""},
		{`["string","long"]`, int64(5), int64(5), ""},
		{`["int","long"]`, int64(1) << 40, int64(1) << 40, ""},
		{`["float","double"]`, 0.1, 0.1, ""},
		{`["null","string",` + person + `]`, map[string]any{"name": "x"}, map[string]any{"name": "x", "age": int64(-1), "tag": nil}, ""},
		{`[{"type":"map","values":"int"},` + person + `]`, map[string]any{"k": int64(1)}, map[string]any{"k": int64(1)}, ""},
		{`["string",{"type":"bytes","logicalType":"decimal","precision":4,"scale":2}]`, json.Number("1.2"), json.Number("1.20"), ""},
	} {
		s := codec(t, c.schema)
		b, err := s.Append([]byte("x"), c.in)
		if c.err != "" {
			require.EqualError(t, err, "avro: "+c.err, c.schema)
			require.Equal(t, "x", string(b))
			continue
		}
		require.NoError(t, err, "%s %v", c.schema, c.in)
		got, err := s.Decode(b[1:])
		require.NoError(t, err)
		require.Equal(t, c.want, got, c.schema)
	}
}

func TestEncodeDoesNotFollowCycles(t *testing.T) {
	loop := map[string]any{}
	loop["next"] = loop
	_, err := codec(t, `{"type":"record","name":"L","fields":[{"name":"next","type":["null","L"]}]}`).Append(nil, loop)
	require.ErrorContains(t, err, "nested deeper than 256")
}

// TestC38_NullableEnumInANamespace: the plain symbol is enough, and the bytes are those of the specification.
func TestC38_NullableEnumInANamespace(t *testing.T) {
	c := codec(t, `{"type":"record","name":"E","namespace":"com.foo.bar","fields":[
		{"name":"event","type":["null",{"type":"enum","name":"Ev","symbols":["CREATED","UPDATED"]}]}]}`)
	b, err := c.Append(nil, map[string]any{"event": "CREATED"})
	require.NoError(t, err)
	require.Equal(t, []byte{0x02, 0x00}, b)
	b, err = c.Append(nil, map[string]any{"event": nil})
	require.NoError(t, err)
	require.Equal(t, []byte{0x00}, b)
}

// TestC41_LogicalTypes: decimals are exact both ways, invalid logical types fall back, nothing is rounded.
func TestC41_LogicalTypes(t *testing.T) {
	const money = `{"type":"bytes","logicalType":"decimal","precision":10,"scale":2}`
	for _, c := range []struct {
		schema, data string
		want         any
	}{
		{money, "02 ff", json.Number("-0.01")},
		{money, "04 00 80", json.Number("1.28")},
		{money, "02 00", json.Number("0.00")},
		{money, "02 80", json.Number("-1.28")},
		{money, "04 ff 7f", json.Number("-1.29")},
		{`{"type":"bytes","logicalType":"decimal","precision":2,"scale":3}`, "02 ff", []byte{0xff}},
		{`{"type":"bytes","logicalType":"decimal","precision":0}`, "02 ff", []byte{0xff}},
		{`{"type":"bytes","logicalType":"decimal"}`, "02 ff", []byte{0xff}},
		{`{"type":"fixed","name":"F","size":2,"logicalType":"decimal","precision":4,"scale":1}`, "ff fe", json.Number("-0.2")},
		{`{"type":"fixed","name":"F","size":2,"logicalType":"decimal","precision":5}`, "ff fe", []byte{0xff, 0xfe}},
		{`{"type":"long","logicalType":"timestamp-millis"}`, "01", int64(-1)},
		{`{"type":"long","logicalType":"local-timestamp-millis"}`, "01", int64(-1)},
		{`{"type":"int","logicalType":"time-millis"}`, "02", int64(1)},
		{`{"type":"string","logicalType":"uuid"}`, "02 61", "a"},
		{`{"type":"string","logicalType":"validated-string"}`, "02 61", "a"},
	} {
		s := codec(t, c.schema)
		got, err := s.Decode(unhex(t, c.data))
		require.NoError(t, err, c.schema)
		require.Equal(t, c.want, got, c.schema)
		back, err := s.Append(nil, got)
		require.NoError(t, err, c.schema)
		require.Equal(t, unhex(t, c.data), back, c.schema)
	}
	third := 1.0 / 3
	_, err := codec(t, money).Append(nil, third)
	require.EqualError(t, err, "avro: 0.3333333333333333 has more than 2 digits behind the point")

	withDefault := codec(t, `{"type":"record","name":"R","fields":[{"name":"d","type":`+money+`,"default":"\u0000"}]}`)
	b, err := withDefault.Append(nil, map[string]any{})
	require.NoError(t, err)
	require.Equal(t, unhex(t, "02 00"), b)

	double := codec(t, `"double"`)
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1)} {
		b, err := double.Append(nil, f)
		require.NoError(t, err)
		v, err := double.Decode(b)
		require.NoError(t, err)
		require.Equal(t, math.Float64bits(f), math.Float64bits(v.(float64)))
	}
}

func TestSharedByGoroutines(t *testing.T) {
	c := codec(t, everything)
	for range 4 {
		t.Run("worker", func(t *testing.T) {
			t.Parallel()
			for range 50 {
				b, err := c.Append(nil, node(node(nil)))
				require.NoError(t, err)
				_, err = c.Decode(b)
				require.NoError(t, err)
			}
		})
	}
}
