package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/internal/fault"
)

func init() { register(newValidate) }

func newValidate() *cobra.Command {
	var (
		set   []string
		print bool
	)
	cmd := &cobra.Command{
		Use:   "validate FILE.yaml",
		Short: "Check a topology file and say every mistake at once",
		Long: `Check a topology file without a broker: every mistake in one pass, each with file, line, column, key and what is allowed.

Exit code 0 when there is none, 3 otherwise.`,
		Example: "  processor validate orders.yaml\n  processor validate orders.yaml --print",
		Args:    exactArgs("FILE.yaml"),
	}
	cmd.Flags().StringArrayVar(&set, "set", nil, "`PATH=VALUE` of a setting, as in run; may be repeated")
	cmd.Flags().BoolVar(&print, "print", false, "print the effective settings, each with where it comes from, and the topology")
	output := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if output.json {
			return validateJSON(cmd, args[0], set)
		}
		svc, err := load(cmd, args[0], set)
		if err != nil {
			return fault.Stopf(fault.BadFile, "%s is not valid", args[0])
		}
		if print {
			fmt.Fprint(cmd.OutOrStdout(), svc.Print())
			return nil
		}
		p := svc.Plan
		fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: application %s, %s, %s, %s\n\n%s", args[0], p.Application,
			counted(len(p.Sources), "source"), counted(len(p.Steps), "step"), counted(len(p.Sinks), "sink"), p.Describe())
		return nil
	}
	return cmd
}

// mistake is a problem as scripts read it.
type mistake struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Path    string `json:"path"`
	Message string `json:"message"`
}

func validateJSON(cmd *cobra.Command, file string, set []string) error {
	_, problems, err := read(cmd.Context(), file, set)
	if err != nil {
		return err
	}
	list := []mistake{}
	for _, p := range problems.All() {
		list = append(list, mistake{File: p.File, Line: p.Line, Column: p.Column, Path: p.Path, Message: p.Message})
	}
	if err := writeJSON(cmd.OutOrStdout(), map[string]any{"file": file, "valid": problems.Len() == 0, "mistakes": list}); err != nil {
		return err
	}
	if problems.Len() > 0 {
		return fault.Stopf(fault.BadFile, "%s is not valid", file)
	}
	return nil
}
