package main

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/config"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/rules"
	"github.com/millweir/millweir/processor"
)

func init() { register(newCancel) }

// adminHere is the value of --admin for the instance whose data directory is in the file.
const adminHere = "here"

// tokenVariable holds the token for --admin where the file has none.
const tokenVariable = "MILLWEIR_ADMIN_TOKEN"

// sendFlags are the flags of what commands running instances.
type sendFlags struct {
	set     []string
	admin   string
	timeout time.Duration
	output  *outputFlag
	idle    string // what is said of an instance that stands by
}

func (f *sendFlags) add(cmd *cobra.Command, timeout time.Duration) {
	fs := cmd.Flags()
	fs.StringArrayVar(&f.set, "set", nil, "`PATH=VALUE` of a setting of the file, as in run; may be repeated")
	fs.StringVar(&f.admin, "admin", "", "command only the instance whose admin listener is at `HOST:PORT`, or here for the one that runs with the file's data-dir")
	fs.DurationVar(&f.timeout, "timeout", timeout, "how long the command may take with all that it waits for")
	f.output = addOutput(cmd)
	f.idle = "stands by: it has no partitions, and nothing to do"
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 || len(args) == 0 && f.admin != "" && f.admin != adminHere {
			return nil
		}
		return fault.Stopf(fault.Usage, "%s takes FILE.yaml, or --admin HOST:PORT (see %s --help)", cmd.CommandPath(), cmd.CommandPath())
	}
}

// send commands all instances of the file, or the one of --admin.
func (f *sendFlags) send(cmd *cobra.Command, args []string, what processor.Send) (processor.Outcome, error) {
	if f.timeout < time.Second || f.timeout > time.Hour {
		return processor.Outcome{}, fault.Stopf(fault.Usage, "--timeout %s: from 1s to 1h", f.timeout)
	}
	what.Timeout = f.timeout
	var svc *config.Service
	if len(args) > 0 {
		var err error
		if svc, err = load(cmd, args[0], f.set); err != nil {
			return processor.Outcome{}, err
		}
	}
	if f.admin == "" {
		cfg := svc.Processor()
		cfg.Logger = slog.New(slog.DiscardHandler)
		return processor.SendAll(cmd.Context(), svc.Application, cfg, what)
	}
	return f.sendOne(cmd, svc, what)
}

func (f *sendFlags) sendOne(cmd *cobra.Command, svc *config.Service, what processor.Send) (processor.Outcome, error) {
	c, err := clientOf(f.admin, svc)
	if err != nil {
		return processor.Outcome{}, err
	}
	ctx, cancel := contextWithTimeout(cmd, f.timeout)
	defer cancel()
	var rep processor.Reply
	switch what.Command {
	case processor.CheckpointCommand:
		var t admin.Triggered
		t, err = c.TriggerCheckpoint(ctx)
		rep.Part, rep.Skipped = t.Part, !t.Needed
	case processor.SavepointCommand:
		rep.Part, err = c.TriggerSavepoint(ctx, what.Dir)
	case processor.CancelCommand:
		rep.Part, err = c.Cancel(ctx, admin.Cancel{Savepoint: what.Savepoint, Dir: what.Dir})
	}
	return processor.Outcome{Replies: []processor.Reply{rep}, Problems: []string{}}, err
}

// clientOf gives a client of the listener at an address, or of the instance whose data directory is in the file.
func clientOf(address string, svc *config.Service) (admin.Client, error) {
	c := admin.Client{Address: address, Token: os.Getenv(tokenVariable)}
	if svc != nil {
		c.Application = svc.Application
		c.Token = cmp.Or(svc.Admin.Token, c.Token)
	}
	if address == adminHere {
		var err error
		c.Address, c.Instance, err = admin.ReadAddress(svc.DataDir)
		return c, err
	}
	return c, nil
}

// report prints one line per instance, and gives the error of the whole.
func (f *sendFlags) report(out io.Writer, o processor.Outcome, done func(processor.Reply) string) error {
	if f.output.json {
		if err := writeJSON(out, o); err != nil {
			return err
		}
		return o.Err()
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, r := range o.Replies {
		text := done(r)
		switch {
		case r.Error != "":
			text = "FAILED: " + r.Error
		case r.StandingBy:
			text = f.idle
		}
		fmt.Fprintf(w, "%s\t%s\n", r.Instance, text)
	}
	for _, n := range o.Notes {
		fmt.Fprintln(w, n)
	}
	if o.Deleted != nil {
		fmt.Fprintln(w, "all instances have ended, and the checkpoints are deleted")
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return o.Err()
}

// placeOf makes a directory that was named on the command line absolute: the instances have working directories of their own.
func placeOf(dir string) (string, error) {
	if err := asPath(&dir); err != nil || dir == "" {
		return "", err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fault.Stopf(fault.Usage, "%s: %w", dir, err)
	}
	return abs, nil
}

// asPath makes a path of a directory that was named on the command line, as a path or as a file URL.
func asPath(dir *string) error {
	if text := rules.Dir(*dir); text != "" {
		return fault.Stopf(fault.Usage, "directory %q %s", *dir, text)
	}
	*dir = rules.DirOf(*dir)
	return nil
}

// unsaid stands for the savepoint directory that each instance has for itself.
const unsaid = "\x00"

func newCancel() *cobra.Command {
	var (
		f         sendFlags
		savepoint string
	)
	cmd := &cobra.Command{
		Use:   "cancel FILE.yaml | cancel --admin HOST:PORT",
		Short: "End the running instances after a last checkpoint, or a savepoint",
		Long: `End all running instances of the service: each takes a last checkpoint and ends with exit code 0. The command goes over the topic
<application>-control, and waits until every member of the group has replied; with --admin it goes to one instance.

With --savepoint the last checkpoint is a savepoint, too: complete, and not behind what was committed. An instance that cannot
write its part says so and goes on, and the command fails.

Where the instances run with checkpointing.retention: delete-on-cancellation, and without --savepoint, the checkpoints are deleted
when nobody is in the group any more, and nothing before that. What FILE.yaml says counts where no instance runs, or none replies;
where it is something else, or the instances differ, the command says so, and fails if that keeps checkpoints. An instance that
does not reply keeps them until its group.session-timeout is over: cancel again then, which does the rest, also when no instance
runs. What somebody has done since who was not cancelled is not deleted. --timeout bounds all of it. With --admin the last instance that is
cancelled deletes them; before that the command says that they stay, and that is no failure. Where none is left and they stay all the same,
as when several are cancelled so at one moment, the code is 43: cancel again, with FILE.yaml.

Exit code 0 when all have ended well, 43 when no instance runs or one did not reply, else that of the first one that failed.`,
		Example: "  processor cancel orders.yaml\n  processor cancel orders.yaml --savepoint\n  processor cancel orders.yaml --savepoint=/var/lib/savepoints\n  processor cancel --admin 127.0.0.1:8080",
	}
	f.add(cmd, 2*time.Minute)
	f.idle = "ended; it stood by, without partitions"
	cmd.Flags().StringVar(&savepoint, "savepoint", "", "end with a savepoint in this `DIRECTORY`, which all instances reach; without one, in their state.savepoints.dir")
	cmd.Flags().Lookup("savepoint").NoOptDefVal = unsaid
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := placeOf(strings.TrimPrefix(savepoint, unsaid))
		if err != nil {
			return err
		}
		o, err := f.send(cmd, args, processor.Send{Command: processor.CancelCommand, Savepoint: savepoint != "", Dir: dir})
		if err != nil {
			return err
		}
		return f.report(cmd.OutOrStdout(), o, func(r processor.Reply) string {
			if r.Path != "" {
				return "ended with savepoint " + savepointText(r)
			}
			if r.OffsetsOnly {
				return "ended, offsets committed"
			}
			if r.Kept != "" {
				return "ended after a last checkpoint; the checkpoints stay: " + r.Kept
			}
			return "ended after a last checkpoint"
		})
	}
	return cmd
}

func newCheckpointsTrigger() *cobra.Command {
	var f sendFlags
	cmd := &cobra.Command{
		Use:   "trigger FILE.yaml | trigger --admin HOST:PORT",
		Short: "Take a checkpoint now",
		Long: `Take a checkpoint now, in all running instances of the service, over the topic <application>-control; with --admin in one of
them. An instance in which nothing has changed since its last checkpoint takes none.`,
		Example: "  processor checkpoints trigger orders.yaml\n  processor checkpoints trigger --admin 127.0.0.1:8080 --output json",
	}
	f.add(cmd, time.Minute)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o, err := f.send(cmd, args, processor.Send{Command: processor.CheckpointCommand})
		if err != nil {
			return err
		}
		return f.report(cmd.OutOrStdout(), o, func(r processor.Reply) string {
			if r.Skipped {
				return "nothing has changed since the last checkpoint"
			}
			return fmt.Sprintf("checkpoint %s, %s", r.Checkpoint, counted(len(r.Partitions), "partition"))
		})
	}
	return cmd
}
