package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/topology"
)

// runStable bounds the wait, at the start of a process, for commits that are open: with one open, the last run is not over.
// A read that fails otherwise is tried again.
const (
	runStable = 2 * time.Second
	runTries  = 15
)

// Ends gives the offsets before which partitions end; the map is empty for a source without an end.
//
// An end is resolved once for a run, when the group has no offset of the partition, so before checkpoint 0 of it is
// committed, or none is kept of this run, and kept. From then on what is kept counts, unless it is of another topic of that
// name or the source says another end now. The broker forgets what is kept when nobody runs for as long as it
// keeps offsets (offsets.retention.minutes, seven days; see endskept.go); a run that is left alone for so long is a new one.
//
// Nobody is a member of the group of the ends, so a process that was stopped between its reads and its commit, and has lost its
// partitions meanwhile, can set an end that somebody else has kept since. It never costs a record or counts one twice: positions
// are the application's group's, where such a process can commit nothing, and who has taken an end keeps to it to its end.
// Who reads what it has set finds
//
//	an end of the same run, resolved earlier     the run ends there, or where it is if that is behind: one of two moments at which
//	                                             it was begun
//	one of an earlier run, or none of this topic a new end is resolved, later than the first: the run goes on to there. A start
//	                                             after it takes part in the same run, and begins the next one only when that is
//	                                             reached, too
//
// What is kept decides about nothing else but what Listener.Finished says, and whether an instance whose inputs have ended waits for partitions
// that nobody has.
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
	if err := r.ownsEnds(ctx); err != nil {
		return nil, err
	}
	adm := kadm.NewClient(r.cl)
	// All of them, so that the broker keeps them for as long again. Each is right by itself, so several requests may do it.
	for some := range slices.Chunk(tps, endsAtOnce) {
		keep := kadm.Offsets{}
		for _, tp := range some {
			f := endFacts{committed: committed[tp], kept: kept[tp], what: endOf(end, now[tp].TopicID)}
			k := f.end(r.run, now[tp].Offset)
			out[tp] = k.offset
			keep.Add(kadm.Offset{Topic: tp.Topic, Partition: tp.Partition, At: k.offset, LeaderEpoch: -1, Metadata: k.note()})
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

const endNote = "end of topic id "

// endOf says what an end that is kept is the end of.
func endOf(end topology.End, topic element.TopicID) string {
	return fmt.Sprintf("%s%s by %s", endNote, topic, end)
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

// RunOver says whether the run that this process takes part in, or a later one, is over: every partition of the bounded
// sources is committed up to its end. What is kept stays: an instance that stands by since before the end, and is given the
// partitions now, finds the same ends and has nothing to do.
func (r reads) RunOver(ctx context.Context, sources []topology.SourcePlan) (over bool, err error) {
	facts, err := r.endFacts(ctx, sources, true)
	return err == nil && facts.over(r.run), err
}

// beginRun gives the run that a process takes part in that starts now.
func (r reads) beginRun(ctx context.Context, sources []topology.SourcePlan) (int64, error) {
	if err := r.checkEndOffsets(ctx, sources); err != nil {
		return 0, err
	}
	for try := 1; ; try++ {
		bounded, cancel := context.WithTimeout(ctx, runStable)
		facts, err := r.endFacts(bounded, sources, true)
		late := bounded.Err() != nil && ctx.Err() == nil
		cancel()
		if errors.Is(err, kafka.ErrUnstable) && late { // what is kept is never open
			facts, err = r.endFacts(ctx, sources, false)
			return facts.run(), err
		}
		if err == nil || !late || try == runTries {
			return facts.run(), kafka.Classify(err, "see which run this is")
		}
	}
}

// endFacts reads what is known of all partitions of the bounded sources.
func (r reads) endFacts(ctx context.Context, sources []topology.SourcePlan, committed bool) (runFacts, error) {
	var out runFacts
	for _, src := range sources {
		facts, err := r.endFactsOf(ctx, src, committed)
		if err != nil {
			return nil, err
		}
		out = append(out, facts...)
	}
	return out, nil
}

// endFactsOf reads what is known of a source's partitions. What is committed is read before what is kept, so that an end
// which is seen was not reached earlier.
func (r reads) endFactsOf(ctx context.Context, src topology.SourcePlan, committed bool) (out runFacts, err error) {
	if !src.End.Bounded() {
		return nil, nil
	}
	tps, topicID, err := r.partitionsOf(ctx, src.Topic)
	if err != nil {
		return nil, err
	}
	var done, kept map[element.TopicPartition]kafka.Committed
	if committed {
		if done, err = kafka.StableOffsets(ctx, r.cl, r.group, tps); err != nil {
			return nil, err
		}
	}
	ends := map[element.TopicPartition]int64{}
	named := src.End.Kind == topology.EndByOffset
	if named {
		err = namedEnds(src.End, tps, ends)
	} else {
		kept, err = kafka.StableOffsets(ctx, r.cl, endsGroup(r.group), tps)
	}
	for _, tp := range tps {
		out = append(out, endFacts{committed: done[tp], kept: kept[tp], what: endOf(src.End, topicID), named: named, at: ends[tp]})
	}
	return out, err
}
