package snapshot

import (
	"slices"

	"github.com/millweir/millweir/element"
)

// RunRef names one sorted run inside a file and says all that is needed to verify it.
type RunRef struct {
	File     string // path relative to the checkpoint directory
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

// StateInfo names one state of a task and its codecs.
type StateInfo struct{ Name, KeyCodec, Codec string }

// TaskEntry is what a root says of one task.
type TaskEntry struct {
	Task      element.TaskID
	Positions []element.Position // of all inputs, sorted by topic and partition
	States    []StateInfo        // all that occur in Runs, in the order that Entry.State indexes
	Runs      []RunRef           // oldest first; see Chain
}

// ChainEnd is the checkpoint up to which the runs reach, 0 when there are none. The next delta's From is this.
func (e TaskEntry) ChainEnd() element.CheckpointID { return chainEnd(e.Runs) }

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
	Tasks            []TaskEntry // sorted by task
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

// Sizes sums what the root names: bytes and entries of delta runs and of full runs.
func (r *Root) Sizes() Sizes {
	var s Sizes
	for i := range r.Tasks {
		s.Add(r.Tasks[i].Runs...)
	}
	return s
}

// Sizes counts runs, for statistics.
type Sizes struct {
	DeltaRuns, DeltaBytes, DeltaEntries int64
	FullRuns, FullBytes, FullEntries    int64
}

// Bytes is the size of all runs.
func (s Sizes) Bytes() int64 { return s.DeltaBytes + s.FullBytes }

// Add counts runs; zero ones are passed over.
func (s *Sizes) Add(runs ...RunRef) {
	for _, r := range runs {
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
	return nil
}

func (e *TaskEntry) validate(id element.CheckpointID) error {
	if !ValidName(e.Task.Source) || e.Task.Partition < 0 {
		return formatf("not a valid task")
	}
	if len(e.Positions) > maxPositions || len(e.Runs) > maxRuns {
		return formatf("%d positions or %d runs are too many", len(e.Positions), len(e.Runs))
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
	for _, run := range e.Runs {
		k := parseFilePath(run.File).kind
		switch {
		case k != packFile && k != fullFile:
			return formatf("run in %q, which is not the path of a run", run.File)
		case run.Offset < 0 || run.Length <= 0 || run.Entries < 0 || run.Offset > run.FileSize-run.Length:
			return formatf("run in %s at %d with %d bytes does not fit %d bytes", run.File, run.Offset, run.Length, run.FileSize)
		case run.To > id:
			return formatf("run in %s reaches to checkpoint %d, beyond the root's", run.File, run.To)
		}
	}
	return CheckChain(e.Runs)
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
	return &c
}
