package avro

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// kind is the type of a schema.
type kind string

const (
	kNull    kind = "null"
	kBoolean kind = "boolean"
	kInt     kind = "int"
	kLong    kind = "long"
	kFloat   kind = "float"
	kDouble  kind = "double"
	kBytes   kind = "bytes"
	kString  kind = "string"
	kRecord  kind = "record"
	kEnum    kind = "enum"
	kFixed   kind = "fixed"
	kArray   kind = "array"
	kMap     kind = "map"
	kUnion   kind = "union"
)

// schema is one type. Named types that refer to themselves make it a graph.
type schema struct {
	kind  kind
	name  string // full name of a record, enum or fixed
	alias string // the name under which goavro knows it: unique, and without a namespace

	fields   []field
	symbols  []string
	items    *schema // of an array or map
	branches []*schema
	size     int      // of a fixed, in bytes
	decimal  *decimal // bytes and fixed only
}

type field struct {
	name string
	typ  *schema
	// fallback is the default in goavro's form, when the schema gives one.
	fallback    any
	hasFallback bool
}

func (s *schema) named() bool { return s.kind == kRecord || s.kind == kEnum || s.kind == kFixed }

// String names a type in messages.
func (s *schema) String() string {
	if s.named() {
		return string(s.kind) + " " + s.name
	}
	if s.decimal != nil {
		return fmt.Sprintf("decimal(%d,%d)", s.decimal.precision, s.decimal.scale)
	}
	return string(s.kind)
}

var primitives = map[string]kind{
	"null": kNull, "boolean": kBoolean, "int": kInt, "long": kLong, "float": kFloat, "double": kDouble,
	"bytes": kBytes, "string": kString,
}

// builder turns schema text into the graph.
type builder struct {
	types    map[string]*schema // by full name
	defaults []func() error     // checks that need the whole graph
}

func parseSchema(text string) (*schema, error) {
	if len(text) > MaxSchemaBytes {
		return nil, fmt.Errorf("longer than %d bytes", MaxSchemaBytes)
	}
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("bytes left over behind the schema")
	}
	b := &builder{types: map[string]*schema{}}
	root, err := b.parse(doc, "", 1)
	if err != nil {
		return nil, err
	}
	for _, check := range b.defaults {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return root, nil
}

// parse builds one type; space is the namespace around it.
func (b *builder) parse(doc any, space string, depth int) (*schema, error) {
	if depth > MaxSchemaDepth {
		return nil, fmt.Errorf("nested deeper than %d", MaxSchemaDepth)
	}
	switch doc := doc.(type) {
	case string:
		return b.refer(doc, space)
	case []any:
		return b.union(doc, space, depth)
	case map[string]any:
		return b.object(doc, space, depth)
	}
	return nil, fmt.Errorf("a type is a string, an array or an object, not %s", jsonKind(doc))
}

func (b *builder) object(doc map[string]any, space string, depth int) (*schema, error) {
	typ, ok := doc["type"].(string)
	if !ok {
		if doc["type"] == nil {
			return nil, errors.New(`an object without "type"`)
		}
		return b.parse(doc["type"], space, depth+1)
	}
	switch kind(typ) {
	case kRecord, "error":
		return b.record(doc, space, depth)
	case kEnum:
		return b.enum(doc, space)
	case kFixed:
		return b.fixed(doc, space)
	case kArray, kMap:
		key := map[kind]string{kArray: "items", kMap: "values"}[kind(typ)]
		items, err := b.parse(doc[key], space, depth+1)
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", key, typ, err)
		}
		return &schema{kind: kind(typ), items: items}, nil
	}
	s, err := b.refer(typ, space)
	if err == nil && s.kind == kBytes && doc["logicalType"] == "decimal" {
		s.decimal = newDecimal(doc, maxPrecision)
	}
	return s, err
}

// refer gives a primitive type, a new one each time, or a type defined before.
func (b *builder) refer(name, space string) (*schema, error) {
	if k, ok := primitives[name]; ok {
		return &schema{kind: k}, nil
	}
	for _, full := range candidates(name, space) {
		if s := b.types[full]; s != nil {
			return s, nil
		}
	}
	return nil, fmt.Errorf("unknown type %q", name)
}

func (b *builder) union(doc []any, space string, depth int) (*schema, error) {
	s := &schema{kind: kUnion}
	seen := map[string]bool{}
	for i, d := range doc {
		t, err := b.parse(d, space, depth+1)
		if err != nil {
			return nil, fmt.Errorf("branch %d of union: %w", i, err)
		}
		if t.kind == kUnion {
			return nil, errors.New("a union directly in a union")
		}
		if seen[t.branchName()] {
			return nil, fmt.Errorf("union with two branches %s", t)
		}
		seen[t.branchName()] = true
		s.branches = append(s.branches, t)
	}
	if len(s.branches) == 0 {
		return nil, errors.New("a union without branches")
	}
	return s, nil
}

// branchName is what goavro calls the type as a branch of a union.
func (s *schema) branchName() string {
	if s.named() {
		return s.alias
	}
	return string(s.kind)
}

func (b *builder) record(doc map[string]any, space string, depth int) (*schema, error) {
	s, inner, err := b.define(kRecord, doc, space)
	if err != nil {
		return nil, err
	}
	list, ok := doc["fields"].([]any)
	if !ok {
		return nil, fmt.Errorf("%s: no array of fields", s)
	}
	seen := map[string]bool{}
	for i, d := range list {
		fd, ok := d.(map[string]any)
		name, _ := fd["name"].(string)
		if !ok || !validPart(name) {
			return nil, fmt.Errorf("%s: field %d has no valid name", s, i)
		}
		if seen[name] {
			return nil, fmt.Errorf("%s: two fields %s", s, name)
		}
		seen[name] = true
		t, err := b.fieldType(fd, inner, depth)
		if err != nil {
			return nil, fmt.Errorf("%s field %s: %w", s, name, err)
		}
		s.fields = append(s.fields, field{name: name, typ: t})
		if def, has := fd["default"]; has {
			b.addDefault(s, i, def)
		}
	}
	return s, nil
}

// fieldType parses the type of a field. A logical type beside a field's type, instead of in it, does not count.
func (b *builder) fieldType(fd map[string]any, space string, depth int) (*schema, error) {
	if fd["type"] == nil {
		return nil, errors.New(`no "type"`)
	}
	return b.parse(fd["type"], space, depth+1)
}

func (b *builder) enum(doc map[string]any, space string) (*schema, error) {
	s, _, err := b.define(kEnum, doc, space)
	if err != nil {
		return nil, err
	}
	list, ok := doc["symbols"].([]any)
	if !ok || len(list) == 0 {
		return nil, fmt.Errorf("%s: no symbols", s)
	}
	seen := map[string]bool{}
	for i, d := range list {
		sym, _ := d.(string)
		if !validPart(sym) {
			return nil, fmt.Errorf("%s: symbol %d is not valid", s, i)
		}
		if seen[sym] {
			return nil, fmt.Errorf("%s: two symbols %s", s, sym)
		}
		seen[sym] = true
		s.symbols = append(s.symbols, sym)
	}
	return s, nil
}

func (b *builder) fixed(doc map[string]any, space string) (*schema, error) {
	s, _, err := b.define(kFixed, doc, space)
	if err != nil {
		return nil, err
	}
	size, ok := wholeNumber(doc["size"])
	if !ok || size < 1 || size > MaxBlockBytes {
		return nil, fmt.Errorf("%s: the size is not a number from 1 to %d", s, MaxBlockBytes)
	}
	s.size = size
	if doc["logicalType"] == "decimal" {
		s.decimal = newDecimal(doc, digitsIn(size))
	}
	return s, nil
}

func wholeNumber(v any) (int, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	i, err := strconv.Atoi(string(n))
	return i, err == nil
}

func jsonKind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "an array"
	}
	return "an object"
}
