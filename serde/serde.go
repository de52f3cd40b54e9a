package serde

import "fmt"

// Serde encodes and decodes values of one type.
type Serde[T any] interface {
	// Name is the stable id of the codec, such as "int64" or "json". It is kept with state and checked at a restore:
	// two serdes of one name read each other's bytes, and a serde whose format changes takes another name.
	Name() string
	// Append encodes v behind dst and returns the extended slice. On an error it returns dst unchanged.
	Append(dst []byte, v T) ([]byte, error)
	// Decode reads one value from all of b. It is never called with nil. It must not change b; the result may alias b.
	Decode(b []byte) (T, error)
}

// Fixed is implemented beside Serde by codecs whose encoding always has the same length. State with such a codec is
// updated in place. The size belongs to the format: a codec that changes it takes another name.
type Fixed interface {
	// FixedSize is the length of every encoding in bytes, above 0.
	FixedSize() int
}

// FixedSize gives the length of every encoding of s in bytes, and false when the length varies.
func FixedSize[T any](s Serde[T]) (int, bool) {
	f, ok := s.(Fixed)
	if !ok {
		return 0, false
	}
	n := f.FixedSize()
	return n, n > 0
}

// LengthError says that an encoding does not have the length that its codec asks for.
type LengthError struct {
	Codec string
	Want  int // bytes
	Got   int // bytes
}

// Error names the codec and both lengths.
func (e *LengthError) Error() string {
	return fmt.Sprintf("%s needs %d bytes, got %d", e.Codec, e.Want, e.Got)
}
