package avro

import (
	"fmt"
	"io"
	"os"

	"github.com/linkedin/goavro/v2"
)

// The limits on schemas and data.
const (
	// MaxSchemaBytes is the longest schema text.
	MaxSchemaBytes = 256 << 10
	// MaxSchemaDepth is how deep types may be nested in a schema.
	MaxSchemaDepth = 64
	// MaxValueDepth is how deep values may be nested, which a recursive schema leaves open.
	MaxValueDepth = 256
	// MaxBlockItems is the most items in one block of an array or map.
	MaxBlockItems = 1 << 20
	// MaxBlockBytes is the longest block of an array or map.
	MaxBlockBytes = 16 << 20
)

// goavro keeps its limits in variables of the package. Decoded data never gets there unchecked; this is the second line.
func init() {
	goavro.MaxBlockCount = MaxBlockItems
	goavro.MaxBlockSize = MaxBlockBytes
}

// Codec encodes and decodes values of one schema. It is a serde.Serde[any].
type Codec struct {
	name      string
	canonical string
	root      *schema
	native    *goavro.Codec
}

// New makes the codec of a schema, given as JSON text.
func New(schemaJSON string) (*Codec, error) {
	root, err := parseSchema(schemaJSON)
	if err != nil {
		return nil, fmt.Errorf("avro schema: %w", err)
	}
	native, err := goavro.NewCodec(render(root, byAlias))
	if err != nil {
		return nil, fmt.Errorf("avro schema: %w", err)
	}
	canonical := render(root, byName)
	return &Codec{
		name:      fmt.Sprintf("avro:%016x", fingerprint(canonical)),
		canonical: canonical,
		root:      root,
		native:    native,
	}, nil
}

// FromFile makes the codec of the schema in a file.
func FromFile(path string) (*Codec, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("avro schema: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxSchemaBytes+1))
	if err != nil {
		return nil, fmt.Errorf("avro schema: %w", err)
	}
	c, err := New(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Name is "avro:" and the CRC-64-AVRO fingerprint of the schema's canonical form in 16 hex digits.
func (c *Codec) Name() string { return c.name }

// CanonicalSchema is the schema in Avro's Parsing Canonical Form, without defaults and logical types.
func (c *Codec) CanonicalSchema() string { return c.canonical }

// Decode reads one value from all of b. The bytes in the result alias b.
func (c *Codec) Decode(b []byte) (any, error) {
	if err := scan(b, c.root); err != nil {
		return nil, fmt.Errorf("avro: %w", err)
	}
	native, rest, err := c.native.NativeFromBinary(b)
	if err != nil {
		return nil, fmt.Errorf("avro: %w", err)
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("avro: %w", leftOver(len(rest)))
	}
	v, err := fromNative(native, c.root)
	if err != nil {
		return nil, fmt.Errorf("avro: %w", err)
	}
	return v, nil
}

// Append encodes v behind dst, equal values as equal bytes. It does not change v.
func (c *Codec) Append(dst []byte, v any) ([]byte, error) {
	native, err := toNative(v, c.root, 0)
	if err != nil {
		return dst, fmt.Errorf("avro: %w", err)
	}
	return appendNative(dst, native, c.root), nil
}
