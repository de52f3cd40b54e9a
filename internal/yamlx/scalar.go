package yamlx

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxDuration is the longest duration that is accepted.
const MaxDuration = 365 * 24 * time.Hour

// Text gives the text as written, with variables replaced. It is never empty: an empty text is a mistake.
func (n *Node) Text() (string, bool) {
	if !n.want(scalar, "") {
		return "", false
	}
	if n.tree.text == "" {
		if n.tree.replaced {
			n.Errorf("a value is required, but %s is empty here", n.tree.raw)
		} else {
			n.Errorf("a value is required, found an empty text")
		}
		return "", false
	}
	return n.tree.text, true
}

// Shown is the text as a message may show it: as the file has it, variables not replaced.
func (n *Node) Shown() string { return quote(n.tree.raw) }

// Bool reads true or false. Other words that YAML 1.1 knew for them (yes, on, y …) are mistakes.
func (n *Node) Bool() (bool, bool) {
	text, ok := n.Text()
	if !ok {
		return false, false
	}
	switch text {
	case "true":
		return true, true
	case "false":
		return false, true
	}
	n.Errorf("expected true or false, found %s", n.Shown())
	return false, false
}

// Int reads a whole decimal number within [min, max]: digits with an optional minus, no leading zero.
func (n *Node) Int(min, max int64) (int64, bool) {
	text, ok := n.Text()
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || strconv.FormatInt(v, 10) != text {
		n.Errorf("expected a whole number %s%s, found %s", intRange(min, max), n.orWord(), n.Shown())
		return 0, false
	}
	if v < min || v > max {
		n.Errorf("%s is out of range: %s%s", n.Shown(), intRange(min, max), n.orWord())
		return 0, false
	}
	return v, true
}

func intRange(min, max int64) string {
	if max == math.MaxInt64 {
		return fmt.Sprintf("from %d", min)
	}
	return fmt.Sprintf("from %d to %d", min, max)
}

// Enum reads one of the allowed words, exactly as listed.
func (n *Node) Enum(allowed ...string) (string, bool) {
	text, ok := n.Text()
	if !ok {
		return "", false
	}
	if slices.Contains(allowed, text) {
		return text, true
	}
	n.Errorf("unknown value %s%s", n.Shown(), didYouMean(n.tree.raw, allowed))
	return "", false
}

// Elements gives the elements of a list, or those of one text with commas between them. There is at least one, and none
// is empty; each can be read and complained about on its own.
func (n *Node) Elements() ([]*Node, bool) {
	if n.IsList() {
		out := n.List()
		if !n.tree.bad && len(out) == 0 {
			n.Errorf("a value is required, found an empty list")
		}
		return out, len(out) > 0
	}
	if n.IsMapping() {
		n.Errorf("expected a list, or one text with commas, found a mapping")
		return nil, false
	}
	text, ok := n.Text()
	if !ok {
		return nil, false
	}
	parts := strings.Split(text, ",")
	out := make([]*Node, len(parts))
	for i, part := range parts {
		t := *n.tree
		t.text = strings.TrimSpace(part)
		if len(parts) > 1 && !t.replaced {
			t.raw = t.text
		}
		if t.text == "" {
			n.Errorf("an element of %s is empty", n.Shown())
			return nil, false
		}
		out[i] = &Node{tree: &t, path: n.path, ps: n.ps}
	}
	return out, true
}

// The units of a duration from large to small, in the order in which they may follow each other.
var units = []struct {
	name string
	unit time.Duration
}{{"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}}

const durationExample = "write it as 500ms, 10s, 1m or 1h30m"

// Duration reads a duration such as 500ms, 10s, 1m or 1h30m within [min, max]; when max is 0, MaxDuration counts.
// A unit is always needed; zero is written 0s and accepted only when min is not above it.
func (n *Node) Duration(min, max time.Duration) (time.Duration, bool) {
	text, ok := n.Text()
	if !ok {
		return 0, false
	}
	if max == 0 {
		max = MaxDuration
	}
	allowed := "from " + FormatDuration(min) + " to " + FormatDuration(max) + n.orWord()
	d, mistake := parseDuration(text)
	switch {
	case mistake != "":
		n.Errorf("%s is not a duration: %s; %s, %s", n.Shown(), mistake, durationExample, allowed)
		return 0, false
	case d == 0 && min > 0:
		n.Errorf("zero is not possible here: %s", allowed)
		return 0, false
	case d < min || d > max:
		n.Errorf("%s is out of range: %s", n.Shown(), allowed)
		return 0, false
	}
	return d, true
}

// parseDuration gives the duration, or what is wrong with the text.
func parseDuration(text string) (time.Duration, string) {
	if strings.HasPrefix(text, "-") {
		return 0, "it must not be negative"
	}
	if text != strings.Map(dropSpace, text) {
		return 0, "it has a space"
	}
	var total time.Duration
	next := 0 // the first unit that may still follow
	for rest := text; rest != ""; {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		if digits == 0 {
			return 0, "a number with a unit is expected"
		}
		word := rest[digits:]
		if i := strings.IndexAny(word, "0123456789"); i >= 0 {
			word = word[:i]
		}
		switch {
		case word == "":
			return 0, "it has no unit"
		case strings.HasPrefix(word, ".") || strings.HasPrefix(word, ","):
			return 0, "it has a fraction"
		}
		u := slices.IndexFunc(units, func(u struct {
			name string
			unit time.Duration
		}) bool {
			return u.name == word
		})
		if u < 0 {
			return 0, "unknown unit " + quote(word) + ", the units are ms, s, m, h"
		}
		if u < next {
			return 0, "the units must fall from h over m and s to ms, each once"
		}
		v, err := strconv.ParseInt(rest[:digits], 10, 64)
		if err != nil || v > int64(MaxDuration/units[u].unit) {
			return 0, "it is too long"
		}
		total += time.Duration(v) * units[u].unit
		next, rest = u+1, rest[digits+len(word):]
	}
	return total, ""
}

func dropSpace(r rune) rune {
	if r == ' ' || r == '\t' || r == '\n' {
		return -1
	}
	return r
}

// FormatDuration writes a duration the way Duration reads it, in whole milliseconds.
func FormatDuration(d time.Duration) string {
	if d < time.Millisecond {
		return "0s"
	}
	var b strings.Builder
	for _, u := range units {
		if v := d / u.unit; v > 0 {
			b.WriteString(strconv.FormatInt(int64(v), 10) + u.name)
			d -= v * u.unit
		}
	}
	return b.String()
}

// The units of a size. A kb is 1024 bytes, as in Flink.
var sizeUnits = []struct {
	name string
	unit int64
}{{"gb", 1 << 30}, {"mb", 1 << 20}, {"kb", 1 << 10}, {"b", 1}}

// Size reads a size in bytes such as 20kb, 64mb or 1gb (upper or lower case, kb = 1024) within [min, max]. A number
// without a unit counts bytes, as in Flink.
func (n *Node) Size(min, max int64) (int64, bool) {
	text, ok := n.Text()
	if !ok {
		return 0, false
	}
	v, good := parseSize(text)
	if !good {
		n.Errorf("%s is not a size; write it as 20kb, 64mb or 1gb, from %s to %s", n.Shown(), FormatSize(min), FormatSize(max))
		return 0, false
	}
	if v < min || v > max {
		n.Errorf("%s is out of range: from %s to %s", n.Shown(), FormatSize(min), FormatSize(max))
		return 0, false
	}
	return v, true
}

func parseSize(text string) (int64, bool) {
	lower, unit := strings.ToLower(text), int64(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(lower, u.name); ok {
			lower, unit = rest, u.unit
			break
		}
	}
	v, err := strconv.ParseUint(lower, 10, 63)
	if err != nil || int64(v) > math.MaxInt64/unit {
		return 0, false
	}
	return int64(v) * unit, true
}

// FormatSize writes a size the way Size reads it, in the largest unit that divides it.
func FormatSize(v int64) string {
	for _, u := range sizeUnits {
		if v >= u.unit && v%u.unit == 0 {
			return strconv.FormatInt(v/u.unit, 10) + u.name
		}
	}
	return strconv.FormatInt(v, 10) + "b"
}
