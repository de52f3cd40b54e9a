package pipeline

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"unsafe"
)

// The tags of stored values. They are part of the state format: none is ever given another meaning.
const (
	tagNull   byte = 0
	tagFalse  byte = 1
	tagTrue   byte = 2
	tagInt    byte = 3 // 8 bytes, big endian, two's complement
	tagFloat  byte = 4 // 8 bytes, big endian, IEEE 754
	tagText   byte = 5 // uvarint length, bytes
	tagBytes  byte = 6 // uvarint length, bytes
	tagNumber byte = 7 // a number beyond int64, as its digits: uvarint length, bytes
	tagList   byte = 8 // uvarint count, values
	tagObject byte = 9 // uvarint count, pairs of text (without tag) and value, sorted by text
)

var errDamaged = errors.New("stored accumulator is damaged")

// appendValue encodes a normalised value. Equal values give equal bytes.
func appendValue(b []byte, v any, depth int) ([]byte, error) {
	if depth > maxValueDepth {
		return b, errTooDeep
	}
	switch v := v.(type) {
	case nil:
		return append(b, tagNull), nil
	case bool:
		if v {
			return append(b, tagTrue), nil
		}
		return append(b, tagFalse), nil
	case int64:
		return binary.BigEndian.AppendUint64(append(b, tagInt), uint64(v)), nil
	case float64:
		return binary.BigEndian.AppendUint64(append(b, tagFloat), math.Float64bits(v)), nil
	case string:
		return appendText(append(b, tagText), v), nil
	case []byte:
		return appendText(append(b, tagBytes), string(v)), nil
	case json.Number:
		return appendText(append(b, tagNumber), string(v)), nil
	case []any:
		b = binary.AppendUvarint(append(b, tagList), uint64(len(v)))
		var err error
		for _, e := range v {
			if b, err = appendValue(b, e, depth+1); err != nil {
				return b, err
			}
		}
		return b, nil
	case map[string]any:
		return appendObject(b, v, depth)
	}
	return b, errors.New("cannot be stored: " + describe(v))
}

func appendObject(b []byte, m map[string]any, depth int) ([]byte, error) {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b = binary.AppendUvarint(append(b, tagObject), uint64(len(m)))
	var err error
	for _, k := range keys {
		if b, err = appendValue(appendText(b, k), m[k], depth+1); err != nil {
			return b, err
		}
	}
	return b, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// decoder reads stored values. The first mistake ends it: then every reading gives zero and bad is set.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) fail() {
	d.b, d.bad = nil, true
}

// peek gives the next byte and leaves it; at the end 0.
func (d *decoder) peek() byte {
	if len(d.b) == 0 {
		return 0
	}
	return d.b[0]
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *decoder) uint64() uint64 {
	if len(d.b) < 8 {
		d.fail()
		return 0
	}
	v := binary.BigEndian.Uint64(d.b)
	d.b = d.b[8:]
	return v
}

// length reads a count of things that take at least one byte each, so that no more is allocated than was stored.
func (d *decoder) length() int {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > uint64(len(d.b)-n) {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return int(v)
}

func (d *decoder) text() string {
	n := d.length()
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

// borrow is text without a copy: it lasts as long as the stored bytes.
func (d *decoder) borrow() string {
	n := d.length()
	s := textOf(d.b[:n])
	d.b = d.b[n:]
	return s
}

// textOf gives bytes as a text without a copy.
func textOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// skip reads a value and checks it as value does, without making it.
func (d *decoder) skip(depth int) {
	if depth > maxValueDepth {
		d.fail()
		return
	}
	switch tag := d.byte(); tag {
	case tagNull, tagFalse, tagTrue:
	case tagInt, tagFloat:
		d.uint64()
	case tagText, tagBytes, tagNumber:
		d.borrow()
	case tagList, tagObject:
		for range d.length() {
			if d.bad {
				return
			}
			if tag == tagObject {
				d.borrow()
			}
			d.skip(depth + 1)
		}
	default:
		d.fail()
	}
}

func (d *decoder) value(depth int) any {
	if depth > maxValueDepth {
		d.fail()
		return nil
	}
	switch d.byte() {
	case tagNull:
		return nil
	case tagFalse:
		return false
	case tagTrue:
		return true
	case tagInt:
		return int64(d.uint64())
	case tagFloat:
		return math.Float64frombits(d.uint64())
	case tagText:
		return d.text()
	case tagBytes:
		return []byte(d.text())
	case tagNumber:
		return json.Number(d.text())
	case tagList:
		n := d.length()
		out := make([]any, 0, min(n, 1024))
		for range n {
			if d.bad {
				return nil
			}
			out = append(out, d.value(depth+1))
		}
		return out
	case tagObject:
		n := d.length()
		out := make(map[string]any, min(n, 1024))
		for range n {
			if d.bad {
				return nil
			}
			k := d.text()
			out[k] = d.value(depth + 1)
		}
		return out
	}
	d.fail()
	return nil
}
