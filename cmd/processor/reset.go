package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/processor"
)

func init() { register(newReset) }

func newReset() *cobra.Command {
	var (
		set []string
		yes bool
	)
	cmd := &cobra.Command{
		Use:   "reset FILE.yaml",
		Short: "Delete what a service keeps, so that it begins anew",
		Long: `Delete the group's offsets, the checkpoints of the application, the local state in the data directory and the internal topics, so
that the next start is as the first one: it begins where the sources say. Input topics, output topics and savepoints stay, so
what is processed again is written again.

It is refused while the group has members. It shows what will be deleted, and asks on a terminal; elsewhere it wants --yes.`,
		Example: "  processor reset orders.yaml\n  processor reset orders.yaml --yes --output json",
		Args:    exactArgs("FILE.yaml"),
	}
	cmd.Flags().StringArrayVar(&set, "set", nil, "`PATH=VALUE` of a setting, as in run; may be repeated")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	output := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		svc, err := load(cmd, args[0], set)
		if err != nil {
			return err
		}
		cfg := svc.Processor()
		if cfg.Logger, err = newLogger(io.Discard, "error", "text"); err != nil {
			return err
		}
		r, err := processor.PlanReset(cmd.Context(), svc.Application, cfg)
		if err != nil {
			return err
		}
		if !output.json {
			printReset(cmd.OutOrStdout(), r)
			printNotes(cmd.OutOrStdout(), r.Notes)
		}
		planned := len(r.Notes)
		if r.Empty() {
			if output.json {
				return writeJSON(cmd.OutOrStdout(), r)
			}
			return nil
		}
		if err := confirm(cmd, yes, "delete all of this?"); err != nil {
			return err
		}
		if err := r.Do(cmd.Context()); err != nil {
			return err
		}
		if output.json {
			return writeJSON(cmd.OutOrStdout(), r)
		}
		fmt.Fprintln(cmd.OutOrStdout(), "deleted")
		printNotes(cmd.OutOrStdout(), r.Notes[planned:])
		return nil
	}
	return cmd
}

func printNotes(out io.Writer, notes []string) {
	for _, n := range notes {
		fmt.Fprintln(out, n)
	}
}

func printReset(out io.Writer, r *processor.Reset) {
	if r.Empty() {
		fmt.Fprintf(out, "there is nothing of %s to delete\n", r.Application)
		return
	}
	fmt.Fprintf(out, "to delete of %s:\n", r.Application)
	for _, g := range r.Groups {
		fmt.Fprintf(out, "  group        %s\n", g)
	}
	if r.Offsets > 0 {
		fmt.Fprintf(out, "               with the offsets of %s\n", counted(r.Offsets, "partition"))
	}
	for _, t := range r.Topics {
		fmt.Fprintf(out, "  topic        %s\n", t)
	}
	if r.Files > 0 {
		fmt.Fprintf(out, "  checkpoints  %s of %s in %s\n", counted(r.Files, "file"), bytesText(r.Bytes), r.CheckpointsDir)
	}
	if r.Elsewhere {
		fmt.Fprintf(out, "  stays        what the committed offsets name: those checkpoints are not in %s. Are data-dir and state.checkpoints.dir those of the service (--set)? A start in the directory that has them is refused\n", r.CheckpointsDir)
	}
	for _, d := range r.Local {
		fmt.Fprintf(out, "  local state  %s\n", d)
	}
	for _, f := range r.Foreign {
		fmt.Fprintf(out, "  stays        %s: it is not of a checkpoint\n", f)
	}
}

// confirm asks on a terminal, and wants --yes elsewhere.
func confirm(cmd *cobra.Command, yes bool, question string) error {
	if yes {
		return nil
	}
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !readsTerminal(in) {
		return fault.Stopf(fault.Usage, "nothing is deleted without --yes")
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s [y/N] ", question)
	line, err := bufio.NewReader(io.LimitReader(in, 64)).ReadString('\n')
	if errors.Is(err, io.EOF) {
		return fault.Stopf(fault.Usage, "nothing is deleted without --yes")
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); err != nil || answer != "y" && answer != "yes" {
		return fault.Stopf(fault.Usage, "nothing is deleted")
	}
	return nil
}
