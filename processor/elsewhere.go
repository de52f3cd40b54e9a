package processor

import (
	"context"
	"maps"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/snapshot"
)

// refuseElsewhere refuses a start in another checkpoint directory where nothing that it reads would tell: the group has state
// of other topics only, since the sources have got others meanwhile. Each partition alone looks like one that nobody has read,
// and all would begin without state.
func (s *service) refuseElsewhere(context.Context) error {
	c, committed := s.cfg, s.committed
	s.committed = nil
	if c.AllowDroppedState || c.RecoverFromStore || len(c.From) > 0 || c.DisabledCheckpoints {
		return nil
	}
	var read []string
	for _, src := range s.plan.Sources {
		read = append(read, src.Topic)
	}
	return elsewhere(committed, read, s.cluster.ID, s.repo.StoreID())
}

// elsewhere decides it. Where topics that are read have positions, those say whether the directory is right.
func elsewhere(committed map[element.TopicPartition]kafka.Committed, read []string, cluster, store string) error {
	life := LifeOf(committed)
	lost := map[element.TopicPartition]string{} // the store ids
	for tp, c := range committed {
		if !c.Found {
			continue
		}
		if slices.Contains(read, tp.Topic) {
			return nil
		}
		h, err := snapshot.ParseHandle(c.Metadata)
		if err == nil && h.Kind == snapshot.HandleCheckpoint && h.Life == life && h.ClusterID == cluster && h.StoreID != store {
			lost[tp] = h.StoreID
		}
	}
	if len(lost) == 0 {
		return nil
	}
	first := slices.SortedFunc(maps.Keys(lost), element.TopicPartition.Compare)[0]
	return fault.Stopf(fault.HandleMismatch, "no source reads what the group has checkpoints of, %s say, and those are in a directory with store id %s, the configured one has %s: all would begin without state; "+
		snapshot.OtherStoreCure+"; to begin without that state, add --allow-dropped-state", first, lost[first], store)
}
