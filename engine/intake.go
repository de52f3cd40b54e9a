package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// intake is a set of partitions on its way into an attempt: those that it begins with, or some that are assigned while
// it runs. It belongs to one goroutine at a time: the attempt's, or one of its own until it reports evJoined.
type intake struct {
	a      *attempt
	ctx    context.Context
	cancel context.CancelFunc
	since  map[element.TopicPartition]uint64 // the partitions and their ownership epochs

	facts  []snapshot.TaskFacts                     // what the group had committed
	starts map[element.TaskID]element.Position      // of tasks without a committed offset
	lastID element.CheckpointID                     // highest id in any handle seen
	roots  map[snapshot.RootRef]snapshot.LoadedRoot // that the handles name
	named  []snapshot.RootRef                       // by offsets of what no source reads any more; see confirm
	topics map[string]Topic
	from   []opened                         // the savepoint to start from, until the state is read
	origin []snapshot.SavepointRef          // the same, when a task starts from it
	letGo  bool                             // the state that the handles lead to, since there are no checkpoints any more
	back   []element.Position               // what a recovery from the store goes back to
	forgot element.CheckpointID             // as high as what the store has of tasks that begin anew all the same; 0: nothing
	allGo  bool                             // what the store has of all sources and stages is let go
	tasks  []*owned                         // what comes of it, in the order of their ids
	ends   map[element.TopicPartition]int64 // before which partitions end, of those that do
}

func (a *attempt) newIntake(since map[element.TopicPartition]uint64) *intake {
	ctx, cancel := context.WithCancel(a.ctx)
	return &intake{a: a, ctx: ctx, cancel: cancel, since: since}
}

// partitions lists what is taken in, sorted.
func (in *intake) partitions() []element.TopicPartition {
	return slices.SortedFunc(maps.Keys(in.since), element.TopicPartition.Compare)
}

// resolve decides how every task starts. None does while partitions are assigned that their topic does not have; a refusal comes first.
func (in *intake) resolve() (map[element.TaskID]snapshot.Decision, error) {
	decisions, err := in.decide()
	if err == nil {
		err = in.allThere()
	}
	for _, d := range decisions {
		in.lastID = max(in.lastID, d.Behind)
	}
	return decisions, err
}

// isThere reports that a topic has a partition, as far as the cluster says. One that was deleted and made anew with fewer partitions
// has not all of those that the group had shared out before, and a static member that starts in place of one that died is given what that had.
func (in *intake) isThere(tp element.TopicPartition) bool {
	return tp.Partition < in.topics[tp.Topic].Partitions
}

// allThere reports partitions that are assigned and not there. The group has been told, and is about to share out those that are.
func (in *intake) allThere() error {
	for _, tp := range in.partitions() {
		if !in.isThere(tp) {
			return fault.New(fault.Rejoin, fault.UnknownTopic, "the group assigns %s, and topic %s has %d partitions: it was deleted and created again since the group shared it out", tp, tp.Topic, in.topics[tp.Topic].Partitions)
		}
	}
	return nil
}

// decide reads what the group has committed for that, and what the checkpoints say.
func (in *intake) decide() (map[element.TaskID]snapshot.Decision, error) {
	a := in.a
	if err := in.readFacts(); err != nil {
		return nil, err
	}
	input := snapshot.ResolveInput{
		Application: a.r.cfg.Application,
		ClusterID:   a.r.cfg.ClusterID,
		StoreID:     a.r.ports.Checkpoints.StoreID(),
		Tasks:       in.facts,
		Stages:      a.stageFacts(),
		States:      map[string][]snapshot.StateInfo{},
		DropStates:  a.r.cfg.AllowDropped,
		Repeats:     a.r.cfg.AtLeastOnce,
	}
	if a.r.plan.HasExchange() {
		// All of the application is here. Without an exchange a source that this plan does not have may be another instance's,
		// in a change that is rolled out: its state is kept by the handles of its partitions, whoever owns them or nobody.
		input.Sources = a.sources()
	}
	for _, s := range a.r.plan.States {
		input.States[s.Source] = append(input.States[s.Source], snapshot.StateInfo{Name: s.ID(), KeyCodec: s.KeyCodec, Codec: s.Codec})
	}
	var err error
	if input.Unbound, err = in.unbound(); err != nil {
		return nil, err
	}
	in.lastID = snapshot.NextID(in.facts) - 1
	if len(a.r.cfg.From.Paths) == 0 {
		if err := in.startPositions(nil); err != nil {
			return nil, err
		}
	}
	if a.r.cfg.NoSnapshots {
		return in.resolveWithout(input)
	}
	if a.r.cfg.RecoverFromStore {
		return in.resolveOrRecover(input)
	}
	if input.Roots, err = a.r.ports.Checkpoints.LoadRoots(in.ctx, snapshot.NamedRoots(in.facts)); err != nil {
		return nil, fmt.Errorf("read the committed roots: %w", err)
	}
	if input.Listing, err = a.r.ports.Checkpoints.CommittedAfter(in.ctx, snapshot.OldestID(in.facts)); err != nil {
		return nil, fmt.Errorf("look for newer checkpoints: %w", err)
	}
	in.roots = input.Roots
	if len(a.r.cfg.From.Paths) > 0 {
		return in.resolveFrom(input)
	}
	if input.Stored, err = in.stored(); err != nil {
		return nil, fmt.Errorf("look for older checkpoints: %w", err)
	}
	if err := in.confirm(&input); err != nil {
		return nil, err
	}
	decisions, err := snapshot.Resolve(input)
	if err != nil {
		return nil, in.stillRefused(err)
	}
	if a.r.plan.HasExchange() { // all checkpoints are of one history: the newest id is where the application stands
		in.raise(&input)
	}
	in.dropped(&input, decisions)
	return decisions, nil
}

// confirm looks for a root that was committed and not marked before the process was killed, of an application whose sources were all
// replaced since: no offset of theirs leads to it.
func (in *intake) confirm(input *snapshot.ResolveInput) error {
	if len(input.Stages) == 0 {
		return nil
	}
	unmarked, err := in.a.r.ports.Checkpoints.UnmarkedAfter(in.ctx, snapshot.StandsAt(in.facts))
	if err != nil {
		return fmt.Errorf("look for newer checkpoints that are not marked: %w", err)
	}
	input.Listing = append(slices.Clone(input.Listing), unmarked...)
	tps := input.Doubtful()
	if len(tps) == 0 {
		return nil
	}
	committed, err := in.a.r.ports.Offsets.Stable(in.ctx, tps)
	if err != nil {
		return fmt.Errorf("read the committed offsets of what no source reads any more: %w", err)
	}
	for _, c := range committed {
		if h, err := snapshot.ParseHandle(c.Metadata); c.Found && err == nil && h.Kind == snapshot.HandleCheckpoint {
			in.named = append(in.named, h.Root)
		}
	}
	snapshot.Confirm(input.Stored, in.named)
	snapshot.Confirm(input.Listing, in.named)
	return nil
}

// stored gives all roots where a task has no committed offset.
func (in *intake) stored() ([]snapshot.RootInfo, error) {
	if !snapshot.NeedsStored(in.facts) {
		return nil, nil
	}
	return in.a.r.ports.Checkpoints.List(in.ctx)
}

// dropped sees to what of the checkpoints is let go, and says it.
func (in *intake) dropped(input *snapshot.ResolveInput, decisions map[element.TaskID]snapshot.Decision) {
	if !input.DropStates {
		return
	}
	in.above(input)
	in.allGo = input.LetsAllGo(decisions)
	for _, d := range input.DroppedStages(decisions) {
		in.a.r.lis.dropped(d)
	}
}

// stillRefused looks at the offsets again before a refusal ends the process. A process that was frozen, and whose place was
// taken meanwhile, may have read the offsets before its successor committed and the checkpoint directory after that:
// what it sees does not fit together, and the advice of the refusal, to put offsets back, would do harm.
func (in *intake) stillRefused(refused error) error {
	stable, err := in.a.r.ports.Offsets.Stable(in.ctx, in.partitions())
	if err != nil {
		return fmt.Errorf("read the committed offsets again: %w", err)
	}
	for _, f := range in.facts {
		for _, i := range f.Inputs {
			if c := stable[i.TopicPartition]; c.Found != i.Found || c.Offset != i.Offset || c.Metadata != i.Metadata {
				return fault.New(fault.Rejoin, fault.Failed, "another process committed %s while this one read the offsets", i.TopicPartition)
			}
		}
	}
	return in.interruptedImport(refused)
}

// interruptedImport adds what to do where the store has nothing but roots of a start from a savepoint that ended before its
// first commit, and the start now is without that wish.
func (in *intake) interruptedImport(refused error) error {
	if why := snapshot.RefusalOf(refused); why == nil || !why.Has(snapshot.ReasonOffsetsExpired) || len(in.a.r.cfg.From.Paths) > 0 {
		return refused
	}
	infos, err := in.a.r.ports.Checkpoints.List(in.ctx)
	var flags []string
	for _, info := range infos {
		if info.Root == nil || info.Committed || len(info.Root.Origin) == 0 {
			return refused
		}
		flags = flags[:0]
		for _, o := range info.Root.Origin {
			flags = append(flags, "--from "+o.Path)
		}
	}
	if err != nil || len(flags) == 0 {
		return refused
	}
	return fmt.Errorf("%w; all that the store has is of a start from a savepoint that ended before its first commit: start with %s again, or, to start without it, move the checkpoint directory away",
		refused, strings.Join(flags, " "))
}

// readFacts collects the tasks and what the cluster knows of their inputs.
func (in *intake) readFacts() error {
	a := in.a
	source := map[string]string{} // by topic
	for _, s := range a.r.plan.Sources {
		source[s.Topic] = s.Name
	}
	topics, err := a.r.inputs(in.ctx)
	if err != nil {
		return err
	}
	in.topics = topics
	tps := in.partitions()
	stable, err := a.r.ports.Offsets.Stable(in.ctx, tps)
	if err != nil {
		return fmt.Errorf("read the committed offsets: %w", err)
	}
	for _, tp := range tps {
		src, ok := source[tp.Topic]
		if !ok {
			return fmt.Errorf("the group assigned %s, which no source reads", tp)
		}
		c := stable[tp]
		in.facts = append(in.facts, snapshot.TaskFacts{Task: element.TaskID{Source: src, Partition: tp.Partition}, Inputs: []snapshot.InputFacts{{
			TopicPartition: tp, TopicID: topics[tp.Topic].ID, Partitions: topics[tp.Topic].Partitions,
			Found: c.Found, Offset: c.Offset, Metadata: c.Metadata,
		}}})
	}
	// The ends come before any start: that of a fresh partition is resolved while the group has no offset of it.
	return in.readEnds()
}

// readEnds learns where the partitions end.
func (in *intake) readEnds() error {
	in.ends = map[element.TopicPartition]int64{}
	for _, src := range in.a.r.plan.Sources {
		var tps []element.TopicPartition
		for _, tp := range in.partitions() {
			if tp.Topic == src.Topic && in.isThere(tp) {
				tps = append(tps, tp)
			}
		}
		if len(tps) == 0 || !src.End.Bounded() {
			continue
		}
		ends, err := in.a.r.ports.Offsets.Ends(in.ctx, src.End, tps)
		if err != nil {
			return fmt.Errorf("end of source %s: %w", src.Name, err)
		}
		maps.Copy(in.ends, ends)
	}
	return nil
}

// startPositions resolves where fresh tasks start: those without a committed offset unless is says it. The source says it, but for partitions that
// were added to the topic since the application began to read it: such a one starts at its beginning, or what was written
// to it before anybody knew of it would be lost. How many there were in the beginning stands in the handles of the
// source's other partitions, whoever owns them: a handle keeps the count of its task's first checkpoint. Where they do not lead
// to the tasks any more it stands in what the tasks start from in their place: a savepoint, or checkpoints of the store. See beganWith.
func (in *intake) startPositions(is func(*snapshot.TaskFacts) bool) error {
	a, topics := in.a, in.topics
	if is == nil {
		is = func(f *snapshot.TaskFacts) bool { return !f.Inputs[0].Found }
	}
	in.starts = map[element.TaskID]element.Position{}
	for _, src := range a.r.plan.Sources {
		var missing []element.TopicPartition
		for i := range in.facts {
			if f := &in.facts[i]; f.Task.Source == src.Name && is(f) && in.isThere(f.Inputs[0].TopicPartition) {
				missing = append(missing, f.Inputs[0].TopicPartition)
			}
		}
		if len(missing) == 0 {
			continue
		}
		first, err := in.beganWith(&src)
		if err != nil {
			return err
		}
		if src.Stateful && first < topics[src.Topic].Partitions {
			return in.refuseGrown(&src, first)
		}
		byStart := map[bool][]element.TopicPartition{}
		for _, tp := range missing {
			added := tp.Partition >= first
			byStart[added] = append(byStart[added], tp)
		}
		for added, tps := range byStart {
			start := src.Start
			if added {
				start = topology.Earliest()
			}
			offsets, err := a.r.ports.Offsets.Start(in.ctx, start, tps)
			if err == nil {
				err = in.startsAsBefore(tps, offsets)
			}
			if err != nil {
				return fmt.Errorf("start position of source %s: %w", src.Name, err)
			}
			for _, tp := range tps {
				in.starts[element.TaskID{Source: src.Name, Partition: tp.Partition}] = element.Position{
					TopicPartition: tp, TopicID: topics[tp.Topic].ID, PartitionCount: topics[tp.Topic].Partitions, Offset: offsets[tp], LeaderEpoch: -1,
				}
			}
		}
	}
	return nil
}

// readOthers reads what is committed of partitions that are not this instance's. It refuses to work beside instances whose
// checkpoints are in another directory: when a partition moves, its new owner could not restore it. Nothing else would tell
// an instance that begins with partitions which nobody had. A handle without state leads to no directory: one of another that was given up stays
// until the partition has a checkpoint. Only that of a start position may be of an instance that begins now; see othersShareTheStore.
func (a *attempt) readOthers(ctx context.Context, others []element.TopicPartition) (map[element.TopicPartition]Committed, error) {
	committed, err := a.r.ports.Offsets.Stable(ctx, others)
	if err != nil {
		return nil, fmt.Errorf("read the committed offsets of the others: %w", err)
	}
	own := a.r.ports.Checkpoints.StoreID()
	for tp, c := range committed {
		h, err := snapshot.ParseHandle(c.Metadata)
		begins := h.Root.Name.ID == 0 && h.Life == a.r.cfg.Life
		if !c.Found || err != nil || h.StoreID == own || h.Kind != snapshot.HandleCheckpoint && !begins {
			continue
		}
		return nil, fault.Stopf(fault.HandleMismatch, "the checkpoints of %s are in a directory with store id %s, the configured one has %s: "+snapshot.OtherStoreCure, tp, h.StoreID, own)
	}
	return committed, nil
}

// othersShareTheStore looks at all partitions of the sources once start positions have been committed. Two instances that
// begin at the same moment with a directory each see nothing of each other before that:
//
//	a: no other handle                          b: no other handle
//	a: commits its start positions              b: commits its start positions
//	a: looks                                    b: looks
//
// Whichever looks last sees the other, perhaps both do, and stop before the first record. What they have committed
// says that no state belongs to it, so it stands in nobody's way.
func (a *attempt) othersShareTheStore(mine map[element.TopicPartition]element.TaskID) error {
	topics, err := a.r.inputs(a.ctx)
	if err != nil {
		return err
	}
	var others []element.TopicPartition
	for name, t := range topics {
		for p := range t.Partitions {
			if tp := (element.TopicPartition{Topic: name, Partition: p}); mine[tp] == (element.TaskID{}) {
				others = append(others, tp)
			}
		}
	}
	if len(others) == 0 {
		return nil
	}
	_, err = a.readOthers(a.ctx, others)
	return err
}
