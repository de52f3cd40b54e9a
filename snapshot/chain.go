package snapshot

import (
	"context"

	"github.com/millweir/millweir/element"
)

// Chain is a task's runs after a checkpoint, all of them open: on file systems that keep a deleted file readable while
// it is open, Clean cannot take them away from a slow reader. One goroutine may use it.
type Chain struct {
	repo  *Repository
	entry TaskEntry // Runs are those that are open
	objs  []Object
}

// OpenChain opens the runs of an entry that follow a checkpoint: all of them when after is 0. The runs must lead
// unbroken from there on, else, and for a missing file, the error is a CorruptError. A chain without runs is valid.
func (r *Repository) OpenChain(ctx context.Context, entry TaskEntry, after element.CheckpointID) (*Chain, error) {
	first := 0
	for first < len(entry.Runs) && entry.Runs[first].To <= after {
		first++
	}
	entry.Runs = entry.Runs[first:]
	if err := checkChainAfter(entry.Runs, after); err != nil {
		p := parseFilePath(entry.Runs[0].File)
		return nil, corrupt(p.name.String(), "of task "+entry.Task.String(), "chain", err)
	}
	c := &Chain{repo: r, entry: entry}
	for _, ref := range entry.Runs {
		o, err := r.openRun(ctx, ref)
		if err != nil {
			c.Close()
			return nil, r.scanError(ctx, ref, err)
		}
		c.objs = append(c.objs, o)
	}
	return c, nil
}

// Runs are the open runs, oldest first.
func (c *Chain) Runs() []RunRef { return c.entry.Runs }

// Read gives the entries of run i to apply, verified as Restore verifies them: what was applied counts only when Read
// returns nil.
func (c *Chain) Read(ctx context.Context, i int, apply func(Entry) error) error {
	ref := c.entry.Runs[i]
	var mapped Entry
	_, err := c.repo.scanObject(ctx, c.entry, ref, c.objs[i], func(states []int, e *Entry) error {
		mapped = *e
		mapped.State = states[e.State]
		return apply(mapped)
	})
	return err
}

// Close closes the files.
func (c *Chain) Close() {
	for _, o := range c.objs {
		o.Close()
	}
	c.objs = nil
}
