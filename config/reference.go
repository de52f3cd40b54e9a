package config

import (
	"fmt"
	"strings"
)

// Reference is the reference page of the settings in Markdown, made from the table.
func Reference() string {
	var b strings.Builder
	b.WriteString(`# Settings

Made from the table in package config; do not edit by hand.

A setting stands in the service file under its dotted path, nested: ` + "`checkpointing.interval`" + ` is

` + "```yaml\ncheckpointing:\n  interval: 1s\n```" + `

Defaults are overridden by the file, the file by the environment, the environment by ` + "`--set path=value`" + `. All of
them are read by the same rules, and a value that another one overrides is checked too:

- a duration needs a unit: ` + "`500ms`, `10s`, `1m`, `1h30m`" + `; no sign, no fraction, no space, no days;
- a size is ` + "`20kb`, `64mb` or `1gb`" + `, upper or lower case, 1kb = 1024 bytes; a bare number counts bytes;
- a boolean is ` + "`true` or `false`" + `;
- a list is a YAML list, or one text with commas;
- an empty value, ` + "`~` and `null`" + ` are mistakes: leave the key out to get the default.

In the values of the file ` + "`${VAR}`" + ` is replaced by the environment variable, byte for byte, and ` + "`${VAR:-default}`" + ` (or
` + "`${VAR:default}`" + `) by the default when the variable is unset or empty. ` + "`$${`" + ` stands for a literal ` + "`${`" + `. A variable that is
unset and has no default is a mistake. Nothing is replaced in keys, in ` + "`MILLWEIR_…`" + ` variables and in ` + "`--set`" + `.

| setting | type | default | meaning | environment | in Flink |
|---|---|---|---|---|---|
`)
	var later strings.Builder
	for _, s := range table {
		flink := "–"
		if s.Flink != "" {
			flink = "`" + s.Flink + "`"
		}
		def := "–"
		switch {
		case s.Required:
			def = "required"
		case s.Default != "":
			def = "`" + s.Default + "`"
		}
		if s.Only {
			fmt.Fprintf(&later, "| `%s` | %s | %s | %s |\n", s.Path, strings.Replace(def, "–", "none", 1), s.Doc, flink)
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | `%s` | %s |\n", s.Path, s.Type, def, s.Doc, s.Env(), flink)
	}
	b.WriteString(`
## Known, not available yet

Only the value in the second column is accepted; it describes what the process does.

| setting | accepted | meaning | in Flink |
|---|---|---|---|
`)
	b.WriteString(later.String())
	return b.String()
}
