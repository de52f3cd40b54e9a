package processor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/snapshot"
)

// forgetTimeout bounds the deletion of an application's state after a cancel.
const forgetTimeout = 30 * time.Second

// Forgotten is what a cancel has deleted.
type Forgotten struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// stillMembers says that nothing is deleted, because somebody is in the group.
type stillMembers struct{ names []string }

func (e *stillMembers) Error() string {
	return fmt.Sprintf("nothing is deleted: the group still has %s", strings.Join(e.names, ", "))
}

// forget deletes the state of an application that was cancelled, once nobody is in its group. The order is
//
//	list the files; nobody is in the group; the transactions that are open are ended
//	commit "no state" for all positions      crash before: the application is whole
//	delete the files that were listed        crash before: nobody asks for them, and another cancel deletes them
//
// The broker takes that commit only while the group has no members, all partitions at once. Who was a member, sleeps and
// wakes up later cannot commit any more, and ends when it reads the positions, since they are of another life. Who starts
// later begins in that life, and writes files that are not on the list. of is for planForget.
func forget(ctx context.Context, application string, cfg Config, of uint64) (Forgotten, error) {
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	f := &forgetter{Reset: Reset{Application: application, cfg: cfg}, of: of}
	cl, err := f.client()
	if err != nil {
		return Forgotten{}, err
	}
	defer cl.Close()
	f.cl = cl
	if cfg.Storage == nil {
		if _, err := os.Stat(cfg.CheckpointsDir); errors.Is(err, fs.ErrNotExist) {
			return Forgotten{}, fault.Stopf(fault.CheckpointDir, "nothing is deleted: state.checkpoints.dir %s does not exist here", cfg.CheckpointsDir)
		}
	}
	var out Forgotten
	err = f.withStorage(func(st snapshot.Storage) error {
		var err error
		out, err = f.do(ctx, st)
		return err
	})
	return out, err
}

type forgetter struct {
	Reset
	cl *kgo.Client
	of uint64
}

func (f *forgetter) do(ctx context.Context, st snapshot.Storage) (Forgotten, error) {
	holdings, err := snapshot.HoldingsOf(ctx, st, f.Application)
	if err != nil {
		return Forgotten{}, err
	}
	if err := f.alone(ctx); err != nil {
		return Forgotten{}, err
	}
	if err := f.fence(ctx, holdings.Instances); err != nil {
		return Forgotten{}, fmt.Errorf("nothing is deleted: %w", err)
	}
	committed, err := groupOffsets(ctx, f.cl, f.Application, true)
	if err != nil {
		return Forgotten{}, fmt.Errorf("nothing is deleted: %w", err)
	}
	incarnation, err := newIncarnation()
	if err != nil {
		return Forgotten{}, err
	}
	plan, err := planForget(committed, incarnation, f.of)
	if err == nil {
		err = sameStore(ctx, st, committed)
	}
	if err != nil {
		return Forgotten{}, fmt.Errorf("nothing is deleted: %w", err)
	}
	failpoint.Hit(failpoint.ForgetBefore)
	if err := f.commit(ctx, plan); err != nil {
		return Forgotten{}, err
	}
	failpoint.Hit(failpoint.ForgetAfter)
	// Whoever has come into the group since the list was made has written nothing that is on it, unless nothing had to be
	// committed: then only this look says that nobody has.
	if len(plan.Handles) == 0 {
		if err := f.alone(ctx); err != nil {
			return Forgotten{}, err
		}
	}
	var out Forgotten
	if out.Files, out.Bytes, err = holdings.RemoveCheckpoints(ctx, st); err != nil {
		return out, fmt.Errorf("the next run starts without state, and nothing needs the checkpoints that are left, but: %w", err)
	}
	return out, nil
}

// alone is an error when somebody is in the group.
func (f *forgetter) alone(ctx context.Context) error {
	members, _, err := describeMembers(ctx, f.cl, f.Application)
	if err != nil || len(members) == 0 {
		return err
	}
	still := &stillMembers{}
	for _, m := range members {
		still.names = append(still.names, fmt.Sprintf("%s (%s)", m.instance, m.host))
	}
	return fault.Stopf(fault.NotRunning, "%w", still)
}

// fence ends what is open of the instances, none of which is in the group, so that none of them can commit it later.
func (f *forgetter) fence(ctx context.Context, instances []string) error {
	if f.cfg.loose() {
		return nil
	}
	return f.endOpen(ctx, instances, f.alone)
}

// commit makes the plan true, for all partitions or none.
func (f *forgetter) commit(ctx context.Context, plan forgetting) error {
	if len(plan.Handles) == 0 {
		return nil
	}
	offsets := kadm.Offsets{}
	for tp, h := range plan.Handles {
		text, err := h.Encode()
		if err != nil {
			return fmt.Errorf("nothing is deleted: %s: %w", tp, err)
		}
		offsets.Add(kadm.Offset{Topic: tp.Topic, Partition: tp.Partition, At: h.Offset, LeaderEpoch: h.LeaderEpoch, Metadata: text})
	}
	got, err := kadm.NewClient(f.cl).CommitOffsets(ctx, f.Application, offsets)
	if err == nil {
		err = got.Error()
	}
	switch {
	case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.RebalanceInProgress):
		if aerr := f.alone(ctx); aerr != nil {
			return aerr
		}
		return fault.Stopf(fault.NotRunning, "nothing is deleted: somebody has just joined or left the group %s: cancel again", f.Application)
	case err != nil:
		return kafka.Classify(err, "commit that no state belongs to the offsets of group %s", f.Application)
	}
	return nil
}

// sameStore refuses a directory that is not that of the checkpoints which the group names.
func sameStore(ctx context.Context, st snapshot.Storage, committed map[element.TopicPartition]kafka.Committed) error {
	id, read := "", false
	for tp, c := range committed {
		h, err := snapshot.ParseHandle(c.Metadata)
		if err != nil || h.Kind != snapshot.HandleCheckpoint {
			continue
		}
		if !read { // once, and only where a handle asks for it
			if id, err = snapshot.ReadStoreID(ctx, st); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			read = true
		}
		if id != h.StoreID {
			return fault.Stopf(fault.HandleMismatch, "the committed offset of %s belongs to a checkpoint directory with store id %s, state.checkpoints.dir has %q", tp, h.StoreID, id)
		}
	}
	return nil
}

// groupOffsets gives all that a group has committed. stable waits for open transactions.
func groupOffsets(ctx context.Context, cl *kgo.Client, group string, stable bool) (map[element.TopicPartition]kafka.Committed, error) {
	var all kadm.OffsetResponses
	err := kafka.Again(ctx, cl, func(ctx context.Context) (err error) {
		if all, err = kadm.NewClient(cl).FetchOffsets(ctx, group); err == nil {
			err = all.Error()
		}
		return err
	})
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, kafka.Classify(err, "read the offsets of group %s", group)
	}
	out := map[element.TopicPartition]kafka.Committed{}
	var tps []element.TopicPartition
	all.Each(func(o kadm.OffsetResponse) {
		tp := element.TopicPartition{Topic: o.Topic, Partition: o.Partition}
		tps = append(tps, tp)
		out[tp] = kafka.Committed{Offset: o.At, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata, Found: o.At >= 0}
	})
	if stable && len(tps) > 0 {
		return kafka.StableOffsets(ctx, cl, group, tps)
	}
	return out, nil
}
