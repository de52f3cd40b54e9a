package engine

import (
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/topology"
)

// startsAsBefore has partitions that still have no committed offset start where this process has found before that they do. With
// at-least-once a commit without an answer may arrive later: it must not differ from the one that the next attempt sends, or the
// next but one might find the older of the two, read from there, and have its start moved forward, past what it has
// put out, by the other. The copies of other processes do not matter: the broker knows neither their member nor
// their generation any more. What the topic has removed since cannot be the start.
func (in *intake) startsAsBefore(tps []element.TopicPartition, offsets map[element.TopicPartition]int64) error {
	r := in.a.r
	if !r.cfg.AtLeastOnce {
		return nil
	}
	var before []element.TopicPartition
	for _, tp := range tps {
		if was, ok := r.began[tp]; ok && was.TopicID == in.topics[tp.Topic].ID && was.Offset < offsets[tp] {
			before = append(before, tp)
		}
	}
	if len(before) > 0 {
		floors, err := r.ports.Offsets.Start(in.ctx, topology.Earliest(), before)
		if err != nil {
			return err
		}
		for _, tp := range before {
			offsets[tp] = max(r.began[tp].Offset, floors[tp])
		}
	}
	if r.began == nil {
		r.began = map[element.TopicPartition]element.Position{}
	}
	for _, tp := range tps {
		r.began[tp] = element.Position{TopicPartition: tp, TopicID: in.topics[tp.Topic].ID, Offset: offsets[tp]}
	}
	return nil
}
