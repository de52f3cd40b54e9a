package processor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/snapshot"
)

// leastGrace is how long files of which nothing tells that they are superseded stay at the least after their instance is
// gone: somebody may want to look.
const leastGrace = time.Hour

// cleanGone removes what instances that are gone have left in the checkpoint directory and nothing needs.
func (s *service) cleanGone(ctx context.Context) (snapshot.CleanReport, error) {
	return s.repo.CleanGone(ctx, s.goneInput())
}

// cleanIdle removes what this instance has left there while it commits nothing; busy, it has tasks.
func (s *service) cleanIdle(ctx context.Context, busy bool) (snapshot.CleanReport, error) {
	if s.cfg.DisabledCheckpoints {
		return snapshot.CleanReport{}, nil
	}
	in := s.goneInput()
	in.Busy = busy
	return s.repo.CleanIdle(ctx, in)
}

func (s *service) goneInput() snapshot.GoneInput {
	return snapshot.GoneInput{Live: s.liveInstances, Committed: s.committedRoots, Grace: s.grace(), Now: time.Now()}
}

// grace outlasts every transaction that may still be open, twice, and every session.
func (s *service) grace() time.Duration {
	if s.cfg.goneGrace > 0 {
		return s.cfg.goneGrace
	}
	return max(leastGrace, 2*s.cfg.TransactionTimeout, s.cfg.SessionTimeout)
}

// liveInstances names the instances that are in the group. A member without a name may be any of them: that is an error.
func (s *service) liveInstances(ctx context.Context) ([]string, error) {
	bounded, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	members, err := s.members(bounded)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(members))
	for _, m := range members {
		if m.InstanceID == nil {
			return nil, fmt.Errorf("member %s at %s of group %s has no instance id", m.MemberID, m.ClientHost, s.plan.Application)
		}
		names = append(names, *m.InstanceID)
	}
	return names, nil
}

// committedRoots gives the roots that the committed handles of the whole group name. It waits for open transactions that
// have offsets of the group in them.
func (s *service) committedRoots(ctx context.Context) ([]snapshot.RootRef, error) {
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	all, err := kadm.NewClient(s.reads.cl).FetchOffsets(ctx, s.reads.group)
	if err != nil {
		return nil, fmt.Errorf("list the offsets of group %s: %w", s.reads.group, err)
	}
	var tps []element.TopicPartition
	for topic, partitions := range all {
		for p, o := range partitions {
			if o.Err != nil {
				return nil, fmt.Errorf("list the offsets of group %s: %s/%d: %w", s.reads.group, topic, p, o.Err)
			}
			tps = append(tps, element.TopicPartition{Topic: topic, Partition: p})
		}
	}
	stable, err := kafka.StableOffsets(ctx, s.reads.cl, s.reads.group, tps)
	if err != nil {
		return nil, err
	}
	return s.namedRoots(stable)
}

// namedRoots gives the roots that committed handles name. A handle that cannot be read might name anything: then the error, which
// wraps snapshot.ErrHandlesUnread, says so beside the roots of the others.
// What is no handle names nothing. On a topic of this application it says that somebody has overwritten one; on another one it
// is a consumer's or a tool's, or it was put over the handle of a source that was removed. That one's state is not gone on with
// then, here or in an instance that still has the source: with such an offset no start does (ReasonForeignOffset).
func (s *service) namedRoots(stable map[element.TopicPartition]kafka.Committed) ([]snapshot.RootRef, error) {
	read, seen := map[string]bool{}, map[snapshot.RootRef]bool{}
	for _, src := range s.plan.Sources {
		read[src.Topic] = true
	}
	var roots []snapshot.RootRef
	var unread []error
	for _, tp := range slices.SortedFunc(maps.Keys(stable), element.TopicPartition.Compare) { // the same error each time
		c := stable[tp]
		if !c.Found {
			continue
		}
		h, err := snapshot.ParseHandle(c.Metadata)
		if err == nil && h.Kind == snapshot.HandleCheckpoint && h.StoreID != s.repo.StoreID() { // others lead to no file
			err = fmt.Errorf("it belongs to a checkpoint directory with store id %s, the configured one has %s", h.StoreID, s.repo.StoreID())
		}
		switch {
		case errors.Is(err, snapshot.ErrHandleForeign) && !read[tp.Topic]:
		case err != nil:
			unread = append(unread, fmt.Errorf("committed offset %d of %s in group %s: %w", c.Offset, tp, s.reads.group, err))
		case h.Kind == snapshot.HandleCheckpoint && !seen[h.Root]:
			seen[h.Root] = true
			roots = append(roots, h.Root)
		}
	}
	return roots, unreadHandles(unread)
}

// mostUnread is how many handles that cannot be read an error tells of.
const mostUnread = 3

func unreadHandles(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	err := fmt.Errorf("%w: %w", snapshot.ErrHandlesUnread, errs[0])
	for _, more := range errs[1:min(mostUnread, len(errs))] {
		err = fmt.Errorf("%w; %w", err, more)
	}
	if n := len(errs) - mostUnread; n > 0 {
		err = fmt.Errorf("%w; and %d more", err, n)
	}
	return err
}
