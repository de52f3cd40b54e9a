package snapshot

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
)

// A recovery goes back behind tasks that have come since. A partition that was added to a topic since the checkpoints that are taken
// begins at its beginning, as it did then: nothing of it is in them. What other tasks had, which no usable checkpoint holds, is
// lost; where they begin without it is for a person to say.

// holds reports that a root has what a task reads.
func (in *ResolveInput) holds(r *Root, t *TaskFacts) bool {
	e := r.entryOf(t)
	return e != nil && in.own(t, r, e)
}

// known reports that a usable checkpoint holds the task.
func (c *recovery) known(t *TaskFacts) bool {
	return slices.ContainsFunc(c.infos, func(i RootInfo) bool { return i.usable() && c.in.holds(i.Root, t) })
}

// positions gives those of all source tasks.
func (r *Root) positions() (out []element.Position) {
	for i := range r.Tasks {
		out = append(out, r.Tasks[i].Positions...)
	}
	return out
}

// added reports that a task's partition was added to its topic after the tasks had begun that stand at the positions. State of its
// own source would be bound to the number of partitions.
func (in *ResolveInput) added(t *TaskFacts, at []element.Position) bool {
	return t.addedTo(at) && len(in.States[t.Task.Source]) == 0
}

func (t *TaskFacts) addedTo(at []element.Position) bool {
	f := t.Inputs[0]
	return slices.ContainsFunc(at, func(p element.Position) bool {
		return p.Topic == f.Topic && p.TopicID == f.TopicID && p.PartitionCount <= f.Partition
	})
}

// unknown decides on a task that no usable checkpoint holds, when those that are taken for the others are known.
func (c *recovery) unknown(t *TaskFacts) *Refusal {
	var at []element.Position
	for _, d := range c.out {
		at = append(at, d.Positions...)
	}
	if !c.in.added(t, at) {
		return c.nothing(t)
	}
	c.out[t.Task] = Decision{Kind: Fresh}
	c.rec.Added = append(c.rec.Added, t.Task)
	return nil
}

// nothing refuses a task that no usable checkpoint holds. One of a task of that name in another cluster or of another topic says so.
func (c *recovery) nothing(t *TaskFacts) *Refusal {
	if c.common && c.at < 0 {
		if no := c.apart(t); no != nil {
			return no
		}
	}
	reason, lead := c.rec.Reason, ""
	for _, i := range newestFirst(c.infos) {
		info := &c.infos[i]
		if !info.usable() || info.Root.entryOf(t) == nil || c.in.holds(info.Root, t) {
			continue
		}
		if no := c.fits(t, info, info.Root.entryOf(t)); no != nil {
			if no.Reason == ReasonOtherCluster {
				return no
			}
			reason, lead = no.Reason, no.Message+"; "
			break
		}
	}
	if lead == "" {
		lead = fmt.Sprintf("task %s: ", t.Task)
	}
	anew := ""
	if !slices.ContainsFunc(c.infos, func(i RootInfo) bool { return i.usable() && c.in.holds(i.Root, t) }) {
		anew = fmt.Sprintf(", or, to begin the task where its source starts, delete the group's offsets of this topic (%s)%s", t.Inputs[0].Topic, c.inTheWay(t))
	}
	no := refuse(reason, t.Inputs[0].TopicPartition, "%sthe store has no committed checkpoint of it that is whole (%s); nothing was changed: put the files back from a backup%s, or move the checkpoint directory away and delete the group's offsets to start empty",
		lead, describe(c.infos), anew)
	return no
}

// inTheWay names the checkpoints for which a task would still be refused without its offset.
func (c *recovery) inTheWay(t *TaskFacts) string {
	var paths []string
	for _, i := range newestFirst(c.infos) {
		if info := &c.infos[i]; info.Root == nil || !info.usable() && c.in.holds(info.Root, t) {
			paths = append(paths, info.Ref.Path)
		}
	}
	if len(paths) == 0 {
		return ""
	}
	return " and move these files and their markers away: " + strings.Join(paths, ", ")
}

// passedBy reports that the checkpoint of an input's handle is whole: it was refused for a newer one, and the offset is not the newest.
func (c *recovery) passedBy(f *InputFacts) bool {
	h, err := ParseHandle(f.Metadata)
	loaded := c.in.Roots[h.Root]
	return err == nil && h.Kind == HandleCheckpoint && loaded.Root != nil && loaded.Err == nil
}
