package verify

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
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
	// JSON: input objects with an amount, output objects with a whole count and a sum.
	JSON Format = "json"
	// Binary: the input's amount in the first 8 bytes, the output's count and sum in 16, all big-endian int64.
	Binary Format = "binary"
)

// item is one decoded record. rec and err are set only for a record that could not be decoded.
type item struct {
	key       keyHash
	count     int64  // of an output
	n         number // amount of an input, sum of an output
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
	errFraction  = errors.New("an amount with a fraction")
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
		first := int64(binary.BigEndian.Uint64(r.Value))
		if it.n = whole(first); d.output {
			it.count, it.n = first, whole(int64(binary.BigEndian.Uint64(r.Value[8:])))
		}
	}
	return true
}

// jsonDecoder reads objects. encoding/json does best with a struct, so one is made with the fields' names as tags:
// everything else in the object is skipped without an allocation.
type jsonDecoder struct {
	seeds  seeds
	target reflect.Value // pointer to the struct
	fields []*field      // its number fields, in order: amount, or count and sum
	names  []string
	// wholeOnly refuses amounts with a fraction.
	wholeOnly bool
	key       *json.RawMessage // the field that holds the key; nil = the record's key
	where     *json.RawMessage // the field that must equal want; nil = every record counts
	want      string
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
		add(name, reflect.TypeFor[field]())
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
		d.fields = append(d.fields, d.target.Elem().Field(i).Addr().Interface().(*field))
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
		*f = field{}
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
	it.err = d.numbers(it)
	return true
}

// numbers takes over the number fields.
func (d *jsonDecoder) numbers(it *item) error {
	n := *d.fields[0]
	if len(d.fields) > 1 {
		count := n.plain()
		it.count, it.n = count.bits, d.fields[1].plain()
		if count.float {
			return fmt.Errorf("%s is not a whole number", count)
		}
		return nil
	}
	switch it.n = n.number; {
	case n.huge:
		return fmt.Errorf("%s is not within int64", n)
	case d.wholeOnly && n.fraction():
		return errFraction
	}
	return nil
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
