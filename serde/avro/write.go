package avro

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
)

// appendNative encodes what toNative gives, which fits the schema. The keys of maps are in the order of their bytes, so
// equal values have equal bytes; goavro writes them in a random order.
func appendNative(dst []byte, v any, s *schema) []byte {
	switch s.kind {
	case kBoolean:
		if v.(bool) {
			return append(dst, 1)
		}
		return append(dst, 0)
	case kInt:
		return binary.AppendVarint(dst, int64(v.(int32)))
	case kLong:
		return binary.AppendVarint(dst, v.(int64))
	case kFloat:
		return binary.LittleEndian.AppendUint32(dst, math.Float32bits(v.(float32)))
	case kDouble:
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(v.(float64)))
	case kString:
		return appendText(dst, v.(string))
	case kEnum:
		return binary.AppendVarint(dst, int64(slices.Index(s.symbols, v.(string))))
	case kBytes:
		b := v.([]byte)
		return append(binary.AppendVarint(dst, int64(len(b))), b...)
	case kFixed:
		return append(dst, v.([]byte)...)
	case kArray:
		return appendArray(dst, v.([]any), s)
	case kMap:
		return appendMap(dst, v.(map[string]any), s)
	case kRecord:
		m := v.(map[string]any)
		for i := range s.fields {
			dst = appendNative(dst, m[s.fields[i].name], s.fields[i].typ)
		}
		return dst
	case kUnion:
		return appendUnion(dst, v, s)
	}
	return dst // null
}

func appendText(dst []byte, text string) []byte {
	return append(binary.AppendVarint(dst, int64(len(text))), text...)
}

func appendArray(dst []byte, items []any, s *schema) []byte {
	for block := range slices.Chunk(items, MaxBlockItems) {
		dst = binary.AppendVarint(dst, int64(len(block)))
		for _, item := range block {
			dst = appendNative(dst, item, s.items)
		}
	}
	return append(dst, 0)
}

func appendMap(dst []byte, m map[string]any, s *schema) []byte {
	for block := range slices.Chunk(slices.Sorted(maps.Keys(m)), MaxBlockItems) {
		dst = binary.AppendVarint(dst, int64(len(block)))
		for _, key := range block {
			dst = appendNative(appendText(dst, key), m[key], s.items)
		}
	}
	return append(dst, 0)
}

// appendUnion takes a map of one key, the name of the branch; nil is null.
func appendUnion(dst []byte, v any, s *schema) []byte {
	name, inner := string(kNull), any(nil)
	if wrapped, ok := v.(map[string]any); ok {
		for name, inner = range wrapped {
		}
	}
	i := slices.IndexFunc(s.branches, func(b *schema) bool { return b.branchName() == name })
	return appendNative(binary.AppendVarint(dst, int64(i)), inner, s.branches[i])
}
