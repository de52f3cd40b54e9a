package json

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

func appendAny(dst []byte, v any, depth int) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case string:
		return appendString(dst, v)
	case int64:
		return strconv.AppendInt(dst, v, 10), nil
	case int:
		return strconv.AppendInt(dst, int64(v), 10), nil
	case float64:
		return appendFloat(dst, v)
	case Number:
		return appendNumber(dst, v)
	case []byte:
		dst = append(dst, '"')
		dst = base64.StdEncoding.AppendEncode(dst, v)
		return append(dst, '"'), nil
	case []any:
		return appendArray(dst, v, depth+1)
	case map[string]any:
		return appendObject(dst, v, depth+1)
	}
	// Named and composite types of the user's own: what encoding/json makes of them, cycles found by it.
	return appendStd(dst, v)
}

func appendArray(dst []byte, a []any, depth int) ([]byte, error) {
	if depth > MaxDepth {
		return nil, fmt.Errorf("nested deeper than %d", MaxDepth)
	}
	dst = append(dst, '[')
	var err error
	for i, v := range a {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendAny(dst, v, depth); err != nil {
			return nil, err
		}
	}
	return append(dst, ']'), nil
}

func appendObject(dst []byte, m map[string]any, depth int) ([]byte, error) {
	if depth > MaxDepth {
		return nil, fmt.Errorf("nested deeper than %d", MaxDepth)
	}
	var room [16]string
	keys := slices.AppendSeq(room[:0], maps.Keys(m))
	slices.Sort(keys)
	dst = append(dst, '{')
	var err error
	for i, key := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendString(dst, key); err != nil {
			return nil, err
		}
		dst = append(dst, ':')
		if dst, err = appendAny(dst, m[key], depth); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

const hexDigits = "0123456789abcdef"

// appendString escapes what encoding/json escapes with HTML escaping off.
func appendString(dst []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, fmt.Errorf("string %.40q is not UTF-8", s)
	}
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == 0xE2 && (s[i:i+3] == "\u2028" || s[i:i+3] == "\u2029"):
			dst = append(append(dst, s[start:i]...), `\u202`...)
			dst = append(dst, hexDigits[s[i+2]&0xF])
			i += 2
			start = i + 1
			continue
		case c >= ' ' && c != '"' && c != '\\':
			continue
		}
		dst = append(dst, s[start:i]...)
		dst = appendEscape(dst, c)
		start = i + 1
	}
	return append(append(dst, s[start:]...), '"'), nil
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xF])
}

// appendFloat writes as encoding/json does: like a number in ECMAScript.
func appendFloat(dst []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, fmt.Errorf("%v has no form in JSON", f)
	}
	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	n := len(dst)
	dst = strconv.AppendFloat(dst, f, format, -1, 64)
	// e-09 becomes e-9.
	if e := len(dst); format == 'e' && e-n >= 4 && dst[e-4] == 'e' && dst[e-3] == '-' && dst[e-2] == '0' {
		dst[e-2] = dst[e-1]
		dst = dst[:e-1]
	}
	return dst, nil
}

func appendNumber(dst []byte, n Number) ([]byte, error) {
	p := parser{in: []byte(n)}
	if len(n) == 0 {
		return nil, fmt.Errorf("an empty Number is no number")
	}
	if _, err := p.numberEnd(); err != nil || p.at != len(n) {
		return nil, fmt.Errorf("Number %.40q is no number", string(n))
	}
	return append(dst, n...), nil
}
