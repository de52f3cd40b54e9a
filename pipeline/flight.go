package pipeline

import "errors"

// flightCodec is the id of the encoding of computed values on their way over an exchange, as snapshots hold them. It is that
// of stored values, see encoding.go.
const flightCodec = "value1"

// flightDepth is where the count of levels begins: 10 000 are possible, more than any format reads, so that what was read
// can always become part of a snapshot. Stored values have fewer.
const flightDepth = maxValueDepth - 10_000

var errFlightDamaged = errors.New("a value on its way over an exchange is damaged")

// flightValue is the codec of values that no bytes travel along with: what maps and aggregates give, and what comes out of
// merges of several formats. It keeps kinds exactly, which no format of topics does: an integer stays one, bytes are bytes.
type flightValue struct{}

func (flightValue) Name() string { return flightCodec }

func (flightValue) Append(dst []byte, v any) ([]byte, error) {
	if r, ok := v.(*row); ok {
		if r.shape.source {
			return dst, errPartOfValue // the shape is whole then, see builder.buildMerge
		}
		v = r.object()
	}
	return appendValue(dst, v, flightDepth)
}

func (flightValue) Decode(b []byte) (any, error) {
	d := decoder{b: b}
	v := d.value(flightDepth)
	if d.bad || len(d.b) > 0 {
		return nil, errFlightDamaged
	}
	return v, nil
}
