package pipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/serde/avro"
)

// maxSchemaBytes is the largest schema file that is read.
const maxSchemaBytes = 256 << 10

// recordShape is what is compared with the fields that a step gives.
type recordShape struct {
	fields   []string
	required []string // those without a default
}

// readSchema reads a schema file, relative to the directory of the service file. The shape is nil when the schema is not
// a record. Without an error and a codec the mistake is noted already.
func readSchema(n *yamlx.Node, baseDir string) (serde.Serde[any], *recordShape, error) {
	name, ok := n.Text()
	if !ok {
		return nil, nil, nil
	}
	path := name
	if !filepath.IsAbs(path) {
		path = filepath.Join(baseDir, path)
	}
	text, err := readSchemaFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("schema file %s %w", n.Shown(), err)
	}
	codec, err := avro.New(text)
	if err != nil {
		return nil, nil, fmt.Errorf("schema file %s: %w", n.Shown(), err)
	}
	return codec, shapeOf(text), nil
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
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// shapeOf gives the fields of a schema that package avro has accepted, nil when it is not a record.
func shapeOf(text string) *recordShape {
	var schema struct {
		Type   any                          `json:"type"`
		Fields []map[string]json.RawMessage `json:"fields"`
	}
	if json.Unmarshal([]byte(text), &schema) != nil || schema.Type != "record" {
		return nil
	}
	shape := &recordShape{}
	for _, f := range schema.Fields {
		var name string
		if json.Unmarshal(f["name"], &name) != nil {
			return nil
		}
		shape.fields = append(shape.fields, name)
		if _, has := f["default"]; !has {
			shape.required = append(shape.required, name)
		}
	}
	return shape
}

// mismatch says why objects of exactly these fields can never be encoded, "" when they may.
func (r *recordShape) mismatch(fields []string) string {
	if r == nil || fields == nil {
		return ""
	}
	var wrong []string
	for _, f := range fields {
		if !slices.Contains(r.fields, f) {
			wrong = append(wrong, "has no field "+f)
		}
	}
	for _, f := range r.required {
		if !slices.Contains(fields, f) {
			wrong = append(wrong, "wants a field "+f)
		}
	}
	return strings.Join(wrong, ", ")
}
