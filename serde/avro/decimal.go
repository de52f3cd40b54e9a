package avro

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/millweir/millweir/serde"
)

const (
	// maxPrecision is the most digits of a decimal; with more, the logical type is ignored.
	maxPrecision = 1000
	// maxNumberText is the longest number that is read as a decimal.
	maxNumberText = 4096
	// maxExponent bounds the power of ten in such a number.
	maxExponent = 10_000
)

// decimal is the logical type of that name.
type decimal struct {
	precision, scale int
	bytesMax         int // of the shortest encoding of any value
}

// newDecimal reads the attributes; it gives nil when they are wrong, and the schema is then without a logical type.
func newDecimal(doc map[string]any, precisionMax int) *decimal {
	d := &decimal{}
	var ok bool
	if d.precision, ok = wholeNumber(doc["precision"]); !ok || d.precision < 1 || d.precision > min(precisionMax, maxPrecision) {
		return nil
	}
	if v, has := doc["scale"]; has {
		if d.scale, ok = wholeNumber(v); !ok || d.scale < 0 || d.scale > d.precision {
			return nil
		}
	}
	d.bytesMax = int(float64(d.precision)*math.Log2(10))/8 + 1
	return d
}

// digitsIn is how many decimal digits always fit in a signed number of that many bytes.
func digitsIn(size int) int { return int(float64(8*size-1) * math.Log10(2)) }

// text gives the decimal behind big-endian two's complement bytes.
func (d *decimal) text(b []byte) (json.Number, error) {
	if len(b) == 0 {
		return "", errors.New("a decimal of no bytes")
	}
	for len(b) > 1 && (b[0] == 0 && b[1] < 0x80 || b[0] == 0xff && b[1] >= 0x80) {
		b = b[1:]
	}
	if len(b) > d.bytesMax {
		return "", fmt.Errorf("a decimal of more than %d digits", d.precision)
	}
	n := new(big.Int).SetBytes(b)
	if b[0] >= 0x80 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	digits := new(big.Int).Abs(n).String()
	if len(digits) > d.precision {
		return "", fmt.Errorf("a decimal of more than %d digits", d.precision)
	}
	if d.scale > 0 {
		digits = strings.Repeat("0", max(0, d.scale+1-len(digits))) + digits
		digits = digits[:len(digits)-d.scale] + "." + digits[len(digits)-d.scale:]
	}
	if n.Sign() < 0 {
		digits = "-" + digits
	}
	return json.Number(digits), nil
}

// bytes gives the encoding of a value: the shortest for size 0, else size bytes.
func (d *decimal) bytes(v any, size int) ([]byte, error) {
	n, err := d.unscaled(v)
	if err != nil {
		return nil, err
	}
	length := n.BitLen()/8 + 1
	if n.Sign() < 0 { // -128 fits in one byte, 128 does not
		length = new(big.Int).Not(n).BitLen()/8 + 1
		n = n.Add(n, new(big.Int).Lsh(big.NewInt(1), uint(8*max(length, size))))
	}
	if size > 0 && length > size {
		return nil, fmt.Errorf("%v needs more than %d bytes", v, size)
	}
	return n.FillBytes(make([]byte, max(length, size))), nil
}

// unscaled gives the value times ten to the scale, which must be whole: nothing is rounded.
func (d *decimal) unscaled(v any) (*big.Int, error) {
	text, ok := decimalText(v)
	if !ok {
		return nil, mismatch(v, fmt.Sprintf("decimal(%d,%d)", d.precision, d.scale))
	}
	digits, exp, err := parseDecimal(text)
	if err != nil {
		return nil, err
	}
	if digits == "" {
		return new(big.Int), nil
	}
	exp += d.scale
	if exp < 0 {
		return nil, fmt.Errorf("%s has more than %d digits behind the point", text, d.scale)
	}
	if len(digits)+exp > d.precision {
		return nil, fmt.Errorf("%s needs more than %d digits", text, d.precision)
	}
	n, _ := new(big.Int).SetString(digits+strings.Repeat("0", exp), 10)
	if text[0] == '-' {
		n.Neg(n)
	}
	return n, nil
}

func decimalText(v any) (string, bool) {
	switch v := v.(type) {
	case json.Number:
		return string(v), true
	case string:
		return v, true
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), !math.IsNaN(v) && !math.IsInf(v, 0)
	}
	n, ok := serde.AsInt64(v)
	return strconv.FormatInt(n, 10), ok
}

// parseDecimal splits a number into its digits, without zeros at either end, and a power of ten. Zero has no digits.
func parseDecimal(text string) (digits string, exp int, err error) {
	bad := fmt.Errorf("%.40q is no decimal number", text)
	if len(text) > maxNumberText {
		return "", 0, fmt.Errorf("a number of more than %d characters", maxNumberText)
	}
	rest := strings.TrimPrefix(text, "-")
	mantissa := rest
	if i := strings.IndexAny(rest, "eE"); i >= 0 {
		mantissa = rest[:i]
		if exp, err = strconv.Atoi(rest[i+1:]); err != nil || exp < -maxExponent || exp > maxExponent {
			return "", 0, bad
		}
	}
	whole, frac, point := strings.Cut(mantissa, ".")
	digits = whole + frac
	if whole == "" || point && frac == "" || strings.Trim(digits, "0123456789") != "" {
		return "", 0, bad
	}
	exp -= len(frac)
	digits = strings.TrimLeft(digits, "0")
	trimmed := strings.TrimRight(digits, "0")
	return trimmed, exp + len(digits) - len(trimmed), nil
}
