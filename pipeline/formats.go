package pipeline

import (
	"slices"

	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/serde/json"
)

var formats = []string{"string", "int64", "double", "bytes", "json", "avro"}

// format is how keys or values of one topic are encoded.
type format struct {
	name  string
	codec serde.Serde[any]
	shape *recordShape // of an Avro record
}

// readFormat reads the format under role ("key" or "value") of a source or sink, with its schema.
func readFormat(o *yamlx.Object, role, baseDir string) (format, bool) {
	schema := o.Get(role + "-schema")
	n := o.Require(role)
	if n == nil {
		return format{}, false
	}
	name, ok := n.Enum(formats...)
	if !ok {
		return format{}, false
	}
	if name != "avro" {
		if schema != nil {
			schema.Errorf("a schema belongs to the format avro, but %s is %s", n.Path(), name)
			return format{}, false
		}
		return plainFormat(name)
	}
	if schema == nil {
		n.Errorf("format avro needs a schema; write %s-schema: FILE.avsc", role)
		return format{}, false
	}
	codec, shape, err := readSchema(schema, baseDir)
	if err != nil {
		schema.Errorf("%v", err)
		return format{}, false
	}
	return format{name, codec, shape}, codec != nil
}

func plainFormat(name string) (format, bool) {
	if name == "json" {
		return format{name: name, codec: json.Any()}, true
	}
	codec, err := serde.Dynamic(name)
	return format{name: name, codec: codec}, err == nil
}

// kind is what is known of values that were decoded in the format.
func (f format) kind() valueKind {
	switch f.name {
	case "string":
		return textKind
	case "int64":
		return intKind
	case "double":
		return floatKind
	case "bytes":
		return bytesKind
	}
	return unknownKind
}

// accepts says whether the format can hold at least some values of the kind. What it cannot be sure of is left to the
// record.
func (f format) accepts(k valueKind) bool {
	if k == unknownKind || f.name == "json" || f.name == "avro" {
		return true
	}
	holds := map[string][]valueKind{
		"string": {textKind, bytesKind},
		"bytes":  {textKind, bytesKind},
		"int64":  {intKind, floatKind},
		"double": {intKind, floatKind},
	}
	return slices.Contains(holds[f.name], k)
}

// sourceKey is the codec of a source's key: it checks the bytes and keeps them.
type sourceKey struct{ inner format }

func (k sourceKey) Name() string { return k.inner.codec.Name() }

func (k sourceKey) Append(dst []byte, v wireKey) ([]byte, error) { return append(dst, v...), nil }

func (k sourceKey) Decode(b []byte) (wireKey, error) {
	switch k.inner.name {
	case "string", "bytes": // any bytes are right
	default:
		if _, err := k.inner.codec.Decode(b); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// sinkKey is the codec of a sink's key. It is asked only when its name differs from that of the source's codec.
type sinkKey struct{ from, to format }

func (k sinkKey) Name() string { return k.to.codec.Name() }

func (k sinkKey) Append(dst []byte, v wireKey) ([]byte, error) {
	key, err := k.from.codec.Decode(v)
	if err != nil {
		return dst, err
	}
	return k.to.codec.Append(dst, key)
}

func (k sinkKey) Decode(b []byte) (wireKey, error) { return b, nil }
