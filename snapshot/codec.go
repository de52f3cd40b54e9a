package snapshot

import (
	"encoding/binary"

	"github.com/millweir/millweir/element"
)

// Encoding helpers: fixed-size integers are big endian, lengths and counts unsigned varints in shortest form,
// strings length-prefixed.

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendName(b []byte, n element.CheckpointName) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(n.ID))
	return binary.BigEndian.AppendUint64(b, uint64(n.Incarnation))
}

// cursor reads a byte slice front to back. After the first violation it stands still and keeps the error; every
// further read gives zero. It allocates only strings that are there.
type cursor struct {
	b   []byte
	err error
}

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = formatf(format, args...)
	}
	c.b = nil
}

func (c *cursor) take(n int, what string) []byte {
	if n < 0 || n > len(c.b) {
		c.fail("ends within %s", what)
		return nil
	}
	out := c.b[:n:n]
	c.b = c.b[n:]
	return out
}

func (c *cursor) u8(what string) byte {
	if b := c.take(1, what); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) u32(what string) uint32 {
	if b := c.take(4, what); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64(what string) uint64 {
	if b := c.take(8, what); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// uvarint accepts the shortest form only, so that one value has one encoding.
func (c *cursor) uvarint(what string) uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 || (n > 1 && c.b[n-1] == 0) {
		c.fail("bad number in %s", what)
		return 0
	}
	c.b = c.b[n:]
	return v
}

// i64 reads a non-negative number that fits int64.
func (c *cursor) i64(what string) int64 {
	v := c.uvarint(what)
	if v > 1<<63-1 {
		c.fail("number out of range in %s", what)
		return 0
	}
	return int64(v)
}

// i32 reads a non-negative number that fits int32.
func (c *cursor) i32(what string) int32 {
	v := c.uvarint(what)
	if v > 1<<31-1 {
		c.fail("number out of range in %s", what)
		return 0
	}
	return int32(v)
}

// count reads the number of elements that follow; it cannot exceed what the bytes left can hold, so that the caller
// may allocate by it.
func (c *cursor) count(what string, minSize int) int {
	v := c.uvarint(what)
	if v > uint64(len(c.b)/minSize) {
		c.fail("%s: %d elements in %d bytes", what, v, len(c.b))
		return 0
	}
	return int(v)
}

func (c *cursor) str(what string, limit int) string {
	n := c.uvarint(what)
	if n > uint64(limit) {
		c.fail("%s of %d bytes, at most %d allowed", what, n, limit)
		return ""
	}
	return string(c.take(int(n), what))
}

func (c *cursor) name(what string) element.CheckpointName {
	id := c.u64(what)
	return element.CheckpointName{ID: element.CheckpointID(id), Incarnation: element.Incarnation(c.u64(what))}
}

func (c *cursor) digest(what string) (d Digest) {
	copy(d[:], c.take(len(d), what))
	return d
}

func (c *cursor) topicID(what string) (id element.TopicID) {
	copy(id[:], c.take(len(id), what))
	return id
}

// end checks that nothing is left and gives the first violation.
func (c *cursor) end() error {
	if c.err == nil && len(c.b) > 0 {
		c.fail("%d bytes too many", len(c.b))
	}
	return c.err
}

// sealed checks magic, version and the CRC32C at the end, and gives the bytes between.
func sealed(b []byte, magic string, version byte) ([]byte, error) {
	body, v, err := sealedUpTo(b, magic, version)
	if err == nil && v != version {
		return nil, formatf("format version %d, this program reads %d", v, version)
	}
	return body, err
}

// sealedUpTo is sealed for a format of which all versions up to the newest are read. It gives the version too.
func sealedUpTo(b []byte, magic string, newest byte) ([]byte, byte, error) {
	head := len(magic) + 1
	fail := func(format string, args ...any) ([]byte, byte, error) { return nil, 0, formatf(format, args...) }
	switch {
	case len(b) < len(magic) || string(b[:len(magic)]) != magic:
		return fail("not one of our files: it does not begin with %q", magic)
	case len(b) < head+4:
		return fail("%d bytes are too few", len(b))
	case binary.BigEndian.Uint32(b[len(b)-4:]) != crc32c(b[:len(b)-4]):
		return fail("checksum mismatch")
	case b[len(magic)] == 0 || b[len(magic)] > newest:
		return fail("format version %d, this program reads up to %d", b[len(magic)], newest)
	}
	return b[head : len(b)-4], b[len(magic)], nil
}

func seal(b []byte) []byte { return binary.BigEndian.AppendUint32(b, crc32c(b)) }
