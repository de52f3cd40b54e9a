package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/config"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/rules"
)

func init() { register(newAttempts) }

// attemptsTimeout bounds the wait for the answer.
const attemptsTimeout = 15 * time.Second

func newAttempts() *cobra.Command {
	var (
		set     []string
		address string
		output  *outputFlag
	)
	cmd := &cobra.Command{
		Use:   "attempts FILE.yaml | attempts --admin HOST:PORT",
		Short: "Show what attempts of a running instance ended of",
		Long: `Show the newest 16 attempts of a running instance, those that go on included: of what each ended, how that is classed, and what
followed. It asks the admin listener of the instance that runs with the file's data-dir, or the one of --admin.

  in-progress  it goes on
  failed       the restart strategy has counted it, and another one follows after DELAY
  rejoined     its assignment has changed or was lost, which is no failure; another one follows
  gave-up      no other attempt could do better, or the restart strategy allows none
  stopped      the instance was told to stop, or the inputs have ended

RAN is the time from the first record to the end, - for one that ended before its state was restored.

Exit code 43 when no instance answers.`,
		Example: "  processor attempts orders.yaml\n  processor attempts --admin 127.0.0.1:8080 --output json",
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&set, "set", nil, "`PATH=VALUE` of a setting of the file, as in run; may be repeated")
	fs.StringVar(&address, "admin", adminHere, "ask the instance whose admin listener is at `HOST:PORT`, or here for the one that runs with the file's data-dir")
	output = addOutput(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 || len(args) == 0 && address != adminHere {
			return nil
		}
		return fault.Stopf(fault.Usage, "%s takes FILE.yaml, or --admin HOST:PORT (see %s --help)", cmd.CommandPath(), cmd.CommandPath())
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var svc *config.Service
		var err error
		if len(args) > 0 {
			if svc, err = load(cmd, args[0], set); err != nil {
				return err
			}
		}
		c, err := clientOf(address, svc)
		if err != nil {
			return err
		}
		ctx, cancel := contextWithTimeout(cmd, attemptsTimeout)
		defer cancel()
		got, err := c.Attempts(ctx)
		if err != nil {
			return err
		}
		if output.json {
			return writeJSON(cmd.OutOrStdout(), got)
		}
		return printAttempts(cmd.OutOrStdout(), got)
	}
	return cmd
}

// printAttempts prints a line per attempt, oldest first.
func printAttempts(out io.Writer, got admin.Attempts) error {
	fmt.Fprintf(out, "%s, instance %s: %s, %s since its process began\n", got.Application, got.Instance, got.State, counted(got.Restarts, "restart"))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ATTEMPT\tSTARTED\tENDED\tRAN\tSTATUS\tCLASS\tDELAY\tCAUSE")
	for _, a := range got.Attempts {
		ended, ran, delay, class, cause := "-", "-", "-", "-", "-"
		if a.Ended != nil {
			ended = clock(*a.Ended)
		}
		if a.Running != nil {
			until := time.Now()
			if a.Ended != nil {
				until = *a.Ended
			}
			ran = rules.Duration(until.Sub(*a.Running).Round(10 * time.Millisecond))
		}
		if a.Status == admin.AttemptFailed || a.Status == admin.AttemptRejoined {
			delay = rules.Duration(time.Duration(a.DelayMs * float64(time.Millisecond)).Round(time.Millisecond))
		}
		if a.Cause != "" {
			class, cause = a.Class, a.Cause
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", a.Number, clock(a.Started), ended, ran, a.Status, class, delay, cause)
	}
	return w.Flush()
}

// clock is a time in UTC, to the second.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }
