package config

import (
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/rules"
	"github.com/millweir/millweir/internal/yamlx"
)

// wrong gives values that a type does not have, and what a message about them must name as allowed.
func wrong(set Setting) (values []string, allowed []string) {
	kind, word, _ := strings.Cut(set.Type, " or `")
	r, _ := rules.Of(set.Path)
	switch kind {
	case "duration":
		values = []string{"abc", "5", "9000h", "0.5s", "-1s"}
		allowed = []string{"from " + yamlx.FormatDuration(time.Duration(r.Min)*time.Millisecond) + " to " + yamlx.FormatDuration(time.Duration(r.Max)*time.Millisecond)}
	case "integer":
		values, allowed = []string{"abc", "-1", "1.5", "99999999"}, []string{"from ", " to "}
	case "size":
		values = []string{"abc", "-1", "99tb", "99999gb"}
		allowed = []string{"from " + yamlx.FormatSize(int64(r.Min)) + " to " + yamlx.FormatSize(int64(r.Max))}
	case "number":
		values, allowed = []string{"abc", "-1", "1e9"}, []string{"from ", " to "}
	case "boolean":
		values, allowed = []string{"yes", "1", "True"}, []string{"true or false"}
	case "name":
		values, allowed = []string{"a b", "s3://x"}, []string{"1 to 128 letters"}
	case "directory", "list of directories":
		values, allowed = []string{"s3://x"}, []string{"directory"}
	case "host:port", "list of host:port":
		values, allowed = []string{"x", "h:99999"}, []string{"port"}
	case "text":
		return []string{"short"}, []string{"16 to 256"}
	default:
		values, allowed = []string{"heap", "x"}, []string{"allowed: "}
	}
	if word != "" {
		allowed = append(allowed, strings.TrimSuffix(word, "`"))
	}
	if strings.HasPrefix(set.Type, "host:port or") { // the port alone is wrong in the second one
		values = values[:1]
	}
	return values, allowed
}

// TestAWrongValueSaysWhereAndWhatIsAllowed: every setting, every way in, one line each.
func TestAWrongValueSaysWhereAndWhatIsAllowed(t *testing.T) {
	for _, set := range Settings() {
		if set.Only {
			continue
		}
		values, allowed := wrong(set)
		for _, value := range values {
			for _, w := range waysIn(set.Path, value) {
				if set.Path == "application" && w.name == "file" {
					w.text = strings.Replace(minimal, "application: ", "application: \""+value+"\" #", 1)
				}
				ps := &Problems{}
				require.Nil(t, Parse("f.yaml", []byte(w.text), w.set, w.environ, ps))
				require.Equal(t, 1, ps.Len(), "%s: %s: %s", set.Path, value, ps.Error())
				line := ps.Error()
				place := map[string]string{"file": "f.yaml:", "environment": "environment " + set.Env() + ": ", "--set": "--set: "}[w.name]
				require.True(t, strings.HasPrefix(line, place), line)
				require.Regexp(t, ": "+regexp.QuoteMeta(set.Path)+`(\[0\])?: `, line)
				for _, a := range allowed {
					require.Contains(t, line, a)
				}
			}
		}
	}
}

// TestADerivedTransactionTimeoutThatIsTooLongIsShownWhereItComesFrom: nobody has given it.
func TestADerivedTransactionTimeoutThatIsTooLongIsShownWhereItComesFrom(t *testing.T) {
	ps := &Problems{}
	Parse("f.yaml", []byte(minimal), nil, []string{"MILLWEIR_CHECKPOINTING_TIMEOUT=24h"}, ps)
	require.Equal(t, "environment MILLWEIR_CHECKPOINTING_TIMEOUT: transaction.timeout: 24h6s is out of range: from 1s to 24h; it is the larger of checkpointing.interval (1s) and checkpointing.min-pause (0s), plus checkpointing.timeout (24h), plus 5s", ps.Error())
	for _, loose := range []string{"checkpointing.mode=at-least-once", "checkpointing.interval=disabled"} {
		mustLoad(t, minimal, []string{loose, "checkpointing.timeout=24h"}, nil) // no transaction, no timeout of one
	}
}

// TestAProgramIsToldTheSame: every figure of a processor.Config beyond its range, by the name of the setting.
func TestAProgramIsToldTheSame(t *testing.T) {
	obeyAll(t)
	for _, path := range rules.Paths() {
		row, ok := rows[path]
		require.True(t, ok, path)
		field := row.field
		if field == "DisabledCheckpoints" {
			field = "Interval"
		}
		c := mustLoad(t, minimal, strings.Fields(row.with), nil).Processor()
		v := reflect.ValueOf(&c).Elem()
		for name := range strings.SplitSeq(field, ".") {
			v = v.FieldByName(name)
		}
		r, _ := rules.Of(path)
		switch beyond := r.Max + 1; {
		case v.Type() == reflect.TypeFor[time.Duration]():
			v.SetInt(int64(beyond) * int64(time.Millisecond))
		case v.Kind() == reflect.Float64:
			v.SetFloat(beyond)
		default:
			v.SetInt(int64(beyond))
		}
		var lines []string
		for _, m := range c.Check() {
			lines = append(lines, m.String())
		}
		require.Len(t, lines, 1, path)
		require.Regexp(t, "^"+regexp.QuoteMeta(path)+": .* is out of range: from .* to .*", lines[0])
	}
}
