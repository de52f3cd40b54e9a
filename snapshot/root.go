package snapshot

import (
	"cmp"
	"iter"
	"slices"

	"github.com/millweir/millweir/element"
)

// RunRef names one sorted run and says all that is needed to verify it. The run lies in a file or, when it is small, in
// the root itself. It is comparable.
type RunRef struct {
	// File is the path relative to the checkpoint directory. Of an inline run it is that of the root which it was written
	// for: the run itself is in Inline, and the file may have gone.
	File string
	// Inline is the run itself, Length bytes of it; empty when it lies in File. Every root that names the run carries it
	// along. FileSize and Offset are 0 then.
	Inline   string
	FileSize int64  // bytes of the whole file
	Offset   int64  // of the run in the file
	Length   int64  // bytes of the run
	CRC      uint32 // CRC32C of the run's bytes
	Digest   Digest // SHA-256 of the run's bytes
	// From and To bound the changes that the run holds: those after checkpoint From, up to and including To.
	From, To element.CheckpointID
	// Full says that the run is the whole state at To: what is not in it does not exist. It has no tombstones and
	// its From is 0.
	Full    bool
	Entries int64 // tombstones included
}

// IsZero reports that there is no run, as Persist says of a delta without entries.
func (r RunRef) IsZero() bool { return r.File == "" }

// IsInline reports that the run lies in the root.
func (r RunRef) IsInline() bool { return r.Inline != "" }

// StateInfo names one state of a task and its codecs.
type StateInfo struct{ Name, KeyCodec, Codec string }

// TaskEntry is what a root says of one task.
type TaskEntry struct {
	Task      element.TaskID
	Positions []element.Position // of all inputs, sorted by topic and partition
	States    []StateInfo        // all that occur in Runs, in the order that Entry.State indexes
	Runs      []RunRef           // oldest first; see Chain
	// Parallelism is the number of subtasks of the task's stage, and MaxParallelism that of its key groups: the task is
	// subtask Task.Partition and holds the key groups that element.GroupRange gives. Both are 0 for a task of a source. A
	// root holds all subtasks of a stage or none.
	Parallelism, MaxParallelism int
	// InFlight are runs of the records that were on the way to the task, in the order in which they are taken again. They
	// belong to this root alone and are no part of the chain.
	InFlight []RunRef
	// Exchange is the kind of exchange that InFlight came over; UnknownExchange in a root of version 2, and where there is
	// nothing in flight.
	Exchange ExchangeKind
}

// SavepointRef names a savepoint: one that was cut at the barrier of a checkpoint, or that an application started from.
type SavepointRef struct {
	ID     string // as it was asked for; see ValidName
	Path   string // directory or URL, at most 4096 bytes
	Digest Digest // SHA-256 of its metadata file
}

// ChainEnd is the checkpoint up to which the runs reach, 0 when there are none. The next delta's From is this.
func (e TaskEntry) ChainEnd() element.CheckpointID { return chainEnd(e.Runs) }

// RunBytes is the size of the task's state as it is stored, superseded values included.
func (e TaskEntry) RunBytes() int64 {
	var n int64
	for i := range e.Runs {
		n += e.Runs[i].Length
	}
	return n
}

func chainEnd(runs []RunRef) element.CheckpointID {
	if len(runs) == 0 {
		return 0
	}
	return runs[len(runs)-1].To
}

// CheckChain verifies that runs form an unbroken chain (invariant I3).
func CheckChain(runs []RunRef) error { return checkChainAfter(runs, 0) }

// checkChainAfter verifies that runs lead on from a checkpoint without a break.
func checkChainAfter(runs []RunRef, at element.CheckpointID) error {
	for i, r := range runs {
		switch {
		case r.Full && (i > 0 || at > 0):
			return formatf("run %d of %d (%s) is a full run, only the first may be", i+1, len(runs), r.File)
		case r.Full && r.From != 0:
			return formatf("full run %s starts at checkpoint %d instead of 0", r.File, r.From)
		case r.From > at:
			return formatf("hole: run %d of %d (%s) starts after checkpoint %d, the runs before it end at %d", i+1,
				len(runs), r.File, r.From, at)
		case r.From < at:
			return formatf("overlap: run %d of %d (%s) starts after checkpoint %d, the runs before it end at %d", i+1,
				len(runs), r.File, r.From, at)
		case r.To <= r.From:
			return formatf("run %d of %d (%s) covers nothing: (%d, %d]", i+1, len(runs), r.File, r.From, r.To)
		}
		at = r.To
	}
	return nil
}

// RootRef names a root metadata file. It is comparable, so it may be a map key.
type RootRef struct {
	Name   element.CheckpointName
	Path   string // relative to the checkpoint directory
	Digest Digest // SHA-256 of the file
}

// IsZero reports that no root is named.
func (r RootRef) IsZero() bool { return r == RootRef{} }

// Root is the metadata of one checkpoint of one instance.
type Root struct {
	Name             element.CheckpointName
	Predecessor      *RootRef // the committed checkpoint that this one follows, nil for the first
	Application      string
	Instance         string
	ClusterID        string
	StoreID          string
	CreatedUnixMilli int64
	Tasks            []TaskEntry    // sorted by task
	Savepoints       []SavepointRef // cut at the same barrier, sorted by id
	// Origin is the savepoint that the state began with, one directory for each instance that took part in it, sorted by
	// digest. Every root carries it on until the application starts from another one. None: it began empty.
	Origin []SavepointRef
}

// Task finds a task's entry, nil when the root has none.
func (r *Root) Task(id element.TaskID) *TaskEntry {
	for i := range r.Tasks {
		if r.Tasks[i].Task == id {
			return &r.Tasks[i]
		}
	}
	return nil
}

// sourceTasks gives the lineages of the tasks that read partitions. Handles name roots for these. What a root holds of the
// stages behind exchanges is restored together with them and is needed as long as they need the root.
func (r *Root) sourceTasks() iter.Seq[lineage] {
	return func(yield func(lineage) bool) {
		for i := range r.Tasks {
			if e := &r.Tasks[i]; e.Parallelism == 0 && !yield(r.lineageOf(e)) {
				return
			}
		}
	}
}

// anySource reports whether a condition holds for one of the tasks that read partitions.
func (r *Root) anySource(is func(lineage) bool) bool {
	for h := range r.sourceTasks() {
		if is(h) {
			return true
		}
	}
	return false
}

// Sizes sums what the root names: bytes and entries of delta runs and of full runs.
func (r *Root) Sizes() Sizes {
	var s Sizes
	for i := range r.Tasks {
		s.Add(r.Tasks[i].Runs...)
		s.AddInFlight(r.Tasks[i].InFlight...)
	}
	return s
}

// Sizes counts runs, for statistics.
type Sizes struct {
	DeltaRuns, DeltaBytes, DeltaEntries int64
	FullRuns, FullBytes, FullEntries    int64
	InlineRuns, InlineBytes             int64 // those of the above that lie in the root

	InFlightBytes, InFlightRecords int64 // not part of the state
}

// Bytes is the size of all runs of state.
func (s Sizes) Bytes() int64 { return s.DeltaBytes + s.FullBytes }

// AddInFlight counts runs of records in flight.
func (s *Sizes) AddInFlight(runs ...RunRef) {
	for _, r := range runs {
		s.InFlightBytes += r.Length
		s.InFlightRecords += r.Entries
	}
}

// Add counts runs; zero ones are passed over.
func (s *Sizes) Add(runs ...RunRef) {
	for _, r := range runs {
		if r.IsInline() {
			s.InlineRuns++
			s.InlineBytes += r.Length
		}
		switch {
		case r.IsZero():
		case r.Full:
			s.FullRuns++
			s.FullBytes += r.Length
			s.FullEntries += r.Entries
		default:
			s.DeltaRuns++
			s.DeltaBytes += r.Length
			s.DeltaEntries += r.Entries
		}
	}
}

// validate checks what every root on disk fulfils; the writer and the reader both call it.
func (r *Root) validate() error {
	switch {
	case !ValidName(r.Application) || !ValidName(r.Instance):
		return formatf("application %q or instance %q is not a valid name", r.Application, r.Instance)
	case r.CreatedUnixMilli < 0:
		return formatf("negative time of creation")
	case r.Predecessor != nil && r.Predecessor.Name.ID >= r.Name.ID:
		return formatf("predecessor %s is not older", r.Predecessor.Name)
	case r.Predecessor != nil && parseFilePath(r.Predecessor.Path).kind != rootFile:
		return formatf("predecessor's path %q is not that of a root", r.Predecessor.Path)
	}
	if len(r.Tasks) > maxTasks {
		return formatf("%d tasks, at most %d allowed", len(r.Tasks), maxTasks)
	}
	for i := range r.Tasks {
		if i > 0 && r.Tasks[i-1].Task.Compare(r.Tasks[i].Task) >= 0 {
			return formatf("task %s is out of order or twice", r.Tasks[i].Task)
		}
		if err := r.Tasks[i].validate(r.Name.ID); err != nil {
			return formatf("task %s: %v", r.Tasks[i].Task, err)
		}
	}
	if err := checkStages(r.Tasks); err != nil {
		return err
	}
	if err := checkSavepoints(r.Savepoints); err != nil {
		return err
	}
	return checkOrigin(r.Origin)
}

func (e *TaskEntry) validate(id element.CheckpointID) error {
	if !ValidName(e.Task.Source) || e.Task.Partition < 0 {
		return formatf("not a valid task")
	}
	if len(e.Positions) > maxPositions || len(e.Runs) > maxRuns || len(e.InFlight) > maxInFlight {
		return formatf("%d positions, %d runs or %d runs in flight are too many", len(e.Positions), len(e.Runs), len(e.InFlight))
	}
	for i, p := range e.Positions {
		switch {
		case p.Topic == "" || len(p.Topic) > maxStateName || p.Partition < 0 || p.PartitionCount < 0 || p.Offset < 0 || p.LeaderEpoch < -1:
			return formatf("position of %s is not valid", p.TopicPartition)
		case i > 0 && e.Positions[i-1].TopicPartition.Compare(p.TopicPartition) >= 0:
			return formatf("position of %s is out of order or twice", p.TopicPartition)
		}
	}
	if err := checkStates(e.States); err != nil {
		return err
	}
	for i := range e.Runs {
		if err := e.Runs[i].validate(id); err != nil {
			return err
		}
	}
	for i := range e.InFlight {
		run := &e.InFlight[i]
		if err := run.validate(id); err != nil {
			return err
		}
		if run.From != run.To || run.To == 0 || run.Full || parseFilePath(run.File).kind == fullFile {
			return formatf("run in %s is not one of records in flight: (%d, %d] full=%t", run.File, run.From, run.To, run.Full)
		}
	}
	if e.Exchange >= exchangeKinds || e.Exchange != UnknownExchange && len(e.InFlight) == 0 {
		return formatf("%s with %d runs of records in flight", e.Exchange, len(e.InFlight))
	}
	return CheckChain(e.Runs)
}

// validate checks what a reference says by itself, in a root of a checkpoint.
func (r *RunRef) validate(id element.CheckpointID) error {
	if err := r.place(); err != nil {
		return err
	}
	if r.Entries < 0 || r.To > id {
		return formatf("run in %s with %d entries reaches to checkpoint %d, the root is of %d", r.File, r.Entries, r.To, id)
	}
	return nil
}

// place checks where a reference says that its run lies.
func (r *RunRef) place() error {
	k := parseFilePath(r.File).kind
	switch {
	case k == rootFile && r.IsInline():
		if r.FileSize != 0 || r.Offset != 0 || r.Length != int64(len(r.Inline)) || r.Length > MaxMemoryThreshold {
			return formatf("inline run of %s: %d bytes, %d are said, at most %d are allowed", r.File, len(r.Inline), r.Length, MaxMemoryThreshold)
		}
	case k != packFile && k != fullFile, r.IsInline():
		return formatf("run in %q, which is not the path of a run", r.File)
	case r.Offset < 0 || r.Length <= 0 || r.Offset > r.FileSize-r.Length:
		return formatf("run in %s at %d with %d bytes does not fit %d bytes", r.File, r.Offset, r.Length, r.FileSize)
	}
	return nil
}

// files gives the files that a task needs, those of inline runs left out.
func (e *TaskEntry) files() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, runs := range [][]RunRef{e.Runs, e.InFlight} {
			for i := range runs {
				if !runs[i].IsInline() && !yield(runs[i].File) {
					return
				}
			}
		}
	}
}

// checkStages verifies that subtasks of a stage agree on the parallelism and are all there. Tasks are sorted.
func checkStages(tasks []TaskEntry) error {
	for i := 0; i < len(tasks); {
		first := &tasks[i]
		n, kind := 0, UnknownExchange
		for ; i < len(tasks) && tasks[i].Task.Source == first.Task.Source; i++ {
			if e := &tasks[i]; e.Parallelism != first.Parallelism || e.MaxParallelism != first.MaxParallelism {
				return formatf("task %s has parallelism %d of %d, another of its stage %d of %d", e.Task, e.Parallelism, e.MaxParallelism,
					first.Parallelism, first.MaxParallelism)
			} else if e.Exchange != UnknownExchange {
				if kind != UnknownExchange && kind != e.Exchange || e.Parallelism == 0 {
					return formatf("task %s has records in flight over a %s, another of its stage over a %s, or it is of a source", e.Task, e.Exchange, kind)
				}
				kind = e.Exchange
			}
			n++
		}
		p, groups := first.Parallelism, first.MaxParallelism
		switch {
		case p == 0 && groups == 0: // of a source
		case p < 1 || groups < p || groups > maxGroups:
			return formatf("stage %s has parallelism %d of %d, 1 up to %d key groups are possible", first.Task.Source, p, groups, maxGroups)
		case n != p || int(tasks[i-1].Task.Partition) != p-1:
			return formatf("stage %s has parallelism %d, but %d subtasks up to number %d", first.Task.Source, p, n, tasks[i-1].Task.Partition)
		}
	}
	return nil
}

func checkSavepoints(refs []SavepointRef) error {
	if len(refs) > maxSavepoints {
		return formatf("%d savepoints, at most %d allowed", len(refs), maxSavepoints)
	}
	for i, s := range refs {
		switch {
		case !s.valid():
			return formatf("savepoint %q at %q is not valid", s.ID, s.Path)
		case i > 0 && refs[i-1].ID >= s.ID:
			return formatf("savepoint %q is out of order or twice", s.ID)
		}
	}
	return nil
}

func checkStates(states []StateInfo) error {
	if len(states) > maxStates {
		return formatf("%d states, at most %d allowed", len(states), maxStates)
	}
	for i, s := range states {
		if !validStateName(s.Name) || !validStateName(s.Codec) || (s.KeyCodec != "" && !validStateName(s.KeyCodec)) {
			return formatf("state %q (key codec %q, codec %q) is not valid", s.Name, s.KeyCodec, s.Codec)
		}
		for _, o := range states[:i] {
			if o.Name == s.Name {
				return formatf("state %q is named twice", s.Name)
			}
		}
	}
	return nil
}

// sorted gives a copy with tasks and positions in the order that the format demands.
func (r *Root) sorted() *Root {
	c := *r
	c.Tasks = slices.Clone(r.Tasks)
	slices.SortFunc(c.Tasks, func(a, b TaskEntry) int { return a.Task.Compare(b.Task) })
	for i := range c.Tasks {
		ps := slices.Clone(c.Tasks[i].Positions)
		slices.SortFunc(ps, func(a, b element.Position) int { return a.TopicPartition.Compare(b.TopicPartition) })
		c.Tasks[i].Positions = ps
	}
	c.Savepoints = slices.Clone(r.Savepoints)
	slices.SortFunc(c.Savepoints, func(a, b SavepointRef) int { return cmp.Compare(a.ID, b.ID) })
	c.Origin = sortedOrigin(r.Origin)
	return &c
}
