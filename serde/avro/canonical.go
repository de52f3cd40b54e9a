package avro

import (
	"fmt"
	"strings"
)

// naming chooses the names in a rendered schema.
type naming func(*schema) string

// byName gives full names: the canonical form.
func byName(s *schema) string { return s.name }

// byAlias gives names without namespaces. goavro resolves those in its own way, and in messages and unions it would
// need full names from the user.
func byAlias(s *schema) string { return s.alias }

// render writes a schema in Avro's Parsing Canonical Form: no defaults, logical types, documentation or white space. A
// named type is written out where it comes first and referred to by name afterwards. Names were checked, so nothing
// needs escaping.
func render(root *schema, names naming) string {
	r := renderer{names: names, seen: map[*schema]bool{}}
	r.schema(root)
	return r.out.String()
}

type renderer struct {
	out   strings.Builder
	names naming
	seen  map[*schema]bool
}

func (r *renderer) schema(s *schema) {
	if s.named() && r.seen[s] {
		fmt.Fprintf(&r.out, "%q", r.names(s))
		return
	}
	r.seen[s] = true
	switch s.kind {
	case kRecord:
		fmt.Fprintf(&r.out, `{"name":"%s","type":"record","fields":[`, r.names(s))
		for i, f := range s.fields {
			r.comma(i)
			fmt.Fprintf(&r.out, `{"name":"%s","type":`, f.name)
			r.schema(f.typ)
			r.out.WriteByte('}')
		}
		r.out.WriteString("]}")
	case kEnum:
		fmt.Fprintf(&r.out, `{"name":"%s","type":"enum","symbols":["%s"]}`, r.names(s), strings.Join(s.symbols, `","`))
	case kFixed:
		fmt.Fprintf(&r.out, `{"name":"%s","type":"fixed","size":%d}`, r.names(s), s.size)
	case kArray:
		r.out.WriteString(`{"type":"array","items":`)
		r.schema(s.items)
		r.out.WriteByte('}')
	case kMap:
		r.out.WriteString(`{"type":"map","values":`)
		r.schema(s.items)
		r.out.WriteByte('}')
	case kUnion:
		r.out.WriteByte('[')
		for i, b := range s.branches {
			r.comma(i)
			r.schema(b)
		}
		r.out.WriteByte(']')
	default:
		fmt.Fprintf(&r.out, "%q", string(s.kind))
	}
}

func (r *renderer) comma(i int) {
	if i > 0 {
		r.out.WriteByte(',')
	}
}

const crcEmpty = 0xc15d213aa4d7a795

// crcTable is that of CRC-64-AVRO, as the Avro specification gives it.
var crcTable = func() (t [256]uint64) {
	for i := range t {
		fp := uint64(i)
		for range 8 {
			fp = fp>>1 ^ crcEmpty&-(fp&1)
		}
		t[i] = fp
	}
	return t
}()

// fingerprint is the CRC-64-AVRO of a canonical form.
func fingerprint(canonical string) uint64 {
	fp := uint64(crcEmpty)
	for i := range len(canonical) {
		fp = fp>>8 ^ crcTable[byte(fp)^canonical[i]]
	}
	return fp
}
