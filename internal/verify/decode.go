package verify

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Format says how the values of both topics are written.
type Format string

// The formats.
const (
	// JSON: input objects with an integer amount, output objects with an integer count and sum.
	JSON Format = "json"
	// Binary: the input's amount in the first 8 bytes, the output's count and sum in 16, all big-endian int64.
	Binary Format = "binary"
)

// item is one decoded record. rec and err are set only for a record that could not be decoded.
type item struct {
	key       keyHash
	a, b      int64 // input: amount; output: count, sum
	offset    int64
	partition int32
	rec       *kgo.Record
	err       error
}

// decoder turns records into items; one for each goroutine, since it reuses its buffers.
type decoder interface {
	// decode fills it; ok false means that the record is none of the job's (filtered).
	decode(r *kgo.Record, it *item) (ok bool)
}

type seeds struct{ a, b maphash.Seed }

func newSeeds() seeds { return seeds{maphash.MakeSeed(), maphash.MakeSeed()} }

func (s seeds) hash(key []byte) keyHash {
	return keyHash{maphash.Bytes(s.a, key), maphash.Bytes(s.b, key)}
}

var (
	errNullKey   = errors.New("null key")
	errNullValue = errors.New("null value")
)

// binaryDecoder reads the binary format of either side.
type binaryDecoder struct {
	seeds  seeds
	output bool
}

func (d *binaryDecoder) decode(r *kgo.Record, it *item) bool {
	need := 8
	if d.output {
		need = 16
	}
	switch {
	case r.Key == nil:
		it.err = errNullKey
	case r.Value == nil:
		it.err = errNullValue
	case len(r.Value) < need || (d.output && len(r.Value) != need):
		it.err = fmt.Errorf("value of %d bytes, want %d", len(r.Value), need)
	default:
		it.key = d.seeds.hash(r.Key)
		it.a = int64(binary.BigEndian.Uint64(r.Value))
		if d.output {
			it.b = int64(binary.BigEndian.Uint64(r.Value[8:]))
		}
	}
	return true
}

// integer reads a JSON number that is a whole one; set tells a missing field from 0.
type integer struct {
	v   int64
	set bool
}

// UnmarshalJSON takes 12, 12.0 and 1.2e1, but not 12.5, "12" or null.
func (n *integer) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		f, ferr := strconv.ParseFloat(string(b), 64)
		if ferr != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return fmt.Errorf("%s is not a whole number", b)
		}
		v = int64(f)
	}
	n.v, n.set = v, true
	return nil
}

// jsonDecoder reads objects. encoding/json does best with a struct, so one is made with the fields' names as tags:
// everything else in the object is skipped without an allocation.
type jsonDecoder struct {
	seeds  seeds
	target reflect.Value // pointer to the struct
	fields []*integer    // its number fields, in order: amount, or count and sum
	names  []string
	key    *json.RawMessage // the field that holds the key; nil = the record's key
	where  *json.RawMessage // the field that must equal want; nil = every record counts
	want   string
}

var fieldName = regexp.MustCompile(`^[A-Za-z0-9_.$-]{1,128}$`)

func newJSONDecoder(s seeds, numbers []string, keyField, whereField, whereValue string) *jsonDecoder {
	var fields []reflect.StructField
	add := func(name string, typ reflect.Type) {
		fields = append(fields, reflect.StructField{
			Name: "F" + strconv.Itoa(len(fields)), Type: typ, Tag: reflect.StructTag(`json:"` + name + `"`),
		})
	}
	for _, name := range numbers {
		add(name, reflect.TypeFor[integer]())
	}
	keyAt, whereAt := -1, -1
	if keyField != "" {
		keyAt = len(fields)
		add(keyField, reflect.TypeFor[json.RawMessage]())
	}
	if whereField != "" && whereField == keyField {
		whereAt = keyAt
	} else if whereField != "" {
		whereAt = len(fields)
		add(whereField, reflect.TypeFor[json.RawMessage]())
	}
	d := &jsonDecoder{seeds: s, names: numbers, want: whereValue, target: reflect.New(reflect.StructOf(fields))}
	for i := range numbers {
		d.fields = append(d.fields, d.target.Elem().Field(i).Addr().Interface().(*integer))
	}
	if keyAt >= 0 {
		d.key = d.target.Elem().Field(keyAt).Addr().Interface().(*json.RawMessage)
	}
	if whereAt >= 0 {
		d.where = d.target.Elem().Field(whereAt).Addr().Interface().(*json.RawMessage)
	}
	return d
}

func (d *jsonDecoder) decode(r *kgo.Record, it *item) bool {
	if r.Value == nil {
		it.err = errNullValue
		return true
	}
	for _, f := range d.fields {
		*f = integer{}
	}
	for _, raw := range []*json.RawMessage{d.key, d.where} {
		if raw != nil {
			*raw = (*raw)[:0]
		}
	}
	if err := json.Unmarshal(r.Value, d.target.Interface()); err != nil {
		it.err = err
		return true
	}
	if d.where != nil && plain(*d.where) != d.want {
		return false
	}
	key := r.Key
	if d.key != nil {
		key = []byte(plain(*d.key))
		if len(*d.key) == 0 || string(*d.key) == "null" {
			key = nil
		}
	}
	if key == nil {
		it.err = errNullKey
		return true
	}
	for i, f := range d.fields {
		if !f.set {
			it.err = fmt.Errorf("no field %q", d.names[i])
			return true
		}
	}
	it.key = d.seeds.hash(key)
	it.a = d.fields[0].v
	if len(d.fields) > 1 {
		it.b = d.fields[1].v
	}
	return true
}

// plain gives a JSON string's text, anything else as it is written.
func plain(raw json.RawMessage) string {
	if len(raw) > 0 && raw[0] == '"' {
		var s string
		if json.Unmarshal(raw, &s) == nil {
			return s
		}
	}
	return strings.TrimSpace(string(raw))
}
