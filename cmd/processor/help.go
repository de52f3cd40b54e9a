package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millweir/millweir/internal/yamlx"
)

// helpWidth is that of a terminal that nobody has made larger. Help does not ask how wide the terminal is, so that it is the same
// in a pipe and in a page.
const helpWidth = 80

// flagColumn is where the texts of flags begin; what is longer has its text below.
const flagColumn = 26

// printHelp is the help of every command, in place of cobra's, which wraps nothing.
func printHelp(cmd *cobra.Command, w io.Writer) {
	about := cmd.Long
	if about == "" {
		about = cmd.Short + "."
	}
	fmt.Fprintf(w, "%s\n\nUsage:\n", wrap(strings.TrimSpace(about), helpWidth))
	for _, line := range usageLines(cmd) {
		fmt.Fprintf(w, "  %s\n", line)
	}
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(w, "\nAlso called %s.\n", strings.Join(cmd.Aliases, " or "))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprint(w, "\nCommands:\n")
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintln(w, wrap(fmt.Sprintf("  %-*s  %s", sub.NamePadding(), sub.Name(), sub.Short), helpWidth))
			}
		}
	}
	if cmd.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
	}
	if flags := flagLines(cmd.LocalFlags()); flags != "" {
		fmt.Fprintf(w, "\nFlags:\n%s", flags)
	}
	switch {
	case cmd.HasAvailableSubCommands():
		fmt.Fprintf(w, "\n%s\n", wrap(fmt.Sprintf("%s COMMAND --help says more of a command. Exit codes: docs/exit-codes.md.", cmd.CommandPath()), helpWidth))
	case !strings.Contains(about, "docs/exit-codes.md"):
		fmt.Fprint(w, "\nExit codes: docs/exit-codes.md.\n")
	}
}

// usageLines gives the ways to call a command, which stand in its Use with bars between.
func usageLines(cmd *cobra.Command) []string {
	if cmd.HasAvailableSubCommands() {
		return []string{cmd.CommandPath() + " COMMAND"}
	}
	parent := ""
	if cmd.HasParent() {
		parent = cmd.Parent().CommandPath() + " "
	}
	var out []string
	for way := range strings.SplitSeq(cmd.Use, " | ") {
		out = append(out, parent+way+" [flags]")
	}
	return out
}

// flagLines describes flags, each beginning on a line of its own.
func flagLines(flags *pflag.FlagSet) string {
	var out strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, text := pflag.UnquoteUsage(f)
		if plain, ok := map[string]string{"string": "TEXT", "strings": "TEXT,…", "stringArray": "TEXT", "int": "N", "uint": "N", "duration": "TIME"}[value]; ok {
			value = plain
		}
		if f.Name == "help" {
			text = "print this"
		}
		name := "  --" + f.Name
		if f.Shorthand != "" {
			name = "  -" + f.Shorthand + ", --" + f.Name
		}
		switch {
		case value == "":
		case f.NoOptDefVal != "":
			name += "[=" + value + "]"
		default:
			name += " " + value
		}
		if def := defaultOf(f); def != "" {
			text += " (default " + def + ")"
		}
		lines := strings.Split(wrap(text, helpWidth-flagColumn), "\n")
		if utf8.RuneCountInString(name) > flagColumn-2 {
			fmt.Fprintln(&out, name)
			name = ""
		}
		for _, line := range lines {
			fmt.Fprintf(&out, "%-*s%s\n", flagColumn, name, line)
			name = ""
		}
	})
	return out.String()
}

// defaultOf gives the default as one would write it, "" when there is none worth telling.
func defaultOf(f *pflag.Flag) string {
	def := strings.Trim(f.DefValue, "[]")
	if def == "false" || def == "0" || def == "0s" {
		return ""
	}
	if d, err := time.ParseDuration(def); err == nil && f.Value.Type() == "duration" {
		return yamlx.FormatDuration(d)
	}
	return def
}

// entry is a line of a list: its text begins behind two blanks or more, and goes on there.
var entry = regexp.MustCompile(`^ +\S+(?: \S+)* {2,}`)

// wrap breaks lines at blanks. Lines that are not indented are one paragraph up to the next that is, or to an empty one; an
// indented one goes on below the text that it begins, or where it is indented.
func wrap(text string, width int) string {
	var out, paragraph []string
	flush := func() {
		if len(paragraph) > 0 {
			out = append(out, fill("", strings.Join(paragraph, " "), 0, width)...)
			paragraph = nil
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		switch body := strings.TrimLeft(line, " "); {
		case body == "":
			flush()
			out = append(out, "")
		case body == line:
			paragraph = append(paragraph, line)
		default:
			flush()
			head := entry.FindString(line)
			if head == "" {
				head = line[:len(line)-len(body)]
			}
			out = append(out, fill(head, line[len(head):], utf8.RuneCountInString(head), width)...)
		}
	}
	flush()
	return strings.Join(out, "\n")
}

// fill gives lines of at most width, unless a word alone is longer: the first begins with head, the others with indent blanks.
func fill(head, text string, indent, width int) []string {
	var out []string
	line, empty := head, true
	for word := range strings.FieldsSeq(text) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			out = append(out, line)
			line, empty = strings.Repeat(" ", indent), true
		}
		if !empty {
			line += " "
		}
		line += word
		empty = false
	}
	return append(out, line)
}
