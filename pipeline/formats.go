package pipeline

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/serde/avro"
	"github.com/millweir/millweir/serde/json"
)

// maxSchemaBytes is the largest schema file that is read.
const maxSchemaBytes = 256 << 10

var formats = []string{"string", "int64", "double", "bytes", "json", "avro"}

// format is how keys or values of one topic are encoded.
type format struct {
	name  string
	codec serde.Serde[any]
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
	codec, err := readSchema(schema, baseDir)
	if err != nil {
		schema.Errorf("%v", err)
		return format{}, false
	}
	return format{name, codec}, codec != nil
}

func plainFormat(name string) (format, bool) {
	if name == "json" {
		return format{name, json.Any()}, true
	}
	codec, err := serde.Dynamic(name)
	return format{name, codec}, err == nil
}

// readSchema reads a schema file, relative to the directory of the service file. Without an error and a codec the
// mistake is noted already.
func readSchema(n *yamlx.Node, baseDir string) (serde.Serde[any], error) {
	name, ok := n.Text()
	if !ok {
		return nil, nil
	}
	path := name
	if !filepath.IsAbs(path) {
		path = filepath.Join(baseDir, path)
	}
	text, err := readSchemaFile(path)
	if err != nil {
		return nil, fmt.Errorf("schema file %s %w", n.Shown(), err)
	}
	codec, err := avro.New(text)
	if err != nil {
		return nil, fmt.Errorf("schema file %s: %w", n.Shown(), err)
	}
	return codec, nil
}

// readSchemaFile reads a regular file of bounded size: a device or a pipe could block or never end.
func readSchemaFile(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("cannot be read: %w", pathCause(err))
	case !info.Mode().IsRegular():
		return "", errors.New("is not a file")
	case info.Size() > maxSchemaBytes:
		return "", fmt.Errorf("is larger than %s", yamlx.FormatSize(maxSchemaBytes))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", pathCause(err))
	}
	return string(text), nil
}

// pathCause drops the path, which the message has in the form that the user wrote.
func pathCause(err error) error {
	if pe, ok := err.(*os.PathError); ok {
		return pe.Err
	}
	return err
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
