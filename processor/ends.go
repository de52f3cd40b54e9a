package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/topology"
)

// endsGroup is the consumer group that keeps the ends of a bounded run, as committed offsets: with the application, for all
// its instances, and over restarts. Nobody joins it.
func endsGroup(application string) string { return application + ".ends" }

// Ends gives the offsets before which partitions end; the map is empty for a source without an end.
//
// An end is resolved once for a run, when the group has no offset of the partition, so before checkpoint 0 of it is
// committed, and kept. From then on what is kept counts, unless it is of another topic of that name or the source says
// another end now. Where the group has an offset and no end is kept, a new run begins: that of the last was removed
// (beginRun). The broker forgets what is kept when nobody has asked for it for as long as it keeps offsets
// (offsets.retention.minutes, seven days); a run that is left alone for so long is a new one.
func (r reads) Ends(ctx context.Context, end topology.End, tps []element.TopicPartition) (map[element.TopicPartition]int64, error) {
	out := make(map[element.TopicPartition]int64, len(tps))
	if !end.Bounded() || len(tps) == 0 {
		return out, nil
	}
	if end.Kind == topology.EndByOffset {
		return out, namedEnds(end, tps, out)
	}
	committed, err := kafka.StableOffsets(ctx, r.cl, r.group, tps)
	if err != nil {
		return nil, err
	}
	kept, err := kafka.StableOffsets(ctx, r.cl, endsGroup(r.group), tps)
	if err != nil {
		return nil, err
	}
	now, err := r.resolveEnds(ctx, end, tps)
	if err != nil {
		return nil, err
	}
	adm := kadm.NewClient(r.cl)
	// All of them, so that the broker keeps them for as long again. Each is right by itself, so several requests may do it.
	for some := range slices.Chunk(tps, endsAtOnce) {
		keep := kadm.Offsets{}
		for _, tp := range some {
			note := endNote(end, now[tp].TopicID)
			out[tp] = now[tp].Offset
			if k := kept[tp]; committed[tp].Found && k.Found && k.Metadata == note {
				out[tp] = k.Offset
			}
			keep.Add(kadm.Offset{Topic: tp.Topic, Partition: tp.Partition, At: out[tp], LeaderEpoch: -1, Metadata: note})
		}
		if err := adm.CommitAllOffsets(ctx, endsGroup(r.group), keep); err != nil {
			return nil, kafka.Classify(err, "keep the ends of %d partitions in group %s", len(tps), endsGroup(r.group))
		}
	}
	return out, nil
}

// endsAtOnce is how many ends are kept with one request. A group's coordinator takes no megabyte at once; names of the
// greatest length make 350 KiB of these.
const endsAtOnce = 500

// endNote says what an end that is kept is the end of.
func endNote(end topology.End, topic element.TopicID) string {
	return fmt.Sprintf("end of topic id %s by %s", topic, end)
}

func (r reads) resolveEnds(ctx context.Context, end topology.End, tps []element.TopicPartition) (map[element.TopicPartition]element.Position, error) {
	if end.Kind == topology.EndByTime {
		return kafka.OffsetsForTime(ctx, r.cl, tps, end.Time())
	}
	return kafka.StableEndOffsets(ctx, r.cl, tps)
}

func namedEnds(end topology.End, tps []element.TopicPartition, out map[element.TopicPartition]int64) error {
	named := end.Offsets()
	var missing []int32
	for _, tp := range tps {
		offset, ok := named[tp.Partition]
		if !ok {
			missing = append(missing, tp.Partition)
		}
		out[tp] = offset
	}
	if len(missing) > 0 {
		return fault.Stopf(fault.BadFile, "the end offsets of topic %s do not name %s: a run ends when all partitions have; 0 leaves one out", tps[0].Topic, partitions(missing))
	}
	return nil
}

// partitions names partitions in a message.
func partitions(ps []int32) string {
	slices.Sort(ps)
	var texts []string
	for _, p := range ps {
		texts = append(texts, strconv.Itoa(int(p)))
	}
	word := "partition "
	if len(ps) > 1 {
		word = "partitions "
	}
	return word + strings.Join(texts, ", ")
}

// checkEndOffsets wants end offsets for every partition of their topics, and no others.
func (r reads) checkEndOffsets(ctx context.Context, sources []topology.SourcePlan) error {
	for _, src := range sources {
		if src.End.Kind != topology.EndByOffset {
			continue
		}
		tps, _, err := r.partitionsOf(ctx, src.Topic)
		if err != nil {
			return err
		}
		if err := namedEnds(src.End, tps, map[element.TopicPartition]int64{}); err != nil {
			return err
		}
		var beyond []int32
		for p := range src.End.Offsets() {
			if int(p) >= len(tps) {
				beyond = append(beyond, p)
			}
		}
		if len(beyond) > 0 {
			return fault.Stopf(fault.BadFile, "the end offsets of topic %s name %s, but it has %d partitions", src.Topic, partitions(beyond), len(tps))
		}
	}
	return nil
}

// partitionsOf gives all partitions of a topic, and its id.
func (r reads) partitionsOf(ctx context.Context, topic string) ([]element.TopicPartition, element.TopicID, error) {
	topics, err := kafka.DescribeTopics(ctx, r.cl, []string{topic})
	if err != nil {
		return nil, element.TopicID{}, err
	}
	var tps []element.TopicPartition
	for p := range topics[topic].Partitions {
		tps = append(tps, element.TopicPartition{Topic: topic, Partition: p})
	}
	return tps, topics[topic].ID, nil
}

// RunOver says whether a run is over: every partition of the bounded sources is committed up to its end. What Ends has kept
// stays: an instance that stands by since before the end, and is given the partitions now, finds the same ends and has
// nothing to do.
func (r reads) RunOver(ctx context.Context, sources []topology.SourcePlan) (over bool, err error) {
	for _, src := range sources {
		if !src.End.Bounded() {
			continue
		}
		if reached, err := r.reachedEnds(ctx, src); err != nil || !reached {
			return false, err
		}
	}
	return true, nil
}

// beginRun is called when a process starts, before it joins the group: when the last run is over, this start is that of a new
// one, and what was kept for the last one is removed.
func (r reads) beginRun(ctx context.Context, sources []topology.SourcePlan) error {
	if err := r.checkEndOffsets(ctx, sources); err != nil {
		return err
	}
	over, err := r.RunOver(ctx, sources)
	if err != nil || !over {
		return err
	}
	_, err = kadm.NewClient(r.cl).DeleteGroup(ctx, endsGroup(r.group))
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return kafka.Classify(err, "remove group %s, which keeps the ends of the run that is over", endsGroup(r.group))
	}
	return nil
}

func (r reads) reachedEnds(ctx context.Context, src topology.SourcePlan) (bool, error) {
	tps, topicID, err := r.partitionsOf(ctx, src.Topic)
	if err != nil {
		return false, err
	}
	committed, err := kafka.StableOffsets(ctx, r.cl, r.group, tps)
	if err != nil {
		return false, err
	}
	ends := map[element.TopicPartition]int64{}
	if src.End.Kind == topology.EndByOffset {
		if err := namedEnds(src.End, tps, ends); err != nil {
			return false, err
		}
	} else {
		kept, err := kafka.StableOffsets(ctx, r.cl, endsGroup(r.group), tps)
		if err != nil {
			return false, err
		}
		for tp, k := range kept {
			if k.Found && k.Metadata == endNote(src.End, topicID) {
				ends[tp] = k.Offset
			}
		}
		if len(ends) == 0 { // another instance was the last one
			return true, nil
		}
	}
	for _, tp := range tps {
		if end, ok := ends[tp]; !ok || !committed[tp].Found || committed[tp].Offset < end {
			return false, nil
		}
	}
	return true, nil
}
