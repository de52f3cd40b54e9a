package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millweir/millweir/internal/fault"
)

// interrupted is the exit code of a command that a signal ended before it had a result.
const interrupted = 130

// commands are added by the files of the commands in their init functions.
var commands []func() *cobra.Command

func register(newCommand func() *cobra.Command) { commands = append(commands, newCommand) }

// execute runs one command line and gives the exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	out := &outlet{Writer: stdout}
	root.SetOut(out)
	root.SetErr(stderr)
	var misnamed error // help has no error of its own
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if cmd.HasAvailableSubCommands() {
			misnamed = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if misnamed == nil {
			help(cmd, args)
		}
	})
	err := cmp.Or(root.ExecuteContext(ctx), misnamed)
	if err == nil && out.err != nil {
		err = fmt.Errorf("the output could not be written: %w", out.err)
	}
	if err == nil {
		return int(fault.OK)
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) && fault.CodeOf(err) != fault.Unfinished {
		fmt.Fprintln(stderr, "processor: interrupted")
		return interrupted
	}
	fmt.Fprintf(stderr, "processor: %s\n", oneLine(err))
	return int(fault.CodeOf(err))
}

// outlet is standard output. It keeps its first error, since most lines are printed where nobody asks for one.
type outlet struct {
	io.Writer
	err error
}

// Write writes on.
func (o *outlet) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	o.err = cmp.Or(o.err, err)
	return n, err
}

// beneath gives what an outlet writes to, which may be a terminal.
func beneath(w io.Writer) io.Writer {
	if o, ok := w.(*outlet); ok {
		return o.Writer
	}
	return w
}

// oneLine is the message of an error; joined ones, each on a line of its own, come behind each other.
func oneLine(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "processor",
		Short: "Exactly-once stream processing on Kafka",
		Long: `Exactly-once stream processing on Kafka, in one binary.

First steps, with nothing installed:
  processor demo       a job, killed again and again, and an independent check of its result
  processor broker     a broker for trying things out

Exit codes: 0 all well, 1 a check failed, 2 wrong usage, 3 a mistake in the service file; docs/exit-codes.md has the others.`,
		Example:       "  processor demo\n  processor validate orders.yaml\n  processor run orders.yaml",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          unknownCommand,
	}
	version := root.Flags().Bool("version", false, "tell the version, as the command version does")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *version {
			return printVersion(cmd.OutOrStdout())
		}
		return cmd.Help()
	}
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return refuseEmpty(cmd) }
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		message := err.Error()
		for cause, plain := range flagCauses {
			message = strings.Replace(message, cause, plain, 1)
		}
		return fault.Stopf(fault.Usage, "%s (see %s --help)", message, cmd.CommandPath())
	})
	root.SetHelpCommand(newHelp(root))
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(cmd, cmd.OutOrStdout()) })
	root.CompletionOptions.HiddenDefaultCmd = true
	for _, c := range commands {
		root.AddCommand(c())
	}
	return root
}

// refuseEmpty refuses flags that are given without a value, as by a script whose variable is not set: to take such a one as left
// out would do something else than what was asked for, such as a cancel of all instances, or one without the savepoint.
func refuseEmpty(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		if err == nil && (len(values) == 0 || slices.ContainsFunc(values, func(v string) bool { return strings.TrimSpace(v) == "" })) {
			err = fault.Stopf(fault.Usage, "--%s has an empty value: give it one, or leave the flag out (see %s --help)", f.Name, cmd.CommandPath())
		}
	})
	return err
}

// flagCauses are the wordings of Go's number parser that an error of a flag may hold, and what people read instead.
var flagCauses = map[string]string{
	"strconv.ParseInt: parsing ":  "not a whole number: ",
	"strconv.ParseUint: parsing ": "not a whole number from 0: ",
	": invalid syntax":            "",
	": value out of range":        " (out of range)",
}

// newHelp is cobra's help command, except that the name of no command is an error.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about any command",
		RunE: func(_ *cobra.Command, args []string) error {
			about, rest, err := root.Find(args)
			if err != nil || len(args) > 0 && about == root {
				return unknownCommand(root, args)
			}
			if len(rest) > 0 {
				return fault.Stopf(fault.Usage, "%s has no sub-command %q (see %s --help)", about.CommandPath(), rest[0], about.CommandPath())
			}
			return about.Help()
		},
	}
}

func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := "see processor --help"
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return fault.Stopf(fault.Usage, "there is no command %q: %s", args[0], hint)
}

// exactArgs names the arguments that a command wants.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		want := "no argument"
		if len(names) > 0 {
			want = strings.Join(names, " ")
		}
		return fault.Stopf(fault.Usage, "%s takes %s, not %d arguments (see %s --help)", cmd.CommandPath(), want, len(args), cmd.CommandPath())
	}
}

// outputFlag is --output: text for people, json for scripts.
type outputFlag struct{ json bool }

func (o *outputFlag) String() string {
	if o.json {
		return "json"
	}
	return "text"
}

// Set takes text or json.
func (o *outputFlag) Set(s string) error {
	if s != "text" && s != "json" {
		return errors.New("text or json")
	}
	o.json = s == "json"
	return nil
}

// Type is what the help shows.
func (o *outputFlag) Type() string { return "text|json" }

func addOutput(cmd *cobra.Command) *outputFlag {
	o := new(outputFlag)
	cmd.Flags().Var(o, "output", "form of the result")
	return o
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// brokersFlag gives --brokers with KAFKA_BROKERS as its default.
func brokersFlag(cmd *cobra.Command, into *[]string, fallback []string, help string) {
	if env := os.Getenv("KAFKA_BROKERS"); env != "" {
		fallback = strings.Split(env, ",")
	}
	cmd.Flags().StringSliceVar(into, "brokers", fallback, help)
}

// isTerminal says whether w is a terminal that understands cursor movement.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	return readsTerminal(f)
}
