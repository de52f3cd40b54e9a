package json

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// SyntaxError says what is wrong with a JSON text, and where.
type SyntaxError struct {
	Offset int // in bytes, from 0
	Text   string
}

// Error gives the text and the offset.
func (e *SyntaxError) Error() string { return fmt.Sprintf("%s at byte %d", e.Text, e.Offset) }

// parser reads one JSON value. It is strict by RFC 8259.
type parser struct {
	in []byte
	at int
}

func (p *parser) fail(format string, args ...any) error {
	return &SyntaxError{Offset: p.at, Text: fmt.Sprintf(format, args...)}
}

// unexpected says what stands where something else was wanted.
func (p *parser) unexpected(want string) error {
	if p.at >= len(p.in) {
		return p.fail("unexpected end, want %s", want)
	}
	return p.fail("unexpected %q, want %s", rune(p.in[p.at]), want)
}

func (p *parser) document() (any, error) {
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	if p.space(); p.at < len(p.in) {
		return nil, p.fail("bytes left over behind the value")
	}
	return v, nil
}

func (p *parser) space() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// peek gives the next byte that is not white space, 0 at the end.
func (p *parser) peek() byte {
	p.space()
	if p.at >= len(p.in) {
		return 0
	}
	return p.in[p.at]
}

func (p *parser) value(depth int) (any, error) {
	switch c := p.peek(); {
	case c == '"':
		return p.string()
	case c == '{':
		return p.object(depth + 1)
	case c == '[':
		return p.array(depth + 1)
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	case c == 't':
		return true, p.word("true")
	case c == 'f':
		return false, p.word("false")
	case c == 'n':
		return nil, p.word("null")
	}
	return nil, p.unexpected("a value")
}

func (p *parser) word(w string) error {
	if len(p.in)-p.at < len(w) || string(p.in[p.at:p.at+len(w)]) != w {
		return p.fail("unknown word, want %s", w)
	}
	p.at += len(w)
	return nil
}

// open moves behind an opening bracket. more is false when it is closed at once.
func (p *parser) open(depth int, closing byte) (more bool, err error) {
	if depth > MaxDepth {
		return false, p.fail("nested deeper than %d", MaxDepth)
	}
	p.at++
	if p.peek() == closing {
		p.at++
		return false, nil
	}
	return true, nil
}

// next moves behind a comma, or a closing bracket; more is false then.
func (p *parser) next(closing byte) (more bool, err error) {
	switch p.peek() {
	case ',':
		p.at++
		return true, nil
	case closing:
		p.at++
		return false, nil
	}
	return false, p.unexpected("a comma or " + string(rune(closing)))
}

// key reads a key and its colon.
func (p *parser) key() (string, error) {
	if p.peek() != '"' {
		return "", p.unexpected("a key in quotes")
	}
	key, err := p.string()
	if err != nil {
		return "", err
	}
	if p.peek() != ':' {
		return "", p.unexpected("a colon")
	}
	p.at++
	return key, nil
}

func (p *parser) object(depth int) (any, error) {
	m := map[string]any{}
	more, err := p.open(depth, '}')
	for more && err == nil {
		var key string
		if key, err = p.key(); err != nil {
			break
		}
		if m[key], err = p.value(depth); err != nil {
			break
		}
		more, err = p.next('}')
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (p *parser) array(depth int) (any, error) {
	a := []any{}
	more, err := p.open(depth, ']')
	for more && err == nil {
		var v any
		if v, err = p.value(depth); err != nil {
			break
		}
		a = append(a, v)
		more, err = p.next(']')
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// string reads a string; p.at is at its opening quote. Without escapes the result aliases the input.
func (p *parser) string() (string, error) {
	p.at++
	start, ascii := p.at, true
	for p.at += plainRun(p.in[p.at:]); p.at < len(p.in); p.at += plainRun(p.in[p.at:]) {
		switch c := p.in[p.at]; {
		case c == '"':
			raw := p.in[start:p.at]
			if !ascii && !utf8.Valid(raw) {
				return "", p.fail("string is not UTF-8")
			}
			p.at++
			return unsafe.String(unsafe.SliceData(raw), len(raw)), nil
		case c == '\\':
			return p.escaped(start)
		case c < ' ':
			return "", p.fail("control character %#02x in a string", c)
		}
		for ascii = false; p.at < len(p.in) && p.in[p.at] >= utf8.RuneSelf; p.at++ {
		}
	}
	return "", p.unexpected("a closing quote")
}

// plainRun gives the number of bytes before the first that a string does not simply contain: a quote, a backslash,
// a control character, or one that is not ASCII. Eight bytes are looked at at once; of the high bits that mark them, the
// lowest is always right.
func plainRun(b []byte) int {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(b)-n >= 8; n += 8 {
		x := binary.LittleEndian.Uint64(b[n:])
		quote, slash := x^(ones*'"'), x^(ones*'\\')
		marks := x | (x-ones*' ')&^x | (quote-ones)&^quote | (slash-ones)&^slash
		if marks &= high; marks != 0 {
			return n + bits.TrailingZeros64(marks)/8
		}
	}
	for ; n < len(b); n++ {
		if c := b[n]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			break
		}
	}
	return n
}

// escaped goes on with a string from its first backslash.
func (p *parser) escaped(start int) (string, error) {
	out := append(make([]byte, 0, p.at-start+16), p.in[start:p.at]...)
	for p.at < len(p.in) {
		switch c := p.in[p.at]; {
		case c == '"':
			p.at++
			if !utf8.Valid(out) {
				return "", p.fail("string is not UTF-8")
			}
			return unsafe.String(unsafe.SliceData(out), len(out)), nil
		case c == '\\':
			p.at++
			var err error
			if out, err = p.escape(out); err != nil {
				return "", err
			}
		case c < ' ':
			return "", p.fail("control character %#02x in a string", c)
		default:
			out = append(out, c)
			p.at++
		}
	}
	return "", p.unexpected("a closing quote")
}

// escape reads one escape sequence behind its backslash.
func (p *parser) escape(out []byte) ([]byte, error) {
	if p.at >= len(p.in) {
		return nil, p.unexpected("an escape")
	}
	c := p.in[p.at]
	p.at++
	switch c {
	case '"', '\\', '/':
		return append(out, c), nil
	case 'b':
		return append(out, '\b'), nil
	case 'f':
		return append(out, '\f'), nil
	case 'n':
		return append(out, '\n'), nil
	case 'r':
		return append(out, '\r'), nil
	case 't':
		return append(out, '\t'), nil
	case 'u':
		r, err := p.hex4()
		if err != nil {
			return nil, err
		}
		if utf16.IsSurrogate(r) {
			if r, err = p.pair(r); err != nil {
				return nil, err
			}
		}
		return utf8.AppendRune(out, r), nil
	}
	p.at--
	return nil, p.unexpected("an escape")
}

// pair reads the second half of a surrogate pair.
func (p *parser) pair(high rune) (rune, error) {
	if len(p.in)-p.at >= 2 && p.in[p.at] == '\\' && p.in[p.at+1] == 'u' {
		p.at += 2
		low, err := p.hex4()
		if err != nil {
			return 0, err
		}
		if r := utf16.DecodeRune(high, low); r != utf8.RuneError {
			return r, nil
		}
	}
	return 0, p.fail("half of a surrogate pair in a string")
}

func (p *parser) hex4() (rune, error) {
	if len(p.in)-p.at < 4 {
		return 0, p.fail("want four hex digits behind \\u")
	}
	var r rune
	for _, c := range p.in[p.at : p.at+4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, p.fail("want four hex digits behind \\u")
		}
	}
	p.at += 4
	return r, nil
}

func (p *parser) number() (any, error) {
	var v Value
	err := p.numberInto(&v)
	return v.Any(), err
}

func (p *parser) numberInto(v *Value) error {
	start := p.at
	whole, err := p.numberEnd()
	if err != nil {
		return err
	}
	raw := p.in[start:p.at]
	text := unsafe.String(unsafe.SliceData(raw), len(raw))
	if whole && text != "-0" {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			*v = IntValue(n)
			return nil
		}
		*v = textValue(KindNumber, text)
		return nil
	}
	f, _ := strconv.ParseFloat(text, 64)
	if *v = FloatValue(f); math.IsInf(f, 0) {
		*v = textValue(KindNumber, text)
	}
	return nil
}

// numberEnd moves behind a number and says whether it is a whole one, without fraction and exponent.
func (p *parser) numberEnd() (whole bool, err error) {
	if p.in[p.at] == '-' {
		p.at++
	}
	switch {
	case p.at < len(p.in) && p.in[p.at] == '0':
		p.at++
	case !p.digits():
		return false, p.unexpected("a digit")
	}
	whole = true
	if p.at < len(p.in) && p.in[p.at] == '.' {
		p.at++
		whole = false
		if !p.digits() {
			return false, p.unexpected("a digit")
		}
	}
	if p.at < len(p.in) && (p.in[p.at] == 'e' || p.in[p.at] == 'E') {
		p.at++
		whole = false
		if p.at < len(p.in) && (p.in[p.at] == '+' || p.in[p.at] == '-') {
			p.at++
		}
		if !p.digits() {
			return false, p.unexpected("a digit")
		}
	}
	return whole, nil
}

// digits moves behind a run of digits and says whether there was one.
func (p *parser) digits() bool {
	start := p.at
	for p.at < len(p.in) && p.in[p.at] >= '0' && p.in[p.at] <= '9' {
		p.at++
	}
	return p.at > start
}
