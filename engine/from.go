package engine

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// Starting from a savepoint.
//
// snapshot.ResolveFrom says which tasks start from it. They read their state as changes: nothing on disk is their own, so
// their first checkpoint writes all of it, and it is taken soon, also when no record comes. Unlike the start position of a
// partition that nobody has read, theirs is not committed beforehand. It need not be: the savepoint fixes it, so a start
// that comes to nothing begins again with the same positions and the same state, and whatever it had written was in a
// transaction that is aborted.
//
//	reads the savepoint, processes, writes the root of the first checkpoint
//	  crash: no offset of these tasks is committed; the root is known as one of an import (Root.Origin) and passed over
//	commits the first checkpoint: outputs, positions, the handle of the root
//	  crash: the offsets name the root, whose origin is the savepoint: the wish is granted, and the start is one as always
//
// Partitions that the savepoint does not hold get their checkpoint 0 as ever, which may be committed before that crash.
// Whoever gives the wish up before the root is durable has a group that never began, and starts as one. With the root there it
// is refused, naming the savepoint: nobody can tell such a group from one whose offsets have expired.

// From is the wish to start from a savepoint.
type From struct {
	// Paths are the directories of the savepoint, one for each instance that took part in it. None: there is no such wish.
	Paths []string
	// Claim: the savepoint is the application's from now on. It is disposed of when nothing needs it any more.
	Claim bool
	// AcceptDuplicates goes back to the savepoint although the group has committed offsets: what it has put out since repeats.
	AcceptDuplicates bool
}

// opened is a savepoint that an intake reads from.
type opened struct {
	Savepoint
	ref snapshot.SavepointRef
}

// asSnapshot is what the resolution reads of it.
func (o opened) asSnapshot() *snapshot.Savepoint {
	return &snapshot.Savepoint{Ref: o.ref, Root: o.Contents(), Requests: o.RequestIDs()}
}

// openFrom opens all directories, or none.
func (in *intake) openFrom() error {
	for _, path := range in.a.r.cfg.From.Paths {
		s, ref, err := in.a.r.ports.OpenFrom(in.ctx, path)
		if err != nil {
			in.closeFrom()
			return fmt.Errorf("start from savepoint %s: %w", path, err)
		}
		in.from = append(in.from, opened{s, ref})
	}
	return nil
}

// closeFrom is called when all state has been read.
func (in *intake) closeFrom() {
	for _, o := range in.from {
		_ = o.Close() // it was only read
	}
	in.from = nil
}

// sources are those of the plan, with their topics.
func (a *attempt) sources() map[string]string {
	topics := make(map[string]string, len(a.r.plan.Sources))
	for _, s := range a.r.plan.Sources {
		topics[s.Name] = s.Topic
	}
	return topics
}

// resolveFrom is resolve for a start from a savepoint.
func (in *intake) resolveFrom(input snapshot.ResolveInput) (map[element.TaskID]snapshot.Decision, error) {
	a := in.a
	want := snapshot.StartInput{Again: a.r.cfg.From.AcceptDuplicates, Sources: a.sources()}
	var err error
	if want.Again { // for the ids
		want.All, err = a.r.ports.Checkpoints.List(in.ctx)
	} else {
		want.All, err = in.stored()
	}
	if err != nil {
		return nil, fmt.Errorf("look for older checkpoints: %w", err)
	}
	if err := in.openFrom(); err != nil {
		return in.resolveWithoutSavepoint(input, err)
	}
	for _, o := range in.from {
		want.From = append(want.From, o.asSnapshot())
	}
	if want.Left, err = in.left(&want); err != nil {
		return nil, err
	}
	start, err := snapshot.ResolveFrom(input, want)
	if err != nil {
		return nil, in.stillRefused(err)
	}
	if in.lastID = max(in.lastID, start.LastID); want.Again || input.DropStates {
		input.Stored = want.All
		in.above(&input)
	}
	if in.origin = start.Origin; len(in.origin) == 0 && len(in.roots) == 0 {
		in.origin = snapshot.OriginOf(want.From) // nothing here comes from it, but the application does
	}
	if err := in.startPositions(func(f *snapshot.TaskFacts) bool { return start.Decisions[f.Task].Kind == snapshot.Fresh }); err != nil {
		return nil, err
	}
	if len(start.Known) > 0 && len(start.Origin) == 0 {
		a.r.granted.Store(true)
	}
	in.tell(start)
	if len(start.Origin) > 0 {
		failpoint.Hit(failpoint.ImportBefore)
	}
	return start.Decisions, nil
}

// left reads what is committed of what the savepoint holds and no source reads any more.
func (in *intake) left(want *snapshot.StartInput) (out []snapshot.InputFacts, err error) {
	if !in.a.r.plan.HasExchange() {
		return nil, nil // stages bind topics together, and nothing else does
	}
	tps := snapshot.LeftIn(want.From, want.Sources)
	if len(tps) == 0 {
		return nil, nil
	}
	committed, err := in.a.r.ports.Offsets.Stable(in.ctx, tps)
	if err != nil {
		return nil, fmt.Errorf("read the committed offsets of what no source reads any more: %w", err)
	}
	for tp, c := range committed {
		out = append(out, snapshot.InputFacts{TopicPartition: tp, Found: c.Found, Offset: c.Offset, Metadata: c.Metadata})
	}
	return out, nil
}

// tell says what comes of the wish, and what is let go.
func (in *intake) tell(start *snapshot.Start) {
	lis := in.a.r.lis
	for _, d := range start.Dropped {
		lis.dropped(d)
	}
	if lis.StartedFrom == nil {
		return
	}
	info := FromInfo{Ignored: len(start.Known), Beyond: start.Beyond, Moved: start.Moved, Origin: start.Origin}
	for _, d := range start.Decisions {
		if d.Kind == snapshot.Imported {
			info.Imported++
		}
	}
	if info.Imported > 0 || info.Ignored > 0 {
		lis.StartedFrom(info)
	}
}

// resolveWithoutSavepoint is for a savepoint that cannot be opened. It may have been disposed of when it was claimed, or by
// hand; the command line may name it for ever. When this process has seen the wish granted, or everything that the group has
// committed here comes from a savepoint that lay at these places, it is not needed. A partition without a committed offset that was there when the application began
// might be in it.
func (in *intake) resolveWithoutSavepoint(input snapshot.ResolveInput, cause error) (map[element.TaskID]snapshot.Decision, error) {
	if fault.RecoveryOf(cause) != fault.Stop {
		cause = fault.Stopf(fault.Usage, "%w", cause)
	}
	a := in.a
	if known, err := in.comesFrom(a.r.cfg.From.Paths); !a.r.granted.Load() && (err != nil || !known) {
		return nil, cmp.Or(err, cause)
	}
	a.r.granted.Store(true)
	var unknown []element.TopicPartition
	for i := range in.facts {
		if f := &in.facts[i].Inputs[0]; !f.Found {
			unknown = append(unknown, f.TopicPartition)
		}
	}
	for _, tp := range unknown {
		first, _, err := in.firstCount(tp.Topic, in.topics[tp.Topic].Partitions)
		if err != nil {
			return nil, err
		}
		if tp.Partition < first {
			return nil, fmt.Errorf("%w; %s has no committed offset and may be in it", cause, tp)
		}
	}
	var err error
	if input.Stored, err = in.stored(); err != nil { // nothing goes back
		return nil, fmt.Errorf("look for older checkpoints: %w", err)
	}
	decisions, err := snapshot.Resolve(input)
	if err != nil {
		return nil, in.stillRefused(err)
	}
	in.dropped(&input, decisions)
	if err := in.startPositions(nil); err != nil {
		return nil, err
	}
	if in.a.r.lis.StartedFrom != nil {
		in.a.r.lis.StartedFrom(FromInfo{Ignored: len(in.facts) - len(unknown)})
	}
	return decisions, nil
}

// comesFrom reports that the application began with the savepoint that lay at these places: all tasks here that have a root
// did, or when there are none, one of another instance.
func (in *intake) comesFrom(paths []string) (bool, error) {
	roots := in.roots
	if len(roots) == 0 {
		var err error
		if roots, err = in.rootsOfOthers(); err != nil {
			return false, err
		}
	}
	for _, root := range roots {
		if root.Root == nil || len(root.Root.Origin) != len(paths) {
			return false, nil
		}
		for _, path := range paths {
			at, err := snapshot.SavepointPath(path)
			if err != nil || !slices.ContainsFunc(root.Root.Origin, func(o snapshot.SavepointRef) bool { return o.Path == at }) {
				return false, nil
			}
		}
	}
	return len(roots) > 0, nil
}

// rootsOfOthers reads the roots that the group has committed.
func (in *intake) rootsOfOthers() (map[snapshot.RootRef]snapshot.LoadedRoot, error) {
	var tps []element.TopicPartition
	for name, t := range in.topics {
		for p := range t.Partitions {
			tps = append(tps, element.TopicPartition{Topic: name, Partition: p})
		}
	}
	committed, err := in.a.readOthers(in.ctx, tps)
	if err != nil {
		return nil, err
	}
	var named []snapshot.RootRef
	for _, c := range committed {
		if h, err := snapshot.ParseHandle(c.Metadata); c.Found && err == nil && h.Kind == snapshot.HandleCheckpoint && !slices.Contains(named, h.Root) {
			named = append(named, h.Root)
		}
	}
	return in.a.r.ports.Checkpoints.LoadRoots(in.ctx, named)
}

// countsOf gives the least number of partitions of a topic that what the tasks start from knows, when that is a savepoint or
// what the store has.
func (in *intake) countsOf(topic string, count int32) int32 {
	known := slices.Clone(in.back)
	for _, o := range in.from {
		for _, e := range o.Contents().Tasks {
			known = append(known, e.Positions...)
		}
	}
	for _, p := range known {
		if p.Topic == topic && p.TopicID == in.topics[topic].ID {
			count = min(count, p.PartitionCount)
		}
	}
	return count
}

// origins notes what a task that is taken in says of the attempt's beginning. Should tasks say different things, which takes
// an instance that was started without the wish beside others with it, the newest root counts.
func (a *attempt) origins(t *owned) {
	at := element.CheckpointID(0)
	switch {
	case len(t.origin) == 0:
		return
	case t.imported:
		at, a.imports = ^at, !a.r.cfg.From.AcceptDuplicates // with it, offsets of another directory may stand beside ours for a while
	case t.root != nil:
		at = t.root.Name.ID
	case t.leaves != nil:
		at = t.leaves.Name.ID
	}
	if at >= a.originAt {
		a.origin, a.originAt = t.origin, at
	}
}

// beginImported asks for a checkpoint, when there are tasks whose state comes from a savepoint.
func (a *attempt) beginImported() error {
	for _, id := range a.order {
		if a.tasks[id].imported {
			failpoint.Hit(failpoint.ImportAfter)
			if err := a.execute(a.co.Moved(a.now(), id)); err != nil {
				return err
			}
		}
	}
	return nil
}
