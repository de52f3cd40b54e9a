package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

func init() { register(newCheckpoints) }

func newCheckpoints() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "checkpoints",
		Aliases: []string{"checkpoint"},
		Short:   "Look at the checkpoint directory: list, inspect, verify; trigger takes one",
		Long: `Look at the checkpoints of an application. The commands but trigger read the checkpoint directory alone, with no broker unless
--brokers asks the group, also while the service runs, and never write anything. docs/checkpoints.md says what is in the directory and how to go back to it.`,
		Example: "  processor checkpoints list orders.yaml\n  processor checkpoints verify orders.yaml",
		Args:    unknownCheckpointsCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCheckpointsList(), newCheckpointsInspect(), newCheckpointsVerify(), newCheckpointsTrigger())
	return cmd
}

func unknownCheckpointsCommand(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fault.Stopf(fault.Usage, "there is no command checkpoints %s: list, inspect, verify or trigger", args[0])
}

// storeFlags say which checkpoints are meant.
type storeFlags struct {
	dir, application string
	set              []string
	brokers          []string

	file  string   // of the arguments
	names []string // of the arguments
}

func (f *storeFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.dir, "dir", "", "the checkpoint `DIRECTORY`, in place of the file's state.checkpoints.dir")
	fs.StringVar(&f.application, "application", "", "the application's `NAME`, in place of the file's; needed only where a directory holds several")
	fs.StringArrayVar(&f.set, "set", nil, "`PATH=VALUE` of a setting of the file, as in run; may be repeated")
	fs.StringSliceVar(&f.brokers, "brokers", nil, "also ask the cluster at these `HOST:PORT`s which checkpoints the group's committed offsets name")
}

// parse sorts the arguments: names of checkpoints, and the one that is none is the service file.
func (f *storeFlags) parse(cmd *cobra.Command, args []string) error {
	for _, a := range args {
		_, err := snapshot.ParseCheckpointName(a)
		if _, nerr := strconv.ParseUint(a, 10, 64); err == nil || nerr == nil {
			f.names = append(f.names, a)
			continue
		}
		if mistyped(a) {
			return fault.Stopf(fault.Usage, "%s is not the name of a checkpoint, such as 12 or 12-0123456789abcdef (see %s --help)", a, cmd.CommandPath())
		}
		if f.file != "" {
			return fault.Stopf(fault.Usage, "%s and %s: one service file, and names of checkpoints like 12 or 12-0123456789abcdef (see %s --help)", f.file, a, cmd.CommandPath())
		}
		f.file = a
	}
	if f.file == "" && f.dir == "" {
		return fault.Stopf(fault.Usage, "which checkpoints? give the service's FILE.yaml, or --dir DIRECTORY (see %s --help)", cmd.CommandPath())
	}
	return nil
}

// mistyped reports whether an argument is meant as the name of a checkpoint, which it is not: a number with or without more
// behind a dash, and no file.
func mistyped(arg string) bool {
	id, _, _ := strings.Cut(arg, "-")
	if id == "" || strings.Trim(id, "0123456789") != "" {
		return false
	}
	_, err := os.Lstat(arg)
	return errors.Is(err, fs.ErrNotExist)
}

// open opens the directory to look only.
func (f *storeFlags) open(cmd *cobra.Command) (*snapshot.Repository, error) {
	if err := asPath(&f.dir); err != nil {
		return nil, err
	}
	if f.file != "" {
		svc, err := load(cmd, f.file, f.set)
		if err != nil {
			return nil, err
		}
		if f.dir == "" {
			f.dir = svc.State.Checkpoints.Dir
		}
		if f.application == "" {
			f.application = svc.Application
		}
	}
	if f.application == "" {
		apps, err := snapshot.Applications(cmd.Context(), f.dir)
		switch {
		case err != nil:
			return nil, err
		case len(apps) == 0:
			return nil, fault.Stopf(fault.CheckpointDir, "checkpoint directory %s holds no checkpoints", f.dir)
		case len(apps) > 1:
			return nil, fault.Stopf(fault.Usage, "%s holds checkpoints of %s: choose one with --application", f.dir, strings.Join(apps, ", "))
		}
		f.application = apps[0]
	}
	return snapshot.OpenRepository(cmd.Context(), snapshot.Config{Dir: f.dir, Application: f.application, ReadOnly: true})
}

// find gives the listed checkpoint of a name; the number alone is enough where it is the only one of that number.
func find(infos []snapshot.RootInfo, name string) (*snapshot.RootInfo, error) {
	var found *snapshot.RootInfo
	for i := range infos {
		n := infos[i].Ref.Name
		if n.String() != name && strconv.FormatUint(uint64(n.ID), 10) != name {
			continue
		}
		if found != nil {
			return nil, fault.Stopf(fault.Usage, "%s is not clear: there are %s and %s", name, found.Ref.Name, n)
		}
		found = &infos[i]
	}
	if found == nil {
		return nil, fault.Stopf(fault.Corrupt, "checkpoint %s: there is no root of it in the directory", name)
	}
	return found, nil
}

// listed is a checkpoint as list prints it and scripts read it.
type listed struct {
	Name        string     `json:"name"`
	Instance    string     `json:"instance"`
	File        string     `json:"file"`
	Status      string     `json:"status"` // committed, unconfirmed, damaged or unreadable
	Committed   bool       `json:"committed"`
	Damage      string     `json:"damage,omitempty"`
	Created     *time.Time `json:"created,omitempty"`
	Tasks       int        `json:"tasks"`
	Positions   []position `json:"positions"`
	DeltaBytes  int64      `json:"runs_delta_bytes"`
	FullBytes   int64      `json:"runs_full_bytes"`
	Entries     int64      `json:"entries"`
	Predecessor string     `json:"predecessor,omitempty"`
	Group       []string   `json:"group,omitempty"` // partitions whose committed handle names it
}

type position struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

const (
	statusCommitted   = "committed"
	statusUnconfirmed = "unconfirmed"
	statusDamaged     = "damaged"
	statusUnreadable  = "unreadable"
)

func listedOf(info snapshot.RootInfo) listed {
	out := listed{Name: info.Ref.Name.String(), Instance: info.Instance, File: info.Ref.Path, Committed: info.Committed, Status: statusUnconfirmed, Positions: []position{}}
	switch {
	case info.Err != nil:
		out.Status, out.Damage = statusOf(info.Err), info.Err.Error()
	case info.Committed:
		out.Status = statusCommitted
	}
	if r := info.Root; r != nil {
		created, sizes := time.UnixMilli(r.CreatedUnixMilli).UTC(), r.Sizes()
		out.Created, out.Tasks = &created, len(r.Tasks)
		out.DeltaBytes, out.FullBytes, out.Entries = sizes.DeltaBytes, sizes.FullBytes, sizes.DeltaEntries+sizes.FullEntries
		for i := range r.Tasks {
			for _, p := range r.Tasks[i].Positions {
				out.Positions = append(out.Positions, position{p.Topic, p.Partition, p.Offset})
			}
		}
		if r.Predecessor != nil {
			out.Predecessor = r.Predecessor.Name.String()
		}
	}
	return out
}

// statusOf tells damage from a lack of access, which a change of rights mends.
func statusOf(err error) string {
	if errors.As(err, new(*snapshot.UnreadableError)) {
		return statusUnreadable
	}
	return statusDamaged
}

func newCheckpointsList() *cobra.Command {
	var f storeFlags
	cmd := &cobra.Command{
		Use:   "list FILE.yaml | list --dir DIRECTORY",
		Short: "List the checkpoints, newest first",
		Long: `List the checkpoints, newest first within an instance. A checkpoint is

  committed    its marker says so, a committed offset of the group names it (--brokers), or a later committed one follows it
  unconfirmed  whole, but only the group's offsets can tell whether its transaction was committed
  damaged      its root or its marker cannot be read, or is missing; list does not read the state: verify does
  unreadable   the user who runs the command has no right to read its root or its marker

With --brokers it also tells which checkpoints the committed offsets of the group name.`,
		Example: "  processor checkpoints list orders.yaml\n  processor checkpoints list --dir /var/lib/orders/checkpoints\n  processor checkpoints list orders.yaml --brokers localhost:9092",
	}
	f.add(cmd)
	output := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.parse(cmd, args); err != nil {
			return err
		}
		if len(f.names) > 0 {
			return fault.Stopf(fault.Usage, "list takes no names; processor checkpoints inspect %s shows that one", f.names[0])
		}
		repo, err := f.open(cmd)
		if err != nil {
			return err
		}
		defer repo.Close()
		return listCheckpoints(cmd.Context(), cmd.OutOrStdout(), repo, &f, output.json)
	}
	return cmd
}

func listCheckpoints(ctx context.Context, out io.Writer, repo *snapshot.Repository, f *storeFlags, asJSON bool) error {
	infos, group, err := f.look(ctx, repo)
	if err != nil {
		return err
	}
	list := make([]listed, 0, len(infos))
	for _, info := range infos {
		list = append(list, listedOf(info))
	}
	markGroup(list, group)
	if asJSON {
		doc := map[string]any{"directory": repo.Location(), "application": f.application, "store_id": repo.StoreID(), "checkpoints": list}
		if len(f.brokers) > 0 {
			doc["group"] = group
		}
		return writeJSON(out, doc)
	}
	if len(list) == 0 {
		fmt.Fprintf(out, "no checkpoint of %s in %s\n", f.application, repo.Location())
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tINSTANCE\tCREATED\tSTATUS\tTASKS\tPOSITIONS\tRUNS-DELTA\tRUNS-FULL\tGROUP")
	for i := range list {
		c := &list[i]
		created := "-"
		if c.Created != nil {
			created = c.Created.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", c.Name, c.Instance, created, c.Status, c.Tasks, summary(c.Positions), bytesText(c.DeltaBytes), bytesText(c.FullBytes), short(c.Group))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range list {
		if list[i].Damage != "" {
			fmt.Fprintf(out, "%s: %s\n", list[i].Status, list[i].Damage)
		}
	}
	printGroup(out, list, group)
	return nil
}

// summary shows the first positions.
func summary(ps []position) string {
	var texts []string
	for _, p := range ps {
		texts = append(texts, fmt.Sprintf("%s/%d:%d", p.Topic, p.Partition, p.Offset))
	}
	return short(texts)
}

// shown is how many elements of a list fit a line.
const shown = 4

func short(texts []string) string {
	if len(texts) == 0 {
		return "-"
	}
	if n := len(texts) - shown; n > 0 {
		return strings.Join(texts[:shown], " ") + fmt.Sprintf(" +%d", n)
	}
	return strings.Join(texts, " ")
}

// bytesText gives a size as the settings have it, with one digit behind the point.
func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1fgb", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1fmb", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1fkb", float64(n)/(1<<10))
	}
	return strconv.FormatInt(n, 10)
}
