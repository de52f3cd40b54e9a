package sim

import (
	"context"
	"fmt"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// resolveOrRecover is decide for a start that may take the store's word, as engine has it.
func (in *intake) resolveOrRecover(input snapshot.ResolveInput) (map[element.TaskID]snapshot.Decision, error) {
	ctx, p := context.Background(), in.a.p
	var err error
	if input.Roots, err = p.repo.LoadVerified(ctx, snapshot.NamedRoots(input.Tasks)); err != nil {
		return nil, fmt.Errorf("verify the committed checkpoints: %w", err)
	}
	if input.Listing, err = p.repo.List(ctx); err != nil {
		return nil, fmt.Errorf("list the checkpoints: %w", err)
	}
	input.Stored = input.Listing
	decisions, err := snapshot.Resolve(input)
	refused := snapshot.RefusalOf(err)
	if refused == nil {
		return decisions, err
	}
	if input.Listing, err = p.repo.Survey(ctx); err != nil {
		return nil, fmt.Errorf("verify the checkpoints of the store: %w", err)
	}
	decisions, rec, err := snapshot.Recover(input, refused, input.Listing)
	if err != nil {
		return nil, err
	}
	for _, t := range rec.Tasks {
		p.w.tracef(p, "  %v goes back to %s: %s", t.Task, t.Root.Path, t.Repeats())
	}
	in.lastID = max(in.lastID, rec.LastID) + 1 // that of the root which writeRecovered writes
	return decisions, nil
}

// writeRecovered gives the recovered tasks a root of their own, as engine does, and commits it with the start positions.
func (a *attempt) writeRecovered(c checkpoint.Commit) {
	root := &snapshot.Root{Name: element.CheckpointName{ID: a.lastID, Incarnation: a.p.inc}, Application: application, Instance: a.p.name,
		ClusterID: clusterID, StoreID: a.p.repo.StoreID()}
	for _, t := range a.tasks {
		if !t.recovered {
			continue
		}
		root.Tasks = append(root.Tasks, t.committed)
		if root.Predecessor == nil || root.Predecessor.Name.ID < t.root.Name.ID {
			root.Predecessor = t.root
		}
	}
	var ref snapshot.RootRef
	a.io(func() bool { return a.over }, func() (err error) {
		ref, err = a.p.repo.WriteRoot(context.Background(), root)
		return err
	}, func(err error) {
		a.running--
		if a.over {
			a.finish()
			return
		}
		a.then("commit start", func() error {
			for _, t := range a.tasks {
				if !t.recovered {
					continue
				}
				h := a.newHandle(t.position)
				h.Kind, h.Root = snapshot.HandleCheckpoint, ref
				text, err := h.Encode()
				if err != nil {
					return err
				}
				t.root = &ref
				c.Offsets = append(c.Offsets, checkpoint.OffsetCommit{Position: t.position, Metadata: text, Epoch: t.epoch})
			}
			a.last = &ref
			a.commitInitial(c, func() { a.mark(ref) })
			return nil
		})(err)
	})
}

// parted reports whether a start that goes back to the store still waits for partitions: those who recover do it together.
func (p *process) parted() bool {
	return p.recover && p.owned() != 1<<p.w.cfg.Partitions-1
}

// refusal reports whether the end of a process is one that a person has to decide about.
func refusal(err error) bool {
	code := fault.CodeOf(err)
	return fault.RecoveryOf(err) == fault.Stop && (code == fault.Corrupt || code == fault.HandleMismatch)
}
