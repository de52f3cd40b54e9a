package snapshot

import (
	"slices"

	"github.com/millweir/millweir/element"
)

// LeftIn lists the partitions that savepoints hold and whose topics none of the sources reads: what the group has committed of them
// stays where it is when an application with exchanges goes back to these.
func LeftIn(from []*Savepoint, sources map[string]string) (out []element.TopicPartition) {
	read := map[string]bool{}
	for _, topic := range sources {
		read[topic] = true
	}
	for _, s := range from {
		for i := range s.Root.Tasks {
			for _, p := range s.Root.Tasks[i].Positions {
				if !read[p.Topic] {
					out = append(out, p.TopicPartition)
				}
			}
		}
	}
	slices.SortFunc(out, element.TopicPartition.Compare)
	return slices.Compact(out)
}

// refuseLeft refuses stages from a savepoint that has read more of a topic that nothing reads now than the group has committed: should
// the topic come back, it goes on at its committed offset, and what lies between would be in the stages twice. No checkpoint could say
// that then, since it knows nothing of the topic. Where the offset lies further on, takeBack refuses what is missing.
func (r *starting) refuseLeft() (refused []Refusal) {
	if len(r.out.Origin) == 0 || len(r.in.Stages) == 0 || !slices.ContainsFunc(r.want.From, func(s *Savepoint) bool { return !s.Root.bare() }) {
		return nil
	}
	for i := range r.want.Left {
		f := &r.want.Left[i]
		h, err := ParseHandle(f.Metadata)
		if !f.Found || err != nil { // one that cannot be read is refused when the topic comes back
			continue
		}
		for _, s := range r.want.From {
			e := s.Root.reader(f.TopicPartition)
			if e == nil {
				continue
			}
			p := e.at(f.TopicPartition)
			if p.TopicID != h.TopicID || p.Offset <= f.Offset {
				continue
			}
			no := refuse(ReasonOtherLineage, f.TopicPartition, "savepoint %s (%s) stands at offset %d of %s, which the topology does not read, and group %s at %d: should it come back, what lies between would be in the state twice; "+
				"give the topology its source back for this start, or delete the group's offsets of this topic (%s)", s.Ref.ID, s.Ref.Path, p.Offset, f.TopicPartition, r.in.Application, f.Offset, f.Topic)
			no.Task = e.Task
			refused = append(refused, *no)
		}
	}
	return refused
}
