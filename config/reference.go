package config

import (
	"fmt"
	"strings"

	"github.com/millweir/millweir/internal/rules"
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

| setting | type | default | meaning | refused | environment | in Flink |
|---|---|---|---|---|---|---|
`)
	var later strings.Builder
	for i := range table {
		set := &table[i]
		if g := set.gap(); set.Only || !g.mayBeGiven() || g != nil && g.Refuses == "" {
			fmt.Fprintf(&later, "| `%s` | %s | %s | %s |\n", set.Path, acceptedOf(set), set.Doc, flinkOf(set))
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | `%s` | %s |\n", set.Path, set.Type, defaultOf(set), set.Doc, refusedOf(set), set.Env(), flinkOf(set))
	}
	b.WriteString(`
## Of each source

They stand under ` + "`sources.NAME`" + ` of the service file, which the [service file's page](service-file.md) describes with all their
values; Go code gives them to its sources.

| key | default | meaning | in Flink |
|---|---|---|---|
| ` + "`sources.*.start` | `committed`" + ` | Where a partition without a checkpoint begins; committed is the first record, then. Offsets of other programs in the group are refused. | ` + "`scan.startup.mode`" + ` of the Kafka SQL connector, default group-offsets, which takes such offsets |
| ` + "`sources.*.end` | `none`" + ` | Where the source ends. | ` + "`scan.bounded.mode`" + ` of the Kafka SQL connector, default unbounded |
| ` + "`sources.*.on-missing` | `fail`" + ` | What happens when the position is no longer in the topic. | ` + "`auto.offset.reset`" + ` of the consumer, which Flink's Kafka source replaces by that of its start offsets; Kafka's own default is latest |
| ` + "`sources.*.on-error` | `fail`" + ` | What happens to a record that cannot be decoded or processed. | ` + "`json.ignore-parse-errors`" + ` of the format and its like, default false: fails; true: skips fields and rows that cannot be parsed. Only for parsing, not for what is processed |
`)
	if later.Len() == 0 {
		return b.String()
	}
	b.WriteString(`
## Known, not available yet

Only the value in the second column is accepted; it describes what the process does.

| setting | accepted | meaning | in Flink |
|---|---|---|---|
`)
	b.WriteString(later.String())
	b.WriteString("| `state.checkpoints.dir: s3://…`, `state.savepoints.dir: s3://…` | a directory, or `file:///…` | Checkpoints and savepoints in an object store. | the same with a file system plugin |\n")
	return b.String()
}

func defaultOf(set *Setting) string {
	switch {
	case set.Required:
		return "required"
	case set.Default != "":
		return "`" + set.Default + "`"
	}
	return "–"
}

func acceptedOf(set *Setting) string {
	if g := set.gap(); g != nil && g.accepted() != "" {
		return "`" + g.accepted() + "`"
	}
	return "none"
}

// refusedOf tells the range, what the row says, and what is not obeyed yet.
func refusedOf(set *Setting) string {
	var out []string
	if r, ok := rules.Of(set.Path); ok {
		out = append(out, "Outside of "+r.Show(r.Min)+" to "+r.Show(r.Max)+".")
	}
	if set.Refused != "" {
		out = append(out, set.Refused)
	}
	if g := set.gap(); g != nil && g.Refuses != "" {
		out = append(out, "Not available yet: `"+g.Refuses+"`.")
	}
	if out == nil {
		return "–"
	}
	return strings.Join(out, " ")
}

func flinkOf(set *Setting) string {
	if set.Flink == "" {
		return "–"
	}
	return "`" + set.Flink + "`, default " + set.FlinkDefault
}
