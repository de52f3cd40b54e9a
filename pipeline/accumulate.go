package pipeline

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"

	"github.com/millweir/millweir/topology"
)

// aggFunc is one of the functions that an aggregate knows.
type aggFunc string

const (
	aggCount aggFunc = "count"
	aggSum   aggFunc = "sum"
	aggAvg   aggFunc = "avg"
	aggMin   aggFunc = "min"
	aggMax   aggFunc = "max"
	aggFirst aggFunc = "first"
	aggLast  aggFunc = "last"
)

var aggFuncs = []string{"count", "sum", "avg", "min", "max", "first", "last"}

// cell is the accumulator of one output field. Numbers are kept without an interface, so that folding them does not
// allocate.
type cell struct {
	n     int64 // count and avg: records seen; first: 1 once there was one
	kind  cellKind
	whole int64   // when kind is cellInt
	float float64 // when kind is cellFloat
	other any     // when kind is cellOther
}

type cellKind uint8

const (
	cellEmpty cellKind = iota
	cellInt
	cellFloat
	cellOther
)

func (c *cell) set(v any) {
	switch v := v.(type) {
	case int64:
		c.kind, c.whole = cellInt, v
	case float64:
		c.kind, c.float = cellFloat, v
	default:
		c.kind, c.other = cellOther, v
	}
}

// get gives what set took; nil when it was not called.
func (c *cell) get() any {
	switch c.kind {
	case cellInt:
		return c.whole
	case cellFloat:
		return c.float
	case cellOther:
		return c.other
	}
	return nil
}

// width is the encoded size of a function's cells, 0 when it varies.
func (f aggFunc) width() int {
	switch f {
	case aggCount:
		return 8
	case aggSum:
		return 9
	case aggAvg:
		return 17
	}
	return 0
}

// add folds one value into the cell. On an error the cell may be changed: the caller drops it.
func (c *cell) add(f aggFunc, v any) error {
	switch f {
	case aggCount, aggAvg:
		if c.n == math.MaxInt64 {
			return topology.ErrOverflow
		}
		c.n++
	}
	switch f {
	case aggSum, aggAvg:
		return c.addNumber(v)
	case aggMin, aggMax:
		return c.keepExtreme(f, v)
	case aggLast:
		c.set(v)
	case aggFirst:
		if c.n == 0 {
			c.set(v)
		}
		c.n = 1
	}
	return nil
}

// addNumber keeps sums of whole numbers exact. From the first float on the sum is a float.
func (c *cell) addNumber(v any) error {
	if err := checkNumber(v); err != nil {
		return err
	}
	whole, isWhole := v.(int64)
	switch {
	case c.kind == cellEmpty:
		c.set(v)
	case c.kind == cellInt && isWhole:
		sum, ok := addInt64(c.whole, whole)
		if !ok {
			return topology.ErrOverflow
		}
		c.whole = sum
	default:
		c.kind, c.float = cellFloat, c.asFloat()+asFloat(v)
	}
	return nil
}

// asFloat is the number in the cell.
func (c *cell) asFloat() float64 {
	if c.kind == cellInt {
		return float64(c.whole)
	}
	return c.float
}

func checkNumber(v any) error {
	switch v.(type) {
	case int64, float64:
		return nil
	case json.Number:
		return topology.ErrOverflow
	}
	return fmt.Errorf("expected a number, found %s", describe(v))
}

func asFloat(v any) float64 {
	if i, ok := v.(int64); ok {
		return float64(i)
	}
	f, _ := v.(float64)
	return f
}

// keepExtreme compares numbers by their exact values and texts by their bytes; the two have no common order. Of equal
// ones the first stays.
func (c *cell) keepExtreme(f aggFunc, v any) error {
	if _, isText := v.(string); !isText {
		if err := checkNumber(v); err != nil {
			if errors.Is(err, topology.ErrOverflow) {
				return err
			}
			return fmt.Errorf("expected a number or a text, found %s", describe(v))
		}
	}
	if x, ok := v.(float64); ok && x != x {
		return topology.ErrNaN
	}
	if c.kind == cellEmpty {
		c.set(v)
		return nil
	}
	order, err := compare(v, c.get())
	if err != nil {
		return err
	}
	if f == aggMin && order < 0 || f == aggMax && order > 0 {
		c.set(v)
	}
	return nil
}

func compare(a, b any) (int, error) {
	as, aText := a.(string)
	bs, bText := b.(string)
	switch {
	case aText && bText:
		return strings.Compare(as, bs), nil
	case aText != bText:
		return 0, fmt.Errorf("%s cannot be compared with %s, which came before", describe(a), describe(b))
	}
	ai, aInt := a.(int64)
	bi, bInt := b.(int64)
	switch {
	case aInt && bInt:
		return cmp.Compare(ai, bi), nil
	case aInt:
		return -compareFloatInt(b.(float64), ai), nil
	case bInt:
		return compareFloatInt(a.(float64), bi), nil
	}
	return cmp.Compare(a.(float64), b.(float64)), nil
}

// compareFloatInt compares exactly; converting the integer to a float64 would make neighbours equal above 2^53.
func compareFloatInt(f float64, i int64) int {
	if math.IsInf(f, 0) || math.Abs(f) < 1<<52 && i > -1<<52 && i < 1<<52 {
		return cmp.Compare(f, float64(i))
	}
	return big.NewFloat(f).Cmp(new(big.Float).SetInt64(i))
}

// result is the value of the output field.
func (c *cell) result(f aggFunc) any {
	switch f {
	case aggCount:
		return c.n
	case aggAvg:
		return c.asFloat() / float64(c.n)
	}
	return c.get()
}

func (c *cell) append(b []byte, f aggFunc) ([]byte, error) {
	switch f {
	case aggCount:
		return binary.BigEndian.AppendUint64(b, uint64(c.n)), nil
	case aggAvg:
		b = binary.BigEndian.AppendUint64(b, uint64(c.n))
	}
	switch c.kind {
	case cellInt:
		return binary.BigEndian.AppendUint64(append(b, tagInt), uint64(c.whole)), nil
	case cellFloat:
		return binary.BigEndian.AppendUint64(append(b, tagFloat), math.Float64bits(c.float)), nil
	}
	return appendValue(b, c.other, 0)
}

// read is the inverse of append. What append would not have written is damage.
func (c *cell) read(d *decoder, f aggFunc) {
	*c = cell{}
	if f == aggCount || f == aggAvg {
		c.n = int64(d.uint64())
	}
	if f == aggCount {
		return
	}
	if f == aggFirst {
		c.n = 1
	}
	switch d.peek() {
	case tagInt:
		d.byte()
		c.kind, c.whole = cellInt, int64(d.uint64())
		return
	case tagFloat:
		d.byte()
		c.kind, c.float = cellFloat, math.Float64frombits(d.uint64())
		return
	}
	c.set(d.value(0))
	_, isText := c.other.(string)
	switch f {
	case aggMin, aggMax:
		d.bad = d.bad || !isText
	case aggSum, aggAvg:
		d.bad = true
	}
}
