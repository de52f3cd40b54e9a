package avro

import (
	"errors"
	"fmt"
	"math"
)

const (
	// What a decoded value may take in memory, by estimate: this plus memoryPerByte for each byte of input.
	memoryBase    = 64 << 20
	memoryPerByte = 8

	// Estimates in bytes, on the high side.
	costValue  = 24  // an interface and a boxed number
	costMap    = 320 // a small Go map
	costEntry  = 80  // one entry of a map
	costString = 16
)

var (
	errShort = errors.New("the data ends within a value")
	errDepth = fmt.Errorf("nested deeper than %d", MaxValueDepth)
)

// within says where in a value an error is. Too deep a nesting has no place that helps, but a very long one.
func within(place string, err error) error {
	if errors.Is(err, errDepth) {
		return err
	}
	return fmt.Errorf("%s: %w", place, err)
}

func leftOver(n int) error { return fmt.Errorf("%d bytes left over behind the value", n) }

// scanner walks over encoded bytes without building anything. After it, counts, lengths and indexes are known to be true.
type scanner struct {
	in     []byte
	at     int
	memory int // estimate left
}

// scan checks that b is one value of the schema, within the limits.
func scan(b []byte, s *schema) error {
	sc := scanner{in: b, memory: memoryBase + memoryPerByte*len(b)}
	if err := sc.value(s, 0); err != nil {
		return fmt.Errorf("%w (at byte %d)", err, sc.at)
	}
	if sc.at < len(b) {
		return leftOver(len(b) - sc.at)
	}
	return nil
}

func (sc *scanner) pay(n int) error {
	if sc.memory -= n; sc.memory < 0 {
		return errors.New("the value would take too much memory")
	}
	return nil
}

func (sc *scanner) value(s *schema, depth int) error {
	if depth > MaxValueDepth {
		return errDepth
	}
	if err := sc.pay(costValue); err != nil {
		return err
	}
	switch s.kind {
	case kNull:
		return nil
	case kBoolean:
		return sc.boolean()
	case kInt:
		n, err := sc.long()
		if err == nil && (n < math.MinInt32 || n > math.MaxInt32) {
			err = fmt.Errorf("%d is no int", n)
		}
		return err
	case kLong:
		_, err := sc.long()
		return err
	case kFloat:
		return sc.skip(4)
	case kDouble:
		return sc.skip(8)
	case kBytes, kString:
		return sc.bytes()
	case kFixed:
		return sc.skip(s.size)
	case kEnum:
		_, err := sc.index(len(s.symbols), s)
		return err
	case kUnion:
		i, err := sc.index(len(s.branches), s)
		if err != nil {
			return err
		}
		if err := sc.pay(costMap); err != nil { // goavro wraps it in a map of one key
			return err
		}
		return sc.value(s.branches[i], depth) // never a union itself
	case kRecord:
		return sc.record(s, depth)
	}
	return sc.blocks(s, depth)
}

func (sc *scanner) record(s *schema, depth int) error {
	if err := sc.pay(costMap + costEntry*len(s.fields)); err != nil {
		return err
	}
	for i := range s.fields {
		if err := sc.value(s.fields[i].typ, depth+1); err != nil {
			return within(s.fields[i].name, err)
		}
	}
	return nil
}

// blocks walks over an array or a map.
func (sc *scanner) blocks(s *schema, depth int) error {
	if s.kind == kMap {
		if err := sc.pay(costMap); err != nil {
			return err
		}
	}
	for {
		count, err := sc.long()
		if err != nil {
			return err
		}
		size := int64(-1)
		if count < 0 {
			if size, err = sc.long(); err != nil {
				return err
			}
			if size < 0 || size > MaxBlockBytes {
				return fmt.Errorf("block of %d bytes; at most %d are allowed", size, MaxBlockBytes)
			}
			count = -count
		}
		if count == 0 {
			return nil
		}
		if count < 0 || count > MaxBlockItems { // MinInt64 has no positive counterpart
			return fmt.Errorf("block of %d items; at most %d are allowed", count, MaxBlockItems)
		}
		start := sc.at
		for range count {
			if err := sc.item(s, depth); err != nil {
				return err
			}
		}
		if size >= 0 && int64(sc.at-start) != size {
			return fmt.Errorf("block of %d bytes says that it has %d", sc.at-start, size)
		}
	}
}

func (sc *scanner) item(s *schema, depth int) error {
	if s.kind == kMap {
		if err := sc.pay(costEntry); err != nil {
			return err
		}
		if err := sc.bytes(); err != nil {
			return err
		}
	}
	return sc.value(s.items, depth+1)
}

func (sc *scanner) skip(n int) error {
	if n > len(sc.in)-sc.at {
		return errShort
	}
	sc.at += n
	return nil
}

func (sc *scanner) boolean() error {
	if sc.at < len(sc.in) && sc.in[sc.at] > 1 {
		return fmt.Errorf("%#02x is no boolean", sc.in[sc.at])
	}
	return sc.skip(1)
}

func (sc *scanner) bytes() error {
	n, err := sc.long()
	if err != nil {
		return err
	}
	if n < 0 {
		return fmt.Errorf("negative length %d", n)
	}
	if n > int64(len(sc.in)-sc.at) {
		return errShort
	}
	sc.at += int(n)
	return sc.pay(costString + int(n))
}

// index reads the number of a symbol or branch.
func (sc *scanner) index(n int, s *schema) (int, error) {
	i, err := sc.long()
	if err == nil && (i < 0 || i >= int64(n)) {
		err = fmt.Errorf("%s has %d members, no member %d", s, n, i)
	}
	return int(i), err
}

// long reads a zig-zag varint of at most 64 bits.
func (sc *scanner) long() (int64, error) {
	var u uint64
	for shift := uint(0); ; shift += 7 {
		if sc.at >= len(sc.in) {
			return 0, errShort
		}
		c := sc.in[sc.at]
		if shift == 63 && c > 1 {
			return 0, errors.New("a number of more than 64 bits")
		}
		sc.at++
		u |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return int64(u>>1) ^ -int64(u&1), nil
		}
	}
}
