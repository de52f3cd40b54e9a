package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Recovery says where the tasks start that Recover leads back to the store, for the log: nothing of it is silent.
type Recovery struct {
	Reason Reason // why the first of the tasks was refused
	Cause  string // the first refusal's line
	Tasks  []RecoveredTask
	// Added are tasks whose partitions were added since: the checkpoints that are taken do not hold them, and they begin at their beginning.
	Added []element.TaskID
	// Passed are the checkpoints that hold one of the tasks, or may hold it since they cannot be read, that are newer than
	// the one taken for it, and are not taken: unconfirmed or damaged, newest first.
	Passed []RootInfo
	// LastID is the highest id in the store. The ids of new checkpoints must be above it.
	LastID element.CheckpointID
}

// RecoveredTask is one task and the checkpoint that it goes back to.
type RecoveredTask struct {
	Task             element.TaskID
	Reason           Reason // why the task was refused
	Root             RootRef
	Instance         string
	CreatedUnixMilli int64
	Ranges           []RepeatRange // by input, as in the checkpoint
}

// RepeatRange says what of an input may be processed a second time, so that its outputs appear twice.
type RepeatRange struct {
	From element.Position // where the task starts
	// Committed is how far outputs are known to be committed: what lies between From.Offset and it repeats.
	Committed int64
	// Reached is how far unconfirmed checkpoints came: what lies between Committed and it repeats if they were committed
	// after all. At least Committed.
	Reached int64
	// Open: a newer checkpoint cannot be read, so that more than this may repeat.
	Open bool
}

// Repeats says in words what may repeat.
func (t RecoveredTask) Repeats() string {
	var out []string
	for _, r := range t.Ranges {
		if s := r.words(); s != "" {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return "nothing: no later checkpoint is known"
	}
	return strings.Join(out, "; ")
}

func (r RepeatRange) words() string {
	var parts []string
	if r.Committed > r.From.Offset {
		parts = append(parts, fmt.Sprintf("outputs of inputs %d to %d repeat", r.From.Offset, r.Committed-1))
	}
	if r.Reached > r.Committed {
		parts = append(parts, fmt.Sprintf("outputs of inputs %d to %d if an unconfirmed checkpoint was committed", r.Committed, r.Reached-1))
	}
	if r.Open {
		parts = append(parts, "whatever a newer checkpoint that cannot be read committed")
	}
	if len(parts) == 0 {
		return ""
	}
	return r.From.TopicPartition.String() + ": " + strings.Join(parts, ", and ")
}

// recoverable are the reasons for which the store may be asked instead of the group.
var recoverable = map[Reason]bool{
	ReasonOffsetsExpired: true, ReasonDamagedHandle: true, ReasonRootUnusable: true, ReasonStaleHandle: true, ReasonUnreadable: true,
}

// Recoverable reports whether Recover may find a way back: the store may be asked for all of the reasons. Recover also wants that no
// other task has a valid handle.
func (e *RefusedError) Recoverable() bool {
	return !slices.ContainsFunc(e.Refusals, func(r Refusal) bool { return !recoverable[r.Reason] })
}

// Recover decides how refused tasks start from the store alone, on an operator's explicit wish: each from the newest
// checkpoint that is whole and known to be committed. It is for offsets that expired or were deleted, and for handles
// that are damaged, stale, or name a checkpoint that is; no task may have a valid handle, since the tasks were committed
// together and would drift apart. An unconfirmed checkpoint is
// never taken.
//
// refused is Resolve's error of the same input, with List for Stored and Listing; listing is that of Repository.Survey. The
// decisions of kind Recover must be committed, position and handle, before the first record. When there is no way back the
// error refuses, classed like Resolve's.
func Recover(in ResolveInput, refused *RefusedError, listing []RootInfo) (map[element.TaskID]Decision, *Recovery, error) {
	c := &recovery{in: in, infos: listing, refused: map[element.TaskID]Reason{}, out: map[element.TaskID]Decision{}}
	if c.in.Roots = maps.Clone(in.Roots); c.in.Roots == nil {
		c.in.Roots = map[RootRef]LoadedRoot{}
	}
	c.rec = &Recovery{Reason: refused.Refusals[0].Reason, Cause: refused.Refusals[0].Message}
	for _, r := range refused.Refusals {
		c.refused[r.Task] = r.Reason
	}
	if why := c.forbidden(refused); why != "" {
		return nil, nil, fault.Stopf(refused.Refusals[0].Reason.code(), "%w; the store is not asked: %s", refused, why)
	}
	var failed []Refusal
	c.findCommon()
	c.in.Unbound = c.in.unboundIn(c.taken())
	var unknown []*TaskFacts
	for i := range in.Tasks {
		t := &in.Tasks[i]
		switch {
		case c.refused[t.Task] == "":
			c.out[t.Task] = Decision{Kind: Fresh}
			continue
		case !c.known(t):
			unknown = append(unknown, t)
			continue
		}
		if no := c.task(t); no != nil {
			no.Task = t.Task
			failed = append(failed, *no)
		}
	}
	for _, t := range unknown {
		if no := c.unknown(t); no != nil {
			no.Task = t.Task
			failed = append(failed, *no)
		}
	}
	if no := c.leavesBehind(); no != nil && len(failed) == 0 {
		failed = append(failed, *no)
	}
	if len(failed) == 0 {
		failed = c.refuseReplaced()
	}
	if len(failed) == 0 {
		failed = c.in.resolveStages(Recovered, c.out)
	}
	if len(failed) > 0 {
		slices.SortStableFunc(failed, func(a, b Refusal) int { return a.Task.Compare(b.Task) })
		return nil, nil, fault.Stopf(failed[0].Reason.code(), "%w", &RefusedError{Refusals: failed})
	}
	c.finish()
	c.in.rebind(c.out)
	return c.out, c.rec, nil
}

type recovery struct {
	in      ResolveInput
	infos   []RootInfo
	refused map[element.TaskID]Reason
	out     map[element.TaskID]Decision
	rec     *Recovery

	// common: all tasks go back to one checkpoint, which is at this place among infos, -1 when there is none.
	common bool
	at     int
}

// findCommon looks for the newest usable checkpoint that holds all refused tasks, where exchanges bind them together.
func (c *recovery) findCommon() {
	exchanged := func(i RootInfo) bool { return i.Root != nil && i.Root.hasStages() }
	if c.at = -1; len(c.in.Stages) == 0 || !slices.ContainsFunc(c.infos, exchanged) {
		return
	}
	c.common = true
	for _, i := range newestFirst(c.infos) {
		if !c.infos[i].usable() {
			continue
		}
		whole := true
		for j := range c.in.Tasks {
			t := &c.in.Tasks[j]
			whole = whole && (c.refused[t.Task] == "" || c.in.holds(c.infos[i].Root, t) || !c.known(t) && c.in.added(t, c.infos[i].Root.positions()))
		}
		if whole {
			c.at = i
			return
		}
	}
}

// taken gives the checkpoints that tasks may go back to. What a topic's number of partitions is bound by is in these only: what was bound
// or let go since is lost with those that are passed over.
func (c *recovery) taken() (out []RootInfo) {
	for i := range c.infos {
		if c.infos[i].usable() && (!c.common || i == c.at) {
			out = append(out, c.infos[i])
		}
	}
	return out
}

// forbidden says why the store must not be asked, "" when it may.
func (c *recovery) forbidden(refused *RefusedError) string {
	for i, r := range refused.Refusals {
		switch {
		case !recoverable[r.Reason] && i > 0:
			return "it cannot cure " + r.Message
		case !recoverable[r.Reason]:
			return "it cannot cure this (" + string(r.Reason) + ")"
		}
	}
	for i := range c.in.Tasks {
		t := &c.in.Tasks[i]
		for _, f := range t.Inputs {
			if f.Found && c.refused[t.Task] == "" {
				return fmt.Sprintf("%s has a valid handle, and what was committed together goes back together; %s", f.TopicPartition, c.together())
			}
		}
	}
	return ""
}

// together says how all tasks go back: without any offset. Then nothing is known any more of a task that has no way back, and it would
// begin anew; so that is not what is said where there is one.
func (c *recovery) together() string {
	for i := range c.in.Tasks {
		t := &c.in.Tasks[i]
		known := c.refused[t.Task] != "" || slices.ContainsFunc(t.Inputs, func(f InputFacts) bool { return f.Found })
		if known && !c.known(t) {
			return c.nothing(t).Message
		}
	}
	return fmt.Sprintf("delete all offsets of group %s to go back with all of them", c.in.Application)
}

// task takes the newest usable checkpoint that holds the task.
func (c *recovery) task(t *TaskFacts) *Refusal {
	for _, i := range newestFirst(c.infos) {
		info := &c.infos[i]
		if !info.usable() || c.common && i != c.at || !c.in.holds(info.Root, t) {
			continue
		}
		entry := info.Root.entryOf(t)
		if no := c.fits(t, info, entry); no != nil {
			return no
		}
		c.in.Roots[info.Ref] = LoadedRoot{Root: info.Root}
		c.out[t.Task] = t.takeUp(Recovered, info.Ref, entry)
		c.rec.Tasks = append(c.rec.Tasks, RecoveredTask{
			Task: t.Task, Reason: c.refused[t.Task], Root: info.Ref, Instance: info.Instance, CreatedUnixMilli: info.Root.CreatedUnixMilli, Ranges: c.ranges(t, info, entry),
		})
		return nil
	}
	return c.nothing(t)
}

// describe sums up the checkpoints that cannot be taken.
func describe(infos []RootInfo) string {
	var out []string
	for _, i := range newestFirst(infos) {
		switch info := &infos[i]; {
		case info.Err != nil:
			out = append(out, fmt.Sprintf("%s is damaged", info.Ref.Name))
		case !info.Committed:
			out = append(out, fmt.Sprintf("%s is unconfirmed", info.Ref.Name))
		}
	}
	switch n := len(out); {
	case n == 0:
		return "there is none at all"
	case n > 4:
		out = append(out[:4], fmt.Sprintf("%d more", n-4))
	}
	return strings.Join(out, ", ")
}

// fits checks what else a valid handle would have vouched for.
func (c *recovery) fits(t *TaskFacts, info *RootInfo, entry *TaskEntry) *Refusal {
	if info.Root.ClusterID != c.in.ClusterID {
		return refuse(ReasonOtherCluster, element.TopicPartition{}, "task %s: checkpoint %s (%s) is of cluster %q, this is %q", t.Task, info.Ref.Name, info.Ref.Path, info.Root.ClusterID, c.in.ClusterID)
	}
	if len(entry.Positions) != len(t.Inputs) {
		return refuse(ReasonOtherInputs, element.TopicPartition{}, "task %s: checkpoint %s (%s) covers %d inputs, the task has %d", t.Task, info.Ref.Name, info.Ref.Path, len(entry.Positions), len(t.Inputs))
	}
	for _, p := range entry.Positions {
		j := slices.IndexFunc(t.Inputs, func(f InputFacts) bool { return f.TopicPartition == p.TopicPartition })
		if j < 0 {
			return refuse(ReasonOtherInputs, p.TopicPartition, "task %s: checkpoint %s (%s) covers %s, which the task does not read: the source reads another topic now; give it back its topic"+otherName,
				t.Task, info.Ref.Name, info.Ref.Path, p.TopicPartition)
		}
		f := &t.Inputs[j]
		switch {
		case f.TopicID != p.TopicID:
			return refuse(ReasonTopicRecreated, p.TopicPartition, "task %s: checkpoint %s (%s) stands in topic id %s of %s, the topic now has %s: it was deleted and created again", t.Task, info.Ref.Name, info.Ref.Path, p.TopicID, p.Topic, f.TopicID)
		case f.Partitions != p.PartitionCount && len(c.in.States[t.Task.Source]) > 0 && !c.in.Unbound[p.Topic]:
			return refuse(ReasonPartitionCount, p.TopicPartition, "task %s: checkpoint %s (%s) was taken when topic %s had %d partitions, now it has %d: "+KeysMoved,
				t.Task, info.Ref.Name, info.Ref.Path, p.Topic, p.PartitionCount, f.Partitions)
		}
	}
	return c.in.checkEntry(t, info.Ref, entry)
}

// otherName is a cure that a start from a savepoint does not have.
const otherName = ", or start under another application name"

// ranges finds what may repeat. The group's offset, where there is one, says how far outputs are committed; without one,
// and when it went back, the newer checkpoints say how far they may be.
func (c *recovery) ranges(t *TaskFacts, taken *RootInfo, entry *TaskEntry) []RepeatRange {
	out := make([]RepeatRange, len(entry.Positions))
	for i, p := range entry.Positions {
		r := RepeatRange{From: p, Committed: p.Offset}
		j := slices.IndexFunc(t.Inputs, func(f InputFacts) bool { return f.TopicPartition == p.TopicPartition })
		known := t.Inputs[j].Found && c.refused[t.Task] != ReasonStaleHandle && !c.passedBy(&t.Inputs[j])
		if known {
			r.Committed = max(r.Committed, t.Inputs[j].Offset)
		}
		r.Reached = r.Committed
		for k := range c.infos {
			if info := &c.infos[k]; !known && compareNames(info.Ref.Name, taken.Ref.Name) > 0 {
				r.reach(&c.in, info, t)
			}
		}
		r.Reached = max(r.Reached, r.Committed)
		out[i] = r
	}
	return out
}

// reach counts in a newer checkpoint.
func (r *RepeatRange) reach(in *ResolveInput, info *RootInfo, t *TaskFacts) {
	if info.Root == nil {
		r.Open = true
		return
	}
	if !in.holds(info.Root, t) {
		return
	}
	for _, p := range info.Root.entryOf(t).Positions {
		switch {
		case p.TopicPartition != r.From.TopicPartition:
		case info.Committed:
			r.Committed = max(r.Committed, p.Offset)
		default:
			r.Reached = max(r.Reached, p.Offset)
		}
	}
}

// finish fills in what concerns all tasks.
func (c *recovery) finish() {
	slices.SortFunc(c.rec.Tasks, func(a, b RecoveredTask) int { return a.Task.Compare(b.Task) })
	for _, i := range newestFirst(c.infos) {
		info := &c.infos[i]
		c.rec.LastID = max(c.rec.LastID, info.Ref.Name.ID)
		if c.passed(info) {
			c.rec.Passed = append(c.rec.Passed, *info)
		}
	}
}

// passed reports whether a checkpoint was passed over for a task.
func (c *recovery) passed(info *RootInfo) bool {
	return slices.ContainsFunc(c.rec.Tasks, func(t RecoveredTask) bool {
		if newer := compareNames(info.Ref.Name, t.Root.Name) > 0; !newer || info.Root == nil {
			return newer
		}
		i := slices.IndexFunc(c.in.Tasks, func(f TaskFacts) bool { return f.Task == t.Task })
		entry := info.Root.entryOf(&c.in.Tasks[i])
		return entry != nil && c.in.own(&c.in.Tasks[i], info.Root, entry)
	})
}

// newestFirst orders the roots of all instances; names of one age are ordered by path, so that the order is the same
// each time.
func newestFirst(infos []RootInfo) []int {
	out := make([]int, len(infos))
	for i := range out {
		out[i] = i
	}
	slices.SortFunc(out, func(a, b int) int {
		return cmp.Or(compareNames(infos[b].Ref.Name, infos[a].Ref.Name), strings.Compare(infos[a].Ref.Path, infos[b].Ref.Path))
	})
	return out
}
