package pipeline

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"

	"github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

// aggFunc is one of the functions that an aggregate knows. It is a number, as folding asks for it all the time.
type aggFunc uint8

// In the order of aggFuncs.
const (
	aggCount aggFunc = iota
	aggSum
	aggAvg
	aggMin
	aggMax
	aggFirst
	aggLast
)

var aggFuncs = []string{"count", "sum", "avg", "min", "max", "first", "last"}

func (f aggFunc) String() string { return aggFuncs[f] }

// cell is the accumulator of one output field.
type cell struct {
	n int64 // count and avg: records seen; first: 1 once there was one
	// v is what else is kept; missing when there was no record.
	v json.Value
	// borrowed says that the text of v is that of the stored accumulator, which does not last.
	borrowed bool
}

func (c *cell) set(v json.Value) { c.v, c.borrowed = v, false }

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
func (c *cell) add(f aggFunc, v *json.Value) error {
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
		c.set(*v)
	case aggFirst:
		if c.n == 0 {
			c.set(*v)
		}
		c.n = 1
	}
	return nil
}

// addNumber keeps sums of whole numbers exact. From the first float on the sum is a float, which is finite as long as what
// comes is.
func (c *cell) addNumber(v *json.Value) error {
	if err := checkNumber(v); err != nil {
		return err
	}
	switch {
	case c.v.Kind() == json.KindMissing:
		c.set(*v)
	case c.v.Kind() == json.KindInt && v.Kind() == json.KindInt:
		sum, ok := addInt64(c.v.Int(), v.Int())
		if !ok {
			return topology.ErrOverflow
		}
		c.v = json.IntValue(sum)
	default:
		a, b := asFloat(&c.v), asFloat(v)
		sum := a + b
		if math.IsInf(sum, 0) && !math.IsInf(a, 0) && !math.IsInf(b, 0) {
			return floatOverflow{} // an infinite sum would stay so, and JSON has no form for it
		}
		c.v = json.FloatValue(sum)
	}
	return nil
}

// floatOverflow is the topology.ErrOverflow of floats.
type floatOverflow struct{}

func (floatOverflow) Error() string { return "float64 overflow" }

func (floatOverflow) Unwrap() error { return topology.ErrOverflow }

func checkNumber(v *json.Value) error {
	switch v.Kind() {
	case json.KindInt, json.KindFloat:
		return nil
	case json.KindNumber:
		return topology.ErrOverflow
	}
	return fmt.Errorf("expected a number, found %s", describe(v.Any()))
}

func asFloat(v *json.Value) float64 {
	if v.Kind() == json.KindInt {
		return float64(v.Int())
	}
	return v.Float()
}

// keepExtreme compares numbers by their exact values and texts by their bytes; the two have no common order. Of equal
// ones the first stays.
func (c *cell) keepExtreme(f aggFunc, v *json.Value) error {
	if v.Kind() != json.KindText {
		if err := checkNumber(v); err != nil {
			if errors.Is(err, topology.ErrOverflow) {
				return err
			}
			return fmt.Errorf("expected a number or a text, found %s", describe(v.Any()))
		}
	}
	if v.Kind() == json.KindFloat && v.Float() != v.Float() {
		return topology.ErrNaN
	}
	if c.v.Kind() == json.KindMissing {
		c.set(*v)
		return nil
	}
	order, err := compare(v, &c.v)
	if err != nil {
		return err
	}
	if f == aggMin && order < 0 || f == aggMax && order > 0 {
		c.set(*v)
	}
	return nil
}

// compare orders two numbers or two texts.
func compare(a, b *json.Value) (int, error) {
	aText, bText := a.Kind() == json.KindText, b.Kind() == json.KindText
	switch {
	case aText && bText:
		return strings.Compare(a.Text(), b.Text()), nil
	case aText != bText:
		return 0, fmt.Errorf("%s cannot be compared with %s, which came before", describe(a.Any()), describe(b.Any()))
	}
	aInt, bInt := a.Kind() == json.KindInt, b.Kind() == json.KindInt
	switch {
	case aInt && bInt:
		return cmp.Compare(a.Int(), b.Int()), nil
	case aInt:
		return -compareFloatInt(b.Float(), a.Int()), nil
	case bInt:
		return compareFloatInt(a.Float(), b.Int()), nil
	}
	return cmp.Compare(a.Float(), b.Float()), nil
}

// compareFloatInt compares exactly; converting the integer to a float64 would make neighbours equal above 2^53.
func compareFloatInt(f float64, i int64) int {
	if math.IsInf(f, 0) || math.Abs(f) < 1<<52 && i > -1<<52 && i < 1<<52 {
		return cmp.Compare(f, float64(i))
	}
	return big.NewFloat(f).Cmp(new(big.Float).SetInt64(i))
}

// result is the value of the output field.
func (c *cell) result(f aggFunc) json.Value {
	switch {
	case f == aggCount:
		return json.IntValue(c.n)
	case f == aggAvg:
		return json.FloatValue(asFloat(&c.v) / float64(c.n))
	case c.v.Kind() == json.KindText && c.borrowed:
		return json.TextValue(strings.Clone(c.v.Text()))
	}
	return c.v
}

func (c *cell) append(b []byte, f aggFunc) ([]byte, error) {
	switch f {
	case aggCount:
		return binary.BigEndian.AppendUint64(b, uint64(c.n)), nil
	case aggAvg:
		b = binary.BigEndian.AppendUint64(b, uint64(c.n))
	}
	switch c.v.Kind() {
	case json.KindInt:
		return binary.BigEndian.AppendUint64(append(b, tagInt), uint64(c.v.Int())), nil
	case json.KindFloat:
		return binary.BigEndian.AppendUint64(append(b, tagFloat), math.Float64bits(c.v.Float())), nil
	case json.KindText:
		return appendText(append(b, tagText), c.v.Text()), nil
	}
	return appendValue(b, c.v.Any(), 0)
}

// read is the inverse of append. What append would not have written is damage. Of last, whose value is about to be
// replaced, nothing is kept.
func (c *cell) read(d *decoder, f aggFunc) {
	*c = cell{}
	if f == aggCount || f == aggAvg {
		c.n = int64(d.uint64())
	}
	switch f {
	case aggCount:
		return
	case aggLast:
		d.skip(0)
		return
	case aggFirst:
		c.n = 1
	}
	switch d.peek() {
	case tagInt:
		d.byte()
		c.v = json.IntValue(int64(d.uint64()))
		return
	case tagFloat:
		d.byte()
		c.v = json.FloatValue(math.Float64frombits(d.uint64()))
		return
	case tagText:
		d.byte()
		c.v, c.borrowed = json.TextValue(d.borrow()), true
	default:
		c.v = json.ValueOf(d.value(0))
	}
	switch f {
	case aggMin, aggMax:
		d.bad = d.bad || c.v.Kind() != json.KindText
	case aggSum, aggAvg:
		d.bad = true
	}
}
