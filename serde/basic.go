package serde

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// String is the codec "string": the bytes of the string as they are, as Kafka's StringSerializer writes them in UTF-8.
// The bytes are not checked to be UTF-8, so that a record passes unchanged. Decode aliases its input without a copy.
func String() Serde[string] { return stringSerde{} }

// Int64 is the codec "int64": 8 bytes, big endian, two's complement, as Kafka's LongSerializer writes it.
func Int64() Serde[int64] { return int64Serde{} }

// Double is the codec "double": 8 bytes, IEEE 754, big endian, as Kafka's DoubleSerializer writes it. The bits of NaN
// and of -0 survive.
func Double() Serde[float64] { return doubleSerde{} }

// Bytes is the codec "bytes": the bytes as they are. Decode returns its input itself. A nil slice is encoded as empty:
// null is not a value, it is what a tombstone or a null key says.
func Bytes() Serde[[]byte] { return bytesSerde{} }

type stringSerde struct{}

func (stringSerde) Name() string { return "string" }

func (stringSerde) Append(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil }

func (stringSerde) Decode(b []byte) (string, error) {
	return unsafe.String(unsafe.SliceData(b), len(b)), nil
}

type int64Serde struct{}

func (int64Serde) Name() string { return "int64" }

func (int64Serde) FixedSize() int { return 8 }

func (int64Serde) Append(dst []byte, v int64) ([]byte, error) {
	return binary.BigEndian.AppendUint64(dst, uint64(v)), nil
}

func (int64Serde) Decode(b []byte) (int64, error) {
	if len(b) != 8 {
		return 0, &LengthError{Codec: "int64", Want: 8, Got: len(b)}
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

type doubleSerde struct{}

func (doubleSerde) Name() string { return "double" }

func (doubleSerde) FixedSize() int { return 8 }

func (doubleSerde) Append(dst []byte, v float64) ([]byte, error) {
	return binary.BigEndian.AppendUint64(dst, math.Float64bits(v)), nil
}

func (doubleSerde) Decode(b []byte) (float64, error) {
	if len(b) != 8 {
		return 0, &LengthError{Codec: "double", Want: 8, Got: len(b)}
	}
	return math.Float64frombits(binary.BigEndian.Uint64(b)), nil
}

type bytesSerde struct{}

func (bytesSerde) Name() string { return "bytes" }

func (bytesSerde) Append(dst []byte, v []byte) ([]byte, error) { return append(dst, v...), nil }

func (bytesSerde) Decode(b []byte) ([]byte, error) { return b, nil }
