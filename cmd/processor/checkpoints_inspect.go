package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// inspected is a checkpoint in full.
type inspected struct {
	listed
	Digest    string     `json:"digest"`
	ClusterID string     `json:"cluster_id"`
	StoreID   string     `json:"store_id"`
	Lineage   []ancestor `json:"lineage"` // nearest first, as far as the directory has it
	TaskList  []inspTask `json:"task_list"`
	// Savepoints were cut at the same barrier.
	Savepoints []inspSavepoint `json:"savepoints"`
}

type ancestor struct {
	Name   string `json:"name"`
	File   string `json:"file"`
	Status string `json:"status"` // or "not in the directory"
}

type inspSavepoint struct {
	ID     string `json:"id"`
	Path   string `json:"path"`
	Digest string `json:"digest"`
}

type inspTask struct {
	Task      string      `json:"task"`
	Positions []inspInput `json:"positions"`
	States    []inspState `json:"states"`
	Runs      []inspRun   `json:"runs"` // oldest first
	// Parallelism and MaxParallelism are those of a stage behind an exchange, 0 of a source.
	Parallelism    int       `json:"parallelism"`
	MaxParallelism int       `json:"max_parallelism"`
	InFlight       []inspRun `json:"in_flight"`
}

type inspInput struct {
	position
	TopicID     string `json:"topic_id"`
	Partitions  int32  `json:"partitions"`
	LeaderEpoch int32  `json:"leader_epoch"`
}

type inspState struct {
	Name     string `json:"name"`
	KeyCodec string `json:"key_codec"`
	Codec    string `json:"codec"`
}

type inspRun struct {
	File    string `json:"file"`
	Inline  bool   `json:"inline"` // in the root itself; File is the root that it was written for
	Offset  int64  `json:"offset"`
	Bytes   int64  `json:"bytes"`
	From    uint64 `json:"from"` // changes after this checkpoint
	To      uint64 `json:"to"`   // up to and including this one
	Full    bool   `json:"full"`
	Entries int64  `json:"entries"`
	Digest  string `json:"digest"`
}

func newCheckpointsInspect() *cobra.Command {
	var f storeFlags
	cmd := &cobra.Command{
		Use:   "inspect NAME FILE.yaml | inspect NAME --dir DIRECTORY",
		Short: "Show one checkpoint: tasks, positions, states, runs, lineage",
		Long: `Show what one checkpoint says: of every task its positions, its states with their codecs, and the chain of runs that make its
state, (from, to] each; then the checkpoints that it follows. NAME is as list prints it; the number alone is enough where it
is the only one of that number. With --brokers also the partitions of the group that name it. Exit code 22 when it is damaged or not there.`,
		Example: "  processor checkpoints inspect 12 orders.yaml\n  processor checkpoints inspect 12-0123456789abcdef --dir /var/lib/checkpoints",
	}
	f.add(cmd)
	output := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.parse(cmd, args); err != nil {
			return err
		}
		switch {
		case len(f.names) == 0 && f.file != "":
			return fault.Stopf(fault.Usage, "inspect takes the NAME of one checkpoint, which %s is not (see %s --help)", f.file, cmd.CommandPath())
		case len(f.names) != 1:
			return fault.Stopf(fault.Usage, "inspect takes the NAME of one checkpoint, not %d (see %s --help)", len(f.names), cmd.CommandPath())
		}
		repo, err := f.open(cmd)
		if err != nil {
			return err
		}
		defer repo.Close()
		infos, group, err := f.look(cmd.Context(), repo)
		if err != nil {
			return err
		}
		info, err := find(infos, f.names[0])
		if err != nil {
			return err
		}
		if info.Root == nil {
			return info.Err
		}
		c := inspect(*info, infos, group)
		if output.json {
			err = writeJSON(cmd.OutOrStdout(), c)
		} else {
			printInspected(cmd.OutOrStdout(), c)
		}
		if err == nil {
			err = info.Err
		}
		return err
	}
	return cmd
}

func inspect(info snapshot.RootInfo, infos []snapshot.RootInfo, group []groupHandle) inspected {
	r, one := info.Root, []listed{listedOf(info)}
	markGroup(one, group)
	out := inspected{listed: one[0], Digest: info.Ref.Digest.String(), ClusterID: r.ClusterID, StoreID: r.StoreID, Lineage: lineage(r, infos), Savepoints: []inspSavepoint{}}
	for i := range r.Tasks {
		e := &r.Tasks[i]
		t := inspTask{Task: e.Task.String(), Positions: []inspInput{}, States: []inspState{}, Runs: inspRuns(e.Runs),
			Parallelism: e.Parallelism, MaxParallelism: e.MaxParallelism, InFlight: inspRuns(e.InFlight)}
		for _, p := range e.Positions {
			t.Positions = append(t.Positions, inspInput{position{p.Topic, p.Partition, p.Offset}, p.TopicID.String(), p.PartitionCount, p.LeaderEpoch})
		}
		for _, s := range e.States {
			t.States = append(t.States, inspState(s))
		}
		out.TaskList = append(out.TaskList, t)
	}
	for _, s := range r.Savepoints {
		out.Savepoints = append(out.Savepoints, inspSavepoint{s.ID, s.Path, s.Digest.String()})
	}
	return out
}

func inspRuns(runs []snapshot.RunRef) []inspRun {
	out := []inspRun{}
	for _, r := range runs {
		out = append(out, inspRun{r.File, r.IsInline(), r.Offset, r.Length, uint64(r.From), uint64(r.To), r.Full, r.Entries, r.Digest.String()})
	}
	return out
}

// place says where a run lies.
func (r *inspRun) place() string {
	if r.Inline {
		return "in the root"
	}
	return fmt.Sprintf("at %d of %s", r.Offset, r.File)
}

// lineage follows the predecessors until one is not in the directory. Each is older than the one before, so it ends.
func lineage(r *snapshot.Root, infos []snapshot.RootInfo) []ancestor {
	out := []ancestor{}
	for pred := r.Predecessor; pred != nil; {
		a := ancestor{Name: pred.Name.String(), File: pred.Path, Status: "not in the directory"}
		var next *snapshot.RootRef
		for i := range infos {
			if infos[i].Ref.Path == pred.Path {
				a.Status = listedOf(infos[i]).Status
				if infos[i].Root != nil {
					next = infos[i].Root.Predecessor
				}
			}
		}
		out, pred = append(out, a), next
	}
	return out
}

func printInspected(w io.Writer, c inspected) {
	fmt.Fprintf(w, "checkpoint %s: %s\n", c.Name, c.Status)
	for _, kv := range [][2]string{
		{"file", c.File}, {"instance", c.Instance}, {"created", c.Created.Format(time.RFC3339Nano)}, {"cluster id", c.ClusterID}, {"store id", c.StoreID}, {"digest", c.Digest},
		{"bytes", fmt.Sprintf("%s in delta runs, %s in full runs, %d entries", bytesText(c.DeltaBytes), bytesText(c.FullBytes), c.Entries)},
	} {
		fmt.Fprintf(w, "  %-11s %s\n", kv[0], kv[1])
	}
	if len(c.Group) > 0 {
		fmt.Fprintf(w, "  %-11s %s\n", "named by", strings.Join(c.Group, " "))
	}
	for i, a := range c.Lineage {
		what := "follows"
		if i > 0 {
			what = ""
		}
		fmt.Fprintf(w, "  %-11s %s (%s)\n", what, a.Name, a.Status)
	}
	for _, s := range c.Savepoints {
		fmt.Fprintf(w, "  %-11s %s at %s\n", "savepoint", s.ID, s.Path)
	}
	for _, t := range c.TaskList {
		fmt.Fprintf(w, "task %s\n", t.Task)
		if t.Parallelism > 0 {
			fmt.Fprintf(w, "  subtask     one of %d, of %d key groups\n", t.Parallelism, t.MaxParallelism)
		}
		for _, p := range t.Positions {
			fmt.Fprintf(w, "  position    %s/%d at offset %d (topic id %s, %d partitions, leader epoch %d)\n", p.Topic, p.Partition, p.Offset, p.TopicID, p.Partitions, p.LeaderEpoch)
		}
		for _, s := range t.States {
			fmt.Fprintf(w, "  state       %s: keys %s, values %s\n", s.Name, s.KeyCodec, s.Codec)
		}
		for _, r := range t.Runs {
			kind := "delta"
			if r.Full {
				kind = "full"
			}
			fmt.Fprintf(w, "  run         (%d, %d] %s, %d entries, %d bytes %s\n", r.From, r.To, kind, r.Entries, r.Bytes, r.place())
		}
		for _, r := range t.InFlight {
			fmt.Fprintf(w, "  in flight   %d records, %d bytes %s\n", r.Entries, r.Bytes, r.place())
		}
	}
}
