package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/processor"
	"github.com/millweir/millweir/snapshot"
)

// groupTimeout bounds the question to the cluster, which also waits for open transactions of the group.
const groupTimeout = 15 * time.Second

// groupHandle is what the group has committed for one partition.
type groupHandle struct {
	Partition  string `json:"partition"`
	Offset     int64  `json:"offset"` // -1: none
	Checkpoint string `json:"checkpoint,omitempty"`
	File       string `json:"file,omitempty"`
	Problem    string `json:"problem,omitempty"` // why no checkpoint is named

	root snapshot.RootRef // that is named
}

// lookTries bounds how often a directory in which checkpoints come and go is looked at again.
const lookTries = 10

// look reads the roots and, with --brokers, the group's handles, which tell what is committed.
func (f *storeFlags) look(ctx context.Context, repo *snapshot.Repository) ([]snapshot.RootInfo, []groupHandle, error) {
	list := func() ([]snapshot.RootInfo, error) { return repo.Look(ctx) }
	if len(f.brokers) == 0 {
		infos, err := list()
		return infos, nil, err
	}
	infos, group, err := lookAtBoth(list, func(infos []snapshot.RootInfo) ([]groupHandle, error) {
		return groupHandles(ctx, f.brokers, f.application, infos)
	})
	if err != nil {
		return nil, nil, err
	}
	var named []snapshot.RootRef
	for _, g := range group {
		if g.File != "" {
			named = append(named, g.root)
		}
	}
	snapshot.Confirm(infos, named)
	return infos, group, nil
}

// lookAtBoth lists the roots and asks the group, while a service may be at work on both. A checkpoint that a handle names, and that
// is not listed, was committed since the listing, or was superseded and removed before the next one. It is missing only
// where the handle is the same before a listing and behind it.
func lookAtBoth(list func() ([]snapshot.RootInfo, error), ask func([]snapshot.RootInfo) ([]groupHandle, error)) ([]snapshot.RootInfo, []groupHandle, error) {
	infos, err := list()
	if err != nil {
		return nil, nil, err
	}
	group, err := ask(infos)
	for try := 0; err == nil && try < lookTries && misses(infos, group); try++ {
		before := group
		if infos, err = list(); err != nil || !misses(infos, before) {
			break
		}
		if group, err = ask(infos); slices.Equal(group, before) {
			break
		}
	}
	return infos, group, err
}

// misses reports that handles name roots that are not listed.
func misses(infos []snapshot.RootInfo, group []groupHandle) bool {
	return slices.ContainsFunc(group, func(g groupHandle) bool {
		return g.File != "" && !slices.ContainsFunc(infos, func(i snapshot.RootInfo) bool { return i.Ref.Path == g.File })
	})
}

// groupHandles reads the group's committed handles of all partitions that the checkpoints know.
func groupHandles(ctx context.Context, brokers []string, group string, infos []snapshot.RootInfo) ([]groupHandle, error) {
	var tps []element.TopicPartition
	for _, info := range infos {
		if info.Root == nil {
			continue
		}
		for i := range info.Root.Tasks {
			for _, p := range info.Root.Tasks[i].Positions {
				if !slices.Contains(tps, p.TopicPartition) {
					tps = append(tps, p.TopicPartition)
				}
			}
		}
	}
	if len(tps) == 0 {
		return nil, nil
	}
	slices.SortFunc(tps, element.TopicPartition.Compare)
	conn := kafka.Config{Brokers: brokers, ClientID: "millweir-checkpoints", Logger: slog.New(slog.DiscardHandler)}
	cl, err := kafka.NewClient(conn)
	if err != nil {
		return nil, fault.Stopf(fault.Usage, "--brokers: %w", err)
	}
	defer cl.Close()
	if err := kafka.Reach(ctx, conn); err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, groupTimeout)
	defer cancel()
	committed, err := kafka.GroupOffsets(bounded, cl, group, true)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return nil, fault.Stopf(fault.Unreachable, "the offsets of group %s are not known after %v: %w", group, groupTimeout, err)
		}
		return nil, err
	}
	life := processor.LifeOf(committed) // what is of an earlier one has no state any more
	out := make([]groupHandle, 0, len(tps))
	for _, tp := range tps {
		out = append(out, handleOf(tp, committed[tp], life))
	}
	return out, nil
}

func handleOf(tp element.TopicPartition, c kafka.Committed, life uint64) groupHandle {
	g := groupHandle{Partition: tp.String(), Offset: c.Offset}
	if !c.Found {
		g.Offset = -1
		g.Problem = "no committed offset"
		return g
	}
	h, err := snapshot.ParseHandle(c.Metadata)
	switch {
	case err != nil:
		g.Problem = err.Error()
	case h.Life < life:
		g.Problem = fmt.Sprintf("starts without state: the application was cancelled since checkpoint %s, and its state deleted", h.Root.Name)
	case h.Kind == snapshot.HandleEmpty:
		g.Problem = "starts without state"
	case h.Kind == snapshot.HandleUnsaved:
		g.Problem = "starts without state: it ran with checkpoints disabled"
	default:
		g.root, g.Checkpoint, g.File = h.Root, h.Root.Name.String(), h.Root.Path
	}
	return g
}

func markGroup(list []listed, group []groupHandle) {
	for _, g := range group {
		for i := range list {
			if list[i].File == g.File {
				list[i].Group = append(list[i].Group, g.Partition)
			}
		}
	}
}

// printGroup tells of the handles that lead to none of the listed checkpoints.
func printGroup(out io.Writer, list []listed, group []groupHandle) {
	for _, g := range group {
		switch {
		case g.Offset < 0 || g.Checkpoint == "":
			fmt.Fprintf(out, "group: %s: %s\n", g.Partition, g.Problem)
		case !slices.ContainsFunc(list, func(c listed) bool { return c.File == g.File }):
			fmt.Fprintf(out, "group: %s at offset %d names checkpoint %s (%s), which is not in this directory\n", g.Partition, g.Offset, g.Checkpoint, g.File)
		}
	}
}
