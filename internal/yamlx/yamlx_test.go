package yamlx

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/internal/fault"
)

func env(kv ...string) Lookup {
	return func(name string) (string, bool) {
		for i := 0; i < len(kv); i += 2 {
			if kv[i] == name {
				return kv[i+1], true
			}
		}
		return "", false
	}
}

func parse(t *testing.T, text string, lookup Lookup) (*Node, *Problems) {
	t.Helper()
	ps := &Problems{}
	return Parse("f.yaml", []byte(text), lookup, ps), ps
}

func TestC44_TextIsTakenAsWritten(t *testing.T) {
	for _, text := range []string{"NO", "on", "y", "010", "08", "1.10", "1e3", "2024-01-01", "22:30", "0x1F", "1_000", "18446744073709551616", "true", ".inf", "0o17", "=", "é"} {
		n, ps := parse(t, "a: "+text+"\n", env())
		got, ok := n.At("a").Text()
		require.True(t, ok, "%s: %v", text, ps.Error())
		require.Equal(t, text, got)
	}
}

func TestC44_NothingIsNoValue(t *testing.T) {
	for _, text := range []string{"~", "", "null", "Null", "NULL", `""`, "''"} {
		n, ps := parse(t, "a: "+text+"\n", env())
		_, ok := n.At("a").Text()
		require.False(t, ok, text)
		require.Contains(t, ps.Error(), "f.yaml:1:")
		require.Contains(t, ps.Error(), "a: a value is required, found")
	}
	n, ps := parse(t, "a: \"null\"\nb: '~'\n", env())
	a, ok := n.At("a").Text()
	require.True(t, ok)
	require.Equal(t, "null", a)
	b, ok := n.At("b").Text()
	require.True(t, ok)
	require.Equal(t, "~", b)
	require.Zero(t, ps.Len())
	n, ps = parse(t, "a:\n", env())
	require.Nil(t, n.At("a").Entries())
	require.Contains(t, ps.Error(), "a: a value is required")
}

func TestC44_NumbersAndBooleansInOneSpelling(t *testing.T) {
	for text, want := range map[string]bool{"7": true, `"7"`: true, "-3": true, "0": true, "010": false, "08": false, "1e3": false, "0x1F": false, "1_000": false, "1.0": false, "+7": false, "18446744073709551616": false, "x": false, "-0": false, " ": false} {
		n, ps := parse(t, "a: "+text+"\n", env())
		_, ok := n.At("a").Int(-10, 10)
		require.Equal(t, want, ok, "%q", text)
		require.Equal(t, want, ps.Len() == 0, "%q", text)
	}
	for text, want := range map[string]bool{"true": true, "false": true, "yes": false, "on": false, "True": false, "1": false, "y": false} {
		n, ps := parse(t, "a: "+text+"\n", env())
		_, ok := n.At("a").Bool()
		require.Equal(t, want, ok, "%q", text)
		require.Equal(t, want, ps.Len() == 0, "%q", text)
	}
}

func TestC44_RepeatedKeyNamesBothLines(t *testing.T) {
	_, ps := parse(t, "a:\n  b: 1\n  c: 2\n  b: 3\n", env())
	require.Equal(t, "f.yaml:4:3: a.b: repeated key on line 4; it already stands on line 2", ps.Error())
	require.Equal(t, fault.BadFile, fault.CodeOf(ps.Err()))
}

func bomb(levels, width int) string {
	var b strings.Builder
	b.WriteString("l0: &l0 x\n")
	for i := 1; i <= levels; i++ {
		b.WriteString("l" + string(rune('0'+i%10)) + strings.Repeat("_", i/10) + ": &l" + string(rune('0'+i)) + " [")
		b.WriteString(strings.TrimSuffix(strings.Repeat("*l"+string(rune('0'+i-1))+", ", width), ", "))
		b.WriteString("]\n")
	}
	return b.String()
}

// requireCheap runs fn and bounds the bytes that it allocates, and the time that it works: what the machine does meanwhile does
// not count.
func requireCheap(t *testing.T, fn func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := worked(t)
	fn()
	took := worked(t) - began
	runtime.ReadMemStats(&after)
	require.Less(t, took, time.Second)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100<<20))
}

func TestC44_BombsAreRefusedCheaply(t *testing.T) {
	for name, text := range map[string]string{
		"anchors 10 by 10": bomb(9, 10) + "last: [*l9, *l9, *l9, *l9, *l9, *l9, *l9, *l9, *l9, *l9]\n",
		"inside itself":    "a: &a [*a]\n",
		"deep":             strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
		"deep blocks":      strings.Repeat("- ", 9000) + "x",
		"wide":             "a: [" + strings.Repeat("a,", 500_000) + "]",
		"many keys":        strings.Repeat("? a\n", 250_000),
		"large":            "a: " + strings.Repeat("x", MaxFileBytes),
		"one line of dots": strings.Repeat(".", MaxFileBytes),
		"colons":           strings.Repeat(": ", 500_000),
		"quotes":           strings.Repeat("'", MaxFileBytes-1),
	} {
		t.Run(name, func(t *testing.T) {
			requireCheap(t, func() {
				_, ps := parse(t, text, env())
				require.NotZero(t, ps.Len())
			})
		})
	}
}

func TestAliasesWithinTheLimitAreAccepted(t *testing.T) {
	n, ps := parse(t, "a: &x {k: v}\nb: *x\n", env())
	v, ok := n.At("b", "k").Text()
	require.True(t, ok)
	require.Equal(t, "v", v)
	require.Zero(t, ps.Len())
}

func TestC45_ValueIsByteForByte(t *testing.T) {
	pw := `c8@i9$CWx#"'\C: >x`
	lookup := env("PW", pw, "EMPTY", "", "LINES", "a\nb: c\n", "NESTED", "${PW}", "NULLISH", "~")
	text := "plain: ${PW}\ndouble: \"${PW}\"\nsingle: '${PW}'\ninside: sasl://u:${PW}@h\nliteral: |-\n  ${PW}\n" +
		"bare: a$CWx$\nescaped: $${PW}\nboth: $${PW}=${PW}\ndef: ${UNSET:-def}\ncolon: ${UNSET:def}\nnodef: x${UNSET:-}y\nempty: ${EMPTY:-def}\n" +
		"lines: ${LINES}\nnested: ${NESTED}\nnullish: ${NULLISH}\ndash: ${UNSET:--5}\n"
	n, ps := parse(t, text, lookup)
	for key, want := range map[string]string{
		"plain": pw, "double": pw, "single": pw, "inside": "sasl://u:" + pw + "@h", "literal": pw, "bare": "a$CWx$",
		"escaped": "${PW}", "both": "${PW}=" + pw, "def": "def", "colon": "def", "nodef": "xy", "empty": "def",
		"lines": "a\nb: c\n", "nested": "${PW}", "nullish": "~", "dash": "-5",
	} {
		got, ok := n.At(key).Text()
		require.True(t, ok, "%s: %s", key, ps.Error())
		require.Equal(t, want, got, key)
	}
	require.Zero(t, ps.Len())
}

func TestC45_UnsetVariableIsNamedWithItsLine(t *testing.T) {
	_, ps := parse(t, "a: ok\nb:\n  c: x${UNSET}y\nd: |\n  one\n  ${GONE}\n", env())
	require.Equal(t, "f.yaml:3:6: b.c: environment variable UNSET is not set; set it, or write ${UNSET:-default}\n"+
		"f.yaml:6:1: d: environment variable GONE is not set; set it, or write ${GONE:-default}", ps.Error())
}

func TestC45_OtherFormsAreRefused(t *testing.T) {
	for _, text := range []string{"${PW", "${}", "${A-b}", "${A:?msg}", "${A:+x}", "${A:=x}", "${A:-${B}}", "${ A }", "${1A}", "${A.b}"} {
		_, ps := parse(t, "a: '"+text+"'\n", env("A", "1", "B", "2"))
		require.Equal(t, 1, ps.Len(), text)
	}
}

func TestC45_KeysAreNotReplaced(t *testing.T) {
	n, ps := parse(t, "${A}: x\n", env("A", "b"))
	require.Zero(t, ps.Len())
	require.Equal(t, "${A}", n.Entries()[0].Name)
}

func TestC45_EmptyVariableWhereAValueIsRequired(t *testing.T) {
	n, ps := parse(t, "a: ${EMPTY}\n", env("EMPTY", ""))
	_, ok := n.At("a").Text()
	require.False(t, ok)
	require.Equal(t, "f.yaml:1:4: a: a value is required, but ${EMPTY} is empty here", ps.Error())
}

func TestAMessageDoesNotShowWhatAVariableHeld(t *testing.T) {
	n, ps := parse(t, "a: ${SECRET}\n", env("SECRET", "canary"))
	n.At("a").Int(0, 5)
	n.At("a").Duration(0, 0)
	n.At("a").Enum("x", "y")
	n.At("a").Size(0, 5)
	n.At("a").Bool()
	require.Equal(t, 5, ps.Len())
	require.NotContains(t, ps.Error(), "canary")
}

func TestC43_Durations(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"500ms": 500 * time.Millisecond, "10s": 10 * time.Second, "1m": time.Minute, "1h30m": 90 * time.Minute, `"1s"`: time.Second,
		"1h2m3s4ms": time.Hour + 2*time.Minute + 3*time.Second + 4*time.Millisecond, "0s": 0, "0ms": 0, "90s": 90 * time.Second,
	} {
		n, ps := parse(t, "a: "+text+"\n", env())
		got, ok := n.At("a").Duration(0, 0)
		require.True(t, ok, "%s: %s", text, ps.Error())
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"30", `"30"`, "-5s", "1d", "10 s", "1.5s", "s", "10us", "1m1h", "1s1s", "+1s", "1S", "9999999h", "99999999999999999999s", "1h-5m", "0", "0x1s", "1_0s", "١s"} {
		n, ps := parse(t, "a: "+text+"\n", env())
		_, ok := n.At("a").Duration(0, 0)
		require.False(t, ok, text)
		require.Contains(t, ps.Error(), "write it as 500ms, 10s, 1m or 1h30m", text)
	}
	n, ps := parse(t, "a: 0s\n", env())
	_, ok := n.At("a").Duration(time.Millisecond, 0)
	require.False(t, ok)
	require.Equal(t, "f.yaml:1:4: a: zero is not possible here: from 1ms to 8760h", ps.Error())
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"20kb": 20480, "64mb": 64 << 20, "1gb": 1 << 30, "1GB": 1 << 30, "64MB": 64 << 20, "4096": 4096, "7b": 7, "0": 0} {
		n, ps := parse(t, "a: "+text+"\n", env())
		got, ok := n.At("a").Size(0, 1<<40)
		require.True(t, ok, "%s: %s", text, ps.Error())
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"kb", "-1kb", "1 kb", "1.5mb", "1tb", "1kib", "9999999999gb", "+1kb", "0x1kb", "1_0kb", "1e3"} {
		n, ps := parse(t, "a: "+text+"\n", env())
		_, ok := n.At("a").Size(0, 1<<62)
		require.False(t, ok, text)
		require.Equal(t, 1, ps.Len(), text)
	}
}

func TestFormattedDurationsAndSizesReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(MaxDuration/time.Millisecond)).Draw(t, "ms")) * time.Millisecond
		got, mistake := parseDuration(FormatDuration(d))
		require.Empty(t, mistake)
		require.Equal(t, d, got)
		size := rapid.Int64Min(0).Draw(t, "size")
		back, ok := parseSize(FormatSize(size))
		require.True(t, ok)
		require.Equal(t, size, back)
	})
}

func TestAnyTextSurvivesQuotingAndReplacement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.StringOf(rapid.RuneFrom([]rune("ab#\"'\\:>{}$[]&*!|%@`,\n\t é~-"))).Draw(t, "v")
		ps := &Problems{}
		n := Parse("f", []byte("a: ${V}\nb: \"${V}\"\nc: '${V}'\n"), env("V", v), ps)
		for _, key := range []string{"a", "b", "c"} {
			if got, ok := n.At(key).Text(); ok {
				require.Equal(t, v, got)
			} else {
				require.Empty(t, v)
			}
		}
	})
}

func TestAllProblemsInOnePassSorted(t *testing.T) {
	n, ps := parse(t, "zeta: 1\nsources:\n  a: {topik: x}\n  b: [1, 2]\n<<: {x: y}\nt: !!str 5\nu: &u 7\n? [a]\n: b\n", env())
	o := n.Object(nil, "sources", "sinks", "t", "u")
	o.Require("sinks")
	for _, e := range o.Get("sources").Entries() {
		e.Value.Object(nil, "topic", "key")
	}
	require.Equal(t, strings.Join([]string{
		"f.yaml:1:1: sinks: is required",
		"f.yaml:1:1: zeta: unknown key; allowed: sources, sinks, t, u",
		"f.yaml:3:7: sources.a.topik: unknown key; did you mean topic? allowed: topic, key",
		"f.yaml:4:6: sources.b: expected a mapping, found a list",
		"f.yaml:5:1: merge keys (<<) are not accepted; write the keys out",
		"f.yaml:6:4: t: tag !!str: tags are not accepted; write text in quotes",
		"f.yaml:8:3: a key must be a single word",
	}, "\n"), ps.Error())
}

func TestFilesThatAreNoServiceFile(t *testing.T) {
	for text, want := range map[string]string{
		"":                "f.yaml:1:1: the file is empty",
		"# only\n":        "f.yaml:1:1: the file is empty",
		"- a\n":           "f.yaml:1:1: the file must be a mapping of settings, found a list",
		"a: 1\n---\nb: 2": "a second document starts here",
		"a: [1\nb: 2":     "f.yaml:",
		"a: \xff":         "f.yaml:1:1: ",
		"a: *nope":        "unknown anchor",
		"\ta: 1":          "f.yaml:1:1: found character",
	} {
		n, ps := parse(t, text, env())
		require.Nil(t, n, text)
		require.Contains(t, ps.Error(), want, text)
		require.Equal(t, 1, ps.Len(), text)
	}
}

func TestReadFileNamesWhatIsWrong(t *testing.T) {
	ps := &Problems{}
	_, ok := ReadFile(filepath.Join(t.TempDir(), "none.yaml"), ps)
	require.False(t, ok)
	require.Contains(t, ps.Error(), "none.yaml: cannot be read: no such file or directory")
	big := filepath.Join(t.TempDir(), "big.yaml")
	require.NoError(t, os.WriteFile(big, make([]byte, 2<<20), 0o600))
	ps = &Problems{}
	data, ok := ReadFile(big, ps)
	require.True(t, ok)
	require.Nil(t, Parse(big, data, env(), ps))
	require.Contains(t, ps.Error(), "larger than 1 MiB")
}

func TestElements(t *testing.T) {
	n, ps := parse(t, "a: [x, y]\nb: x, y\nc: []\nd: 'x,,y'\ne: ~\nf: ${F}\n", env("F", "x,y"))
	for _, key := range []string{"a", "b", "f"} {
		got, ok := n.At(key).Elements()
		require.True(t, ok)
		require.Len(t, got, 2)
		for i, want := range []string{"x", "y"} {
			text, ok := got[i].Text()
			require.True(t, ok)
			require.Equal(t, want, text)
		}
	}
	require.Zero(t, ps.Len())
	for i, key := range []string{"c", "d", "e"} {
		_, ok := n.At(key).Elements()
		require.False(t, ok)
		require.Equal(t, i+1, ps.Len())
	}
	got, _ := n.At("f").Elements()
	require.Equal(t, `"${F}"`, got[0].Shown())
}

func TestSyntaxErrorsNameTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\nb: [x\nc: {}\n":      "f.yaml:2:1: did not find expected ',' or ']'",
		"a: 1\nb: {x: ${V}}\n":      "f.yaml:2:1: did not find expected ',' or '}'; inside of {} and [] a ${VAR} needs quotes",
		"a: 1\nb: c: d\n":           "f.yaml:2:1: mapping values are not allowed in this context",
		"a: 1\nb: 'x\n":             "f.yaml:2:1: found unexpected end of stream",
		"a: {x: ${V}}\n":            "f.yaml:1:1: did not find expected ',' or '}'; inside",
		"a:\n  b: 1\n c: 2\nd: 3\n": "did not find expected key",
		"a: 1\nb: *x\n":             "f.yaml:1:1: unknown anchor 'x' referenced",
	} {
		n, ps := parse(t, text, env("V", "1"))
		require.Nil(t, n)
		require.Contains(t, ps.Error(), want, text)
	}
}

func TestProblemsAreBoundedAndOneLineEach(t *testing.T) {
	ps := &Problems{}
	for i := range 1000 {
		ps.Add(Pos{"f", i, 1}, "p", "a\nb")
	}
	require.Equal(t, 1000, ps.Len())
	lines := strings.Split(ps.Error(), "\n")
	require.Len(t, lines, maxProblems+1)
	require.Equal(t, "… and 800 more", lines[maxProblems])
}

func TestSuggest(t *testing.T) {
	keys := []string{"interval", "timeout", "min-pause", "mode"}
	for word, want := range map[string]string{"intervall": "interval", "timoeut": "timeout", "minPause": "min-pause", "min_pause": "min-pause", "xyz": "", "": ""} {
		require.Equal(t, want, Suggest(word, keys), word)
	}
}
