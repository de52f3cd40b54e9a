package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/processor"
	"github.com/millweir/millweir/snapshot"
)

func init() { register(newSavepoint) }

func newSavepoint() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "savepoint",
		Aliases: []string{"savepoints"},
		Short:   "Take, list, inspect and dispose of savepoints",
		Long: `A savepoint is the whole state of a service at one moment: complete, self-contained, independent of backend, parallelism and
host, and never removed but by dispose. With several instances it has one part, a directory, for each of them.`,
		Example: "  processor savepoint trigger orders.yaml\n  processor savepoint list orders.yaml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return fault.Stopf(fault.Usage, "there is no command savepoint %s: trigger, list, inspect or dispose", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSavepointTrigger(), newSavepointList(), newSavepointInspect(), newSavepointDispose())
	return cmd
}

func contextWithTimeout(cmd *cobra.Command, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), d)
}

// savepointText shows the part of one instance.
func savepointText(r processor.Reply) string {
	return fmt.Sprintf("%s, %s, digest %.16s", r.Path, counted(len(r.Partitions), "partition"), r.Digest)
}

func newSavepointTrigger() *cobra.Command {
	var (
		f   sendFlags
		dir string
	)
	cmd := &cobra.Command{
		Use:   "trigger FILE.yaml | trigger --admin HOST:PORT",
		Short: "Take a savepoint of all running instances",
		Long: `Take a savepoint of all running instances of the service, over the topic <application>-control; with --admin of one of them. The
service goes on meanwhile. The command waits for the parts of all members of the group and prints one line for each.

An instance that stands by, without partitions, has no part, and is listed as such; with --admin that is 43, since there is no
savepoint.

Exit code 0 when the savepoint is complete, 43 when no instance runs, one did not reply, or a partition was on its way from one
instance to another, else that of the first instance that failed.`,
		Example: "  processor savepoint trigger orders.yaml\n  processor savepoint trigger orders.yaml --dir /var/lib/savepoints",
	}
	f.add(cmd, 2*time.Minute)
	cmd.Flags().StringVar(&dir, "dir", "", "`DIRECTORY` to write to, which all instances reach, in place of their state.savepoints.dir")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		place, err := placeOf(dir)
		if err != nil {
			return err
		}
		o, err := f.send(cmd, args, processor.Send{Command: processor.SavepointCommand, Dir: place})
		if err != nil {
			return err
		}
		return f.report(cmd.OutOrStdout(), o, savepointText)
	}
	return cmd
}

func newSavepointList() *cobra.Command {
	var (
		dir string
		set []string
	)
	cmd := &cobra.Command{
		Use:   "list FILE.yaml | list --dir DIRECTORY",
		Short: "List the savepoints in a directory",
		Long: `List the savepoints in a directory, newest first. The state is not read: inspect does. Those that are damaged, never finished, or
not to be read for lack of the right to, are listed with the reason beside the others.`,
		Example: "  processor savepoint list orders.yaml\n  processor savepoint list --dir /var/lib/savepoints --output json",
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the `DIRECTORY`, in place of the file's state.savepoints.dir")
	cmd.Flags().StringArrayVar(&set, "set", nil, "`PATH=VALUE` of a setting of the file, as in run; may be repeated")
	output := addOutput(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 || len(args) == 0 && dir != "" {
			return nil
		}
		return fault.Stopf(fault.Usage, "which savepoints? give the service's FILE.yaml, or --dir DIRECTORY (see %s --help)", cmd.CommandPath())
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		application := ""
		if err := asPath(&dir); err != nil {
			return err
		}
		if len(args) > 0 {
			svc, err := load(cmd, args[0], set)
			if err != nil {
				return err
			}
			if application = svc.Application; dir == "" {
				dir = svc.State.SavepointsDir
			}
			if dir == "" {
				return fault.Stopf(fault.BadFile, "%s does not set state.savepoints.dir: name a directory with --dir", args[0])
			}
		}
		found, err := snapshot.ListSavepoints(cmd.Context(), dir)
		if err != nil {
			return err
		}
		list := []admin.SavepointInfo{}
		for _, s := range found {
			if application == "" || s.Application == application {
				list = append(list, processor.SavepointInfoOf(s))
			}
		}
		if output.json {
			return writeJSON(cmd.OutOrStdout(), map[string]any{"directory": dir, "savepoints": list})
		}
		if err := printSavepoints(cmd.OutOrStdout(), dir, list); err != nil {
			return err
		}
		for _, s := range found {
			if s.Root != nil && (application == "" || s.Application == application) {
				for _, c := range partial(s.Root) {
					fmt.Fprintf(cmd.OutOrStdout(), "one of several parts%s: %s %s\n", ofRequest(s.Requests), s.Ref.Path, c)
				}
			}
		}
		return nil
	}
	return cmd
}

// ofRequest says what a savepoint is of, when that is known.
func ofRequest(requests []string) string {
	if len(requests) == 0 {
		return ""
	}
	return " of request " + strings.Join(requests, ", ")
}

// partial gives the topics of which a savepoint does not hold all partitions: another instance wrote another part.
func partial(root *snapshot.Root) []snapshot.Coverage {
	return slices.DeleteFunc(snapshot.CoverageOf(root), func(c snapshot.Coverage) bool { return len(c.Missing) == 0 })
}

func printSavepoints(out io.Writer, dir string, list []admin.SavepointInfo) error {
	if len(list) == 0 {
		_, err := fmt.Fprintf(out, "no savepoint in %s\n", dir)
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PATH\tAPPLICATION\tINSTANCE\tCREATED\tTASKS\tPOSITIONS\tSIZE")
	for _, s := range list {
		created, instance := "-", "-"
		if s.Created != nil {
			created, instance = s.Created.Format(time.RFC3339), s.Instance
		}
		var positions []string
		for _, p := range s.Positions {
			positions = append(positions, fmt.Sprintf("%s/%d:%d", p.Topic, p.Partition, p.Offset))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", s.Path, s.Application, instance, created, s.Tasks, short(positions), bytesText(s.Bytes))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, s := range list {
		switch {
		case s.Unreadable:
			fmt.Fprintf(out, "%s: %s\n", statusUnreadable, s.Damage)
		case s.Damage != "":
			fmt.Fprintf(out, "%s: %s\n", statusDamaged, s.Damage)
		}
	}
	return nil
}

// savepointTask is a task of a savepoint as inspect prints it and scripts read it.
type savepointTask struct {
	Task        string     `json:"task"`
	Parallelism int        `json:"parallelism,omitempty"`
	Positions   []position `json:"positions"`
	States      []string   `json:"states"`
	Entries     int64      `json:"entries"`
	Bytes       int64      `json:"bytes"`
}

// inputHeld says how many of the partitions that a topic had a savepoint holds: not all, when it is one part of several.
type inputHeld struct {
	Source     string `json:"source"`
	Topic      string `json:"topic"`
	Held       int32  `json:"held"`
	Partitions int32  `json:"partitions"`
}

type inspectedSavepoint struct {
	Path        string          `json:"path"`
	Digest      string          `json:"digest"`
	Application string          `json:"application"`
	Instance    string          `json:"instance"`
	Checkpoint  string          `json:"checkpoint"`
	Cluster     string          `json:"cluster"`
	Created     time.Time       `json:"created"`
	Requests    []string        `json:"requests,omitempty"`
	Inputs      []inputHeld     `json:"inputs"`
	Tasks       []savepointTask `json:"tasks"`
	Entries     int64           `json:"entries"`
	Verified    bool            `json:"verified"`
	Damage      string          `json:"damage,omitempty"`
}

func newSavepointInspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect SAVEPOINT...",
		Short: "Show what is in a savepoint, and verify every checksum",
		Long: `Show what is in a savepoint, given by its directory, and verify every checksum. Damage is exit code 22. Several directories are
the parts of one savepoint: those of different requests, and one that is given twice, are refused.`,
		Example: "  processor savepoint inspect savepoints/savepoint-orders-12-0123456789abcdef",
		Args:    atLeastOne("SAVEPOINT..."),
	}
	output := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		parts := make([]*snapshot.Savepoint, len(args))
		for i, dir := range args {
			sp, err := snapshot.OpenSavepoint(cmd.Context(), dir)
			if err != nil {
				return err
			}
			defer sp.Close()
			parts[i] = sp
		}
		if err := snapshot.SameRequest(parts...); err != nil {
			return err
		}
		docs, err := verifiedParts(cmd.Context(), parts)
		if output.json && len(docs) == 1 {
			return errors.Join(err, writeJSON(cmd.OutOrStdout(), docs[0]))
		} else if output.json {
			return errors.Join(err, writeJSON(cmd.OutOrStdout(), map[string]any{"parts": docs}))
		}
		for i, doc := range docs {
			if i > 0 {
				fmt.Fprintln(cmd.OutOrStdout())
			}
			err = errors.Join(err, printSavepoint(cmd.OutOrStdout(), doc, len(docs)))
		}
		return err
	}
	return cmd
}

// verifiedParts reads all of the parts.
func verifiedParts(ctx context.Context, parts []*snapshot.Savepoint) (docs []inspectedSavepoint, err error) {
	for _, sp := range parts {
		doc := inspectedOf(sp)
		stats, verr := sp.Verify(ctx)
		doc.Entries, doc.Verified = stats.DeltaEntries+stats.FullEntries, verr == nil
		if verr != nil {
			doc.Damage = oneLine(verr)
		}
		docs, err = append(docs, doc), errors.Join(err, verr)
	}
	return docs, err
}

func inspectedOf(sp *snapshot.Savepoint) inspectedSavepoint {
	r := sp.Root
	doc := inspectedSavepoint{Path: sp.Ref.Path, Digest: sp.Ref.Digest.String(), Application: r.Application, Instance: r.Instance, Checkpoint: r.Name.String(),
		Cluster: r.ClusterID, Created: time.UnixMilli(r.CreatedUnixMilli).UTC(), Requests: sp.Requests, Inputs: []inputHeld{}, Tasks: []savepointTask{}}
	for _, c := range snapshot.CoverageOf(r) {
		doc.Inputs = append(doc.Inputs, inputHeld{c.Source, c.Topic, c.Held, c.Count})
	}
	for i := range r.Tasks {
		t := &r.Tasks[i]
		out := savepointTask{Task: t.Task.String(), Parallelism: t.Parallelism, Positions: []position{}, States: []string{}}
		for _, p := range t.Positions {
			out.Positions = append(out.Positions, position{p.Topic, p.Partition, p.Offset})
		}
		for _, s := range t.States {
			out.States = append(out.States, fmt.Sprintf("%s (%s)", s.Name, s.Codec))
		}
		var sum snapshot.Stats
		sum.Add(t.Runs...)
		out.Entries, out.Bytes = sum.DeltaEntries+sum.FullEntries, sum.Bytes()
		doc.Tasks = append(doc.Tasks, out)
	}
	return doc
}

// printSavepoint shows one of so many parts.
func printSavepoint(out io.Writer, d inspectedSavepoint, parts int) error {
	fmt.Fprintf(out, "savepoint    %s\napplication  %s, instance %s, cluster %s\ncheckpoint   %s\ncreated      %s\ndigest       %s\n",
		d.Path, d.Application, d.Instance, d.Cluster, d.Checkpoint, d.Created.Format(time.RFC3339), d.Digest)
	if len(d.Requests) > 0 {
		fmt.Fprintf(out, "request      %s\n", strings.Join(d.Requests, ", "))
	}
	for _, h := range d.Inputs {
		if h.Held < h.Partitions && parts > 1 {
			fmt.Fprintf(out, "part         it holds %d of %d partitions of %s\n", h.Held, h.Partitions, h.Topic)
		} else if h.Held < h.Partitions {
			fmt.Fprintf(out, "part         it holds %d of %d partitions of %s: other instances wrote the others; a start wants all parts, each with --from\n", h.Held, h.Partitions, h.Topic)
		}
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TASK\tPOSITIONS\tSTATES\tENTRIES\tSIZE")
	for _, t := range d.Tasks {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", t.Task, summary(t.Positions), short(t.States), t.Entries, bytesText(t.Bytes))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if d.Verified {
		fmt.Fprintln(out, "\nverified: every checksum is right")
	}
	return nil
}

func newSavepointDispose() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "dispose SAVEPOINT...",
		Short: "Delete savepoints",
		Long: `Delete savepoints, given by their directories. Anything that is not a savepoint is refused: a directory of another name, one
that holds anything else, a link. A savepoint of several instances has several directories.

On a terminal it asks; elsewhere it wants --yes.`,
		Example: "  processor savepoint dispose savepoints/savepoint-orders-12-0123456789abcdef",
		Args:    atLeastOne("SAVEPOINT..."),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, dir := range args {
			what := dir + partOfRequest(cmd.Context(), dir)
			if err := confirm(cmd, yes, fmt.Sprintf("delete savepoint %s?", what)); err != nil {
				return err
			}
			if err := snapshot.DisposeSavepoint(cmd.Context(), dir); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "deleted %s\n", what)
		}
		return nil
	}
	return cmd
}

// partOfRequest says which request a savepoint is one of several parts of, when that can be read.
func partOfRequest(ctx context.Context, dir string) string {
	sp, err := snapshot.OpenSavepoint(ctx, dir)
	if err != nil {
		return ""
	}
	defer sp.Close()
	if len(partial(sp.Root)) == 0 {
		return ""
	}
	return ", one of several parts" + ofRequest(sp.Requests)
}

// atLeastOne wants arguments.
func atLeastOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fault.Stopf(fault.Usage, "%s takes %s (see %s --help)", cmd.CommandPath(), what, cmd.CommandPath())
		}
		return nil
	}
}
