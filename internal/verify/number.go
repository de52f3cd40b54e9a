package verify

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// number is an amount, or a sum of amounts: exact within int64, or a float64. A sum is a float from the first amount on that
// is one.
type number struct {
	bits  int64 // the integer, or the bits of the float
	float bool
}

func whole(i int64) number { return number{bits: i} }

func floating(f float64) number { return number{int64(math.Float64bits(f)), true} }

// exactFloats is up to where all whole floats have only one form: their digits.
const exactFloats = 1 << 53

// value gives the number as a float.
func (n number) value() float64 {
	if n.float {
		return math.Float64frombits(uint64(n.bits))
	}
	return float64(n.bits)
}

// plain gives the integer where a float is one, as 3.0 is in its text.
func (n number) plain() number {
	if f := n.value(); n.float && f == math.Trunc(f) && math.Abs(f) <= exactFloats {
		return whole(int64(f))
	}
	return n
}

// fraction says that it is not whole.
func (n number) fraction() bool { return n.float && n.value() != math.Trunc(n.value()) }

// plus adds, of integers modulo 2^64. It says whether the sum fits into int64, or into a float64.
func (n number) plus(m number) (sum number, fits bool) {
	if n.float || m.float {
		f := n.value() + m.value()
		return floating(f), !math.IsInf(f, 0)
	}
	sum = whole(n.bits + m.bits)
	return sum, (n.bits^sum.bits)&(m.bits^sum.bits) >= 0
}

func (n number) String() string {
	if n.float {
		return strconv.FormatFloat(n.value(), 'g', -1, 64)
	}
	return strconv.FormatInt(n.bits, 10)
}

// field is a number of a JSON object.
type field struct {
	number
	set  bool // there is one
	huge bool // it is written as a whole one that does not fit into int64
}

// UnmarshalJSON takes each number, but not "12" or null. One with a point or an exponent is a float, and so is -0.
func (n *field) UnmarshalJSON(b []byte) error {
	text := string(b)
	if i, err := strconv.ParseInt(text, 10, 64); err == nil && text != "-0" {
		*n = field{number: whole(i), set: true}
		return nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf("%s is not a number", b) // with text, each one would be on the heap
	}
	*n = field{number: floating(f), set: true, huge: !hasPoint(text)}
	return nil
}

func hasPoint(text string) bool {
	return text == "-0" || strings.ContainsAny(text, ".eE")
}
