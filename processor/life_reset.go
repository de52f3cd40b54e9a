package processor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

// lifeGroup is the group that keeps, over a reset, which life the application begins with next, as the metadata of an offset.
// Whoever sleeps through the reset finds its own life over. Nobody joins it, and the broker forgets it some day
// (offsets.retention.minutes).
//
// No application has a name with a colon, so the group is not another one's.
func lifeGroup(application string) string { return application + ":life" }

const lifeNote = "life "

// readAfterReset gives the life that begins after the last reset, 0 without one. Where the group may not be read there is
// none either: what is committed tells then, as soon as anything is.
func readAfterReset(ctx context.Context, cl *kgo.Client, application string) (uint64, error) {
	life, _, err := keptLife(ctx, cl, application)
	return life, err
}

// keptLife also says whether the group has offsets that no reset has left, so that it is another program's.
func keptLife(ctx context.Context, cl *kgo.Client, application string) (life uint64, foreign bool, err error) {
	kept, err := kafka.GroupOffsets(ctx, cl, lifeGroup(application), false)
	if err != nil && !kafka.IsDenied(err) {
		return 0, false, err
	}
	for _, c := range kept {
		text, ok := strings.CutPrefix(c.Metadata, lifeNote)
		foreign = foreign || !ok && c.Found
		if n, err := strconv.ParseUint(text, 10, 63); ok && c.Found && err == nil {
			life = max(life, n)
		}
	}
	return life, foreign, nil
}

// lifeAfter is later than any life of before, also where what was kept of them is gone.
func lifeAfter(committed, kept uint64, now time.Time) uint64 {
	return max(committed+1, kept+1, uint64(max(now.UnixMilli(), 0)))
}

// keepLife says, before a reset deletes what is committed, which life comes after it. As long as anything is committed that
// counts, so an interrupted reset has changed nothing by it. An application that has committed nothing has no life to end.
// It is the last look at what is deleted, which has to be as planned.
func (r *Reset) keepLife(ctx context.Context, cl *kgo.Client) error {
	committed, err := kafka.GroupOffsets(ctx, cl, r.Application, false)
	if err == nil && markOf(committed) != r.mark {
		err = fault.Stopf(fault.GroupActive, "nothing is deleted: since it was looked what there is somebody has worked in the group %s, and has ended: reset again", r.Application)
	}
	if err != nil || len(committed) == 0 {
		return err
	}
	kept, foreign, err := keptLife(ctx, cl, r.Application)
	if err != nil {
		return err
	}
	if foreign {
		r.note(fmt.Sprintf("the life of the application is not kept, since the group %s is somebody else's: an instance that sleeps since before the reset may go on when it wakes up", lifeGroup(r.Application)), nil)
		return nil
	}
	note := lifeNote + strconv.FormatUint(lifeAfter(LifeOf(committed), kept, time.Now()), 10)
	for _, tp := range inOrder(committed) { // of one whose topic is there
		offsets := kadm.Offsets{}
		offsets.Add(kadm.Offset{Topic: tp.Topic, Partition: tp.Partition, LeaderEpoch: -1, Metadata: note})
		if err = kadm.NewClient(cl).CommitAllOffsets(ctx, lifeGroup(r.Application), offsets); err == nil {
			return nil
		}
		if kafka.IsDenied(err) {
			r.note(fmt.Sprintf("the life of the application cannot be kept in group %s, an instance that sleeps since before the reset may go on when it wakes up", lifeGroup(r.Application)), err)
			return nil
		}
		if !errors.Is(err, kerr.UnknownTopicOrPartition) {
			break
		}
	}
	if errors.Is(err, kerr.UnknownTopicOrPartition) { // nobody can go on with it
		return nil
	}
	return kafka.Classify(err, "keep the life of the application in group %s", lifeGroup(r.Application))
}
