package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// claimInterval is the time between the first two looks at whether a claimed savepoint is still needed; it doubles up to
// mostClaimInterval.
const (
	claimInterval     = 100 * time.Millisecond
	mostClaimInterval = 10 * time.Second
)

// afterImport is called after each checkpoint. The first one after an import shows others what this instance has begun, so
// it is the moment to see whether they share its checkpoint directory.
func (a *attempt) afterImport() {
	a.r.granted.Store(true)
	if a.imports {
		a.imports = false
		mine := maps.Clone(a.byTP)
		a.spawn(func() {
			if err := a.othersShareTheStore(mine); err != nil && a.ctx.Err() == nil {
				a.report(event{kind: evFailed, err: err})
			}
		})
	}
	a.seeToClaim()
}

// seeToClaim sees after a savepoint that was claimed, from the first commit on and in every attempt: in the instance that has
// the first source's first partition, of all that take part in it.
func (a *attempt) seeToClaim() {
	first := element.TaskID{Source: a.r.plan.Sources[0].Name}
	if !a.r.cfg.From.Claim || a.r.claimed || a.claiming || a.tasks[first] == nil {
		return
	}
	a.claiming = true
	origin := slices.Clone(a.origin)
	a.spawn(func() {
		for wait := claimInterval; ; wait = min(2*wait, mostClaimInterval) {
			var gone []string
			done, err := a.claim(a.ctx, origin, &gone)
			if a.ctx.Err() != nil {
				return
			}
			if (len(gone) > 0 || err != nil) && a.r.lis.Claimed != nil {
				a.r.lis.Claimed(gone, err)
			}
			if done || err != nil {
				a.report(event{kind: evAsk, ask: func() error { a.r.claimed = true; return nil }})
				return
			}
			select {
			case <-time.After(wait): // others have not got so far yet
			case <-a.ctx.Done():
				return
			}
		}
	})
}

// claim disposes of the savepoint when everything that it holds of the plan has a checkpoint of the application, whichever
// instance it runs in. It adds what it removed to gone; done is false while something still needs it. After an error nothing
// is tried again: what is left is for a person to look at. A directory of the origin without metadata is one that a process
// was killed in the middle of disposing of: when it began, nothing needed it.
func (a *attempt) claim(ctx context.Context, origin []snapshot.SavepointRef, gone *[]string) (done bool, err error) {
	var found []opened
	var rest []string
	defer func() {
		for _, o := range found {
			_ = o.Close() // it was only read
		}
	}()
	var roots []*snapshot.Root
	for _, path := range a.r.cfg.From.Paths {
		s, ref, err := a.r.ports.OpenFrom(ctx, path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has gone before
		}
		if at, perr := snapshot.SavepointPath(path); perr == nil && errors.Is(err, snapshot.ErrUnfinished) && slices.ContainsFunc(origin, func(o snapshot.SavepointRef) bool { return o.Path == at }) {
			rest = append(rest, at)
			continue
		}
		if err != nil {
			return false, err
		}
		found = append(found, opened{s, ref})
		roots = append(roots, s.Contents())
	}
	topics, err := a.r.inputs(ctx)
	if err != nil {
		return false, nil // a broker that does not answer will
	}
	if taken, err := a.allComeFrom(ctx, found, inputsOf(roots, a.r.plan, topics)); !taken || err != nil {
		return false, nil // and so will a store
	}
	failpoint.Hit(failpoint.ClaimBefore)
	for _, o := range found {
		rest = append(rest, o.ref.Path)
	}
	for _, path := range rest {
		if err := a.r.ports.DisposeSavepoint(ctx, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("dispose of savepoint %s: %w", path, err)
		}
		*gone = append(*gone, path)
	}
	failpoint.Hit(failpoint.ClaimAfter)
	return true, nil
}

// inputsOf lists the inputs of a savepoint that must have a checkpoint before it goes: those that a source of the plan reads,
// whatever its name was then, and those of a source that reads something else now which the savepoint does not hold. Such a source
// is refused, and when it has its topic back, it needs its state. What it has no task for, since its topic has fewer partitions now, is
// not refused.
func inputsOf(roots []*snapshot.Root, plan *topology.Plan, topics map[string]Topic) []element.TopicPartition {
	readers := map[element.TopicPartition][]string{}
	for _, root := range roots {
		for _, e := range root.Tasks {
			for _, p := range e.Positions {
				readers[p.TopicPartition] = append(readers[p.TopicPartition], e.Task.Source)
			}
		}
	}
	var tps []element.TopicPartition
	for tp, names := range readers {
		if slices.ContainsFunc(plan.Sources, func(s topology.SourcePlan) bool {
			now := element.TopicPartition{Topic: s.Topic, Partition: tp.Partition}
			return now == tp || slices.Contains(names, s.Name) && tp.Partition < topics[s.Topic].Partitions && len(readers[now]) == 0
		}) {
			tps = append(tps, tp)
		}
	}
	return tps
}

// allComeFrom reports that what the group has committed of these partitions comes from these savepoints.
func (a *attempt) allComeFrom(ctx context.Context, found []opened, tps []element.TopicPartition) (bool, error) {
	committed, err := a.r.ports.Offsets.Stable(ctx, tps)
	if err != nil {
		return false, fmt.Errorf("read the committed offsets: %w", err)
	}
	var named []snapshot.RootRef
	for _, tp := range tps {
		h, err := snapshot.ParseHandle(committed[tp].Metadata)
		if !committed[tp].Found || err != nil || h.Kind != snapshot.HandleCheckpoint {
			return false, nil
		}
		if !slices.Contains(named, h.Root) {
			named = append(named, h.Root)
		}
	}
	roots, err := a.r.ports.Checkpoints.LoadRoots(ctx, named)
	if err != nil {
		return false, fmt.Errorf("read the committed roots: %w", err)
	}
	for _, root := range roots {
		for _, o := range found {
			if root.Root == nil || !slices.ContainsFunc(root.Root.Origin, func(s snapshot.SavepointRef) bool { return s.Digest == o.ref.Digest }) {
				return false, nil
			}
		}
	}
	return true, nil
}
