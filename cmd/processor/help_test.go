package main

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// helps gives the help of every command that people see, by its path.
func helps(t *testing.T) map[string]string {
	t.Helper()
	t.Setenv("KAFKA_BROKERS", "")
	out := map[string]string{}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "help" {
			return
		}
		args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
		code, stdout, stderr := cli(t, args...)
		require.Zero(t, code, stderr)
		require.Empty(t, stderr)
		out[cmd.CommandPath()] = stdout
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRoot())
	return out
}

// TestHelpFitsATerminal: 80 columns, an example that can be copied, and where the exit codes are, for each command.
func TestHelpFitsATerminal(t *testing.T) {
	all := helps(t)
	require.Greater(t, len(all), 15)
	for path, text := range all {
		_, examples, found := strings.Cut(text, "\nExamples:\n")
		require.True(t, found, path)
		require.True(t, strings.HasPrefix(examples, "  "+path), "%s: %s", path, examples)
		require.Contains(t, text, "docs/exit-codes.md", path)
		require.Contains(t, text, "\nUsage:\n  processor", path)
		column := 0 // at which what commands are for begins
		_, commands, _ := strings.Cut(text, "\nCommands:\n")
		commands, _, _ = strings.Cut(commands, "\n\n")
		for _, m := range regexp.MustCompile(`(?m)^  [a-z].*?  +(.)`).FindAllStringSubmatchIndex(commands, -1) {
			at := m[2] - m[0]
			if column == 0 {
				column = at
			}
			require.Equal(t, column, at, "%s: %s", path, commands)
		}
		for _, line := range strings.Split(text, "\n") {
			require.LessOrEqual(t, utf8.RuneCountInString(line), 80, "%s: %s", path, line)
			require.Equal(t, strings.TrimRight(line, " "), line, path)
		}
		for _, odd := range []string{"stringArray", "strings ", " string ", `[="`, "(default [", " uint "} {
			require.NotContains(t, text, odd, path)
		}
	}
}

func TestHelpOfFlags(t *testing.T) {
	_, out, _ := cli(t, "cancel", "--help")
	require.Contains(t, out, "\nUsage:\n  processor cancel FILE.yaml [flags]\n  processor cancel --admin HOST:PORT [flags]\n")
	require.Contains(t, out, "\n  --savepoint[=DIRECTORY]\n")
	require.Contains(t, out, "\n  --set PATH=VALUE ")
	require.Contains(t, out, "(default 2m)")
	_, out, _ = cli(t, "run", "--help")
	require.Contains(t, out, "\n  -s, --from SAVEPOINT")
	require.NotContains(t, out, "(default false)")
}

func TestWrapKeepsListsAndParagraphs(t *testing.T) {
	require.Equal(t, "one two\nthree\n\n  a  first\n     second\n  b  x\nend of it", wrap("one two three\n\n  a  first second\n  b  x\nend of it", 10))
	require.Equal(t, "averylongword\nb", wrap("averylongword b", 5))
	require.Equal(t, "joined\nlines go\non", wrap("joined lines\ngo on", 8))
}

// Help of a command that does not exist is a mistake, wherever --help stands.
func TestHelpOfNoCommandIsAUsageError(t *testing.T) {
	for _, line := range []string{"nosuch --help", "--help nosuch", "state --help", "nosuch -h", "checkpoints nosuch --help", "savepoint nosuch --help", "help nosuch", "help checkpoints nosuch", "nosuch --version"} {
		code, stdout, stderr := cli(t, strings.Fields(line)...)
		require.Equal(t, 2, code, line)
		require.Empty(t, stdout, line)
		require.Equal(t, 1, strings.Count(stderr, "\n"), "%s: %s", line, stderr)
	}
	for _, line := range []string{"--help", "-h", "help", "", "checkpoints --help", "checkpoints", "help checkpoints", "checkpoints verify --help"} {
		code, stdout, _ := cli(t, strings.Fields(line)...)
		require.Zero(t, code, line)
		require.Contains(t, stdout, "\nUsage:\n", line)
	}
}
