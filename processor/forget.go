package processor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/kafkasrc"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/txn"
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

// has reports whether an instance is among them: one that could not leave is until its session is over.
func (e *stillMembers) has(instance string) bool {
	return slices.ContainsFunc(e.names, func(name string) bool { return strings.HasPrefix(name, instance+" (") })
}

// forget deletes the state of an application that was cancelled, once nobody is in its group. The order is
//
//	join the group, as its only member
//	list the files; the transactions that are open are ended; read the positions
//	commit "no state" for all positions      crash before: the application is whole
//	delete the files that were listed        crash before: nobody asks for them, and another cancel deletes them
//
// The broker takes that commit only of a member of the group's generation, so only if nobody else has been a member since it
// joined: then what was listed and read is what there is, however long this has slept. Who was a member before, sleeps and
// wakes up later cannot commit any more, and ends when it reads the positions, since they are of another life. Who starts
// later begins in that life, and writes files that are not on the list. of is for planForget.
//
// That says nothing of the time before it joined, in which others may have come, worked and gone while this slept. So known has
// the marks of what may be deleted: what was committed when the cancel was given, or behind the last checkpoint of an instance
// that was a member until then. State that is none of these is somebody's who was not cancelled.
//
// Very many positions take several requests. The first that is taken ends the life, see planForget; who starts after a crash
// between them has no state, and another cancel does the rest.
func forget(ctx context.Context, application string, cfg Config, of uint64, known []string) (Forgotten, error) {
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	f := &forgetter{Reset: Reset{Application: application, cfg: cfg}, of: of, known: known}
	cl, err := f.clientFor(forgetClient)
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
		for {
			if out, err = f.do(ctx, st); !errors.Is(err, kafkasrc.ErrNotAlone) || sleep(ctx, goneRetry+rand.N(goneRetry)) != nil {
				break
			}
		}
		return err
	})
	return out, f.verdict(ctx, err)
}

// verdict says how an attempt ended that did not succeed. Once the end of the life may have been committed nobody may be told
// that the state is whole.
func (f *forgetter) verdict(ctx context.Context, err error) error {
	var still *stillMembers
	late := errors.Is(ctx.Err(), context.DeadlineExceeded)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &still) && f.ended == 0:
		return err
	case late && (f.removing || f.ended == 0):
		return fault.Stopf(fault.NotRunning, "cancel again: %w", err)
	case f.ended > 0 && (late || errors.As(err, &still) || errors.Is(err, kafkasrc.ErrNotAlone)):
		why := "somebody has come meanwhile"
		if late {
			why = "the time was over"
		}
		return fault.Stopf(fault.NotRunning, "the state is given up, or may be, and no file is deleted, since %s: cancel again: %s", why, err.Error())
	case errors.Is(err, kafkasrc.ErrNotAlone):
		return fault.Stopf(fault.NotRunning, "%w", err)
	}
	return err
}

// errBehind says that state is committed which this cancel does not know of: others have worked since, or were cancelled later.
var errBehind = errors.New("somebody has worked, or may have, since what this cancel knows of")

// errElsewhere says that the state has been given up before, and that this directory is not where its files were.
var errElsewhere = errors.New("the checkpoints are in another directory")

// forgetClient is how one that deletes knows another.
const forgetClient = "cancel"

type forgetter struct {
	Reset
	cl    *kgo.Client
	of    uint64
	known []string // see forget
	// ended is the life whose end may have been committed, and removing says that files may be gone.
	ended    uint64
	removing bool
}

// do tries once. ErrNotAlone says that somebody has come: then all has to be looked at again.
func (f *forgetter) do(ctx context.Context, st snapshot.Storage) (Forgotten, error) {
	failpoint.Hit(failpoint.ForgetJoinBefore)
	if err := f.alone(ctx); err != nil {
		return Forgotten{}, err
	}
	// Joining may take seconds (group.initial.rebalance.delay.ms), so an instance sees before whether another one has done it.
	committed, err := kafka.GroupOffsets(ctx, f.cl, f.Application, false)
	if err != nil {
		return Forgotten{}, fmt.Errorf("nothing is deleted: %w", err)
	}
	if LifeOf(committed) > max(f.of, f.ended) {
		return Forgotten{}, fault.Stopf(fault.OK, "%w", errOtherLife)
	}
	member, err := kafkasrc.JoinAlone(ctx, f.cl, f.Application, f.cfg.SessionTimeout)
	if err != nil {
		return Forgotten{}, fmt.Errorf("nothing is deleted: %w", err)
	}
	defer member.Leave()
	failpoint.Hit(failpoint.ForgetJoinAfter)
	holdings, err := snapshot.HoldingsOf(ctx, st, f.Application) // before the positions are read: see below
	if err != nil {
		return Forgotten{}, fmt.Errorf("nothing is deleted: %w", err)
	}
	plan, err := f.look(ctx, st, member, holdings)
	if errors.Is(err, errElsewhere) {
		return Forgotten{}, member.Prove(ctx)
	}
	if err != nil {
		return Forgotten{}, fmt.Errorf("nothing is deleted: %w", err)
	}
	failpoint.Hit(failpoint.ForgetBefore)
	if err := f.commit(ctx, member, plan); err != nil {
		return Forgotten{}, err
	}
	failpoint.Hit(failpoint.ForgetAfter)
	// Nobody was a member between the list and the reading of the positions. So what is on the list belongs to them, and to
	// them belongs nothing any more.
	f.removing = true
	var out Forgotten
	if out.Files, out.Bytes, err = holdings.RemoveCheckpoints(ctx, st); err != nil {
		return out, fmt.Errorf("the next run starts without state, and nothing needs the checkpoints that are left, but: %w", err)
	}
	return out, nil
}

// look decides what is to be committed.
func (f *forgetter) look(ctx context.Context, st snapshot.Storage, member *kafkasrc.Alone, holdings snapshot.Holdings) (forgetting, error) {
	if err := f.fence(ctx, member, holdings.Instances); err != nil {
		return forgetting{}, err
	}
	committed, err := kafka.GroupOffsets(ctx, f.cl, f.Application, true)
	if err != nil {
		return forgetting{}, err
	}
	of := f.of
	if f.ended > 0 && LifeOf(committed) == f.ended { // a part of the commit was taken: the rest follows
		of = max(of, f.ended)
	}
	incarnation, err := newIncarnation()
	if err != nil {
		return forgetting{}, err
	}
	plan, err := planForget(committed, incarnation, of)
	if err != nil {
		return plan, err
	}
	if hasState(committed) && !slices.Contains(f.known, markOf(committed)) {
		return plan, fault.Stopf(fault.NotRunning, "%w: cancel again", errBehind)
	}
	named, err := sameStore(ctx, st, committed)
	switch {
	case fault.CodeOf(err) == fault.HandleMismatch && len(plan.Handles) == 0:
		return plan, errElsewhere
	case err == nil && !named && holdings.Checkpoints() > 0:
		err = fault.Stopf(fault.HandleMismatch, "the group %s has committed nothing that names a checkpoint directory, and this one has %d files of checkpoints of %s, which may be of another cluster, or those of offsets that have expired: processor reset deletes them",
			f.Application, holdings.Checkpoints(), f.Application)
	}
	return plan, err
}

// alone is an error when somebody is in the group. It waits for others that delete.
func (f *forgetter) alone(ctx context.Context) error {
	for {
		members, _, err := describeMembers(ctx, f.cl, f.Application)
		if err != nil {
			return fmt.Errorf("nothing is deleted: %w", err)
		}
		if len(members) == 0 {
			return nil
		}
		still := &stillMembers{}
		for _, m := range members {
			if !m.deletes(f.Application) {
				still.names = append(still.names, fmt.Sprintf("%s (%s)", m.instance, m.host))
			}
		}
		if len(still.names) > 0 {
			return fault.Stopf(fault.NotRunning, "%w", still)
		}
		if sleep(ctx, goneRetry) != nil {
			return fault.Stopf(fault.NotRunning, "nothing is deleted: another cancel is deleting at %s, or did until a moment ago", members[0].host)
		}
	}
}

// fence ends what is open of the instances, none of which is in the group, so that none of them can commit it later.
func (f *forgetter) fence(ctx context.Context, member *kafkasrc.Alone, instances []string) error {
	if f.cfg.loose() {
		return nil
	}
	return f.endOpen(ctx, instances, member.Prove)
}

func (f *forgetter) kafka() kafka.Config {
	return kafka.Config{Brokers: f.cfg.Brokers, ClientID: f.Application, Logger: f.cfg.Logger, Extra: f.cfg.ClientOptions}
}

// commit makes the plan true. Where nothing has to be committed the group's word is enough that nobody has come.
func (f *forgetter) commit(ctx context.Context, member *kafkasrc.Alone, plan forgetting) error {
	if len(plan.Handles) == 0 {
		return member.Prove(ctx)
	}
	offsets := make([]checkpoint.OffsetCommit, 0, len(plan.Handles))
	for tp, h := range plan.Handles {
		text, err := h.Encode()
		if err != nil {
			return fmt.Errorf("nothing is deleted: %s: %w", tp, err)
		}
		at := element.Position{TopicPartition: tp, TopicID: h.TopicID, PartitionCount: h.PartitionCount, Offset: h.Offset, LeaderEpoch: h.LeaderEpoch}
		offsets = append(offsets, checkpoint.OffsetCommit{Position: at, Metadata: text})
	}
	commits := txn.Config{
		Kafka: f.kafka(), Application: f.Application, Instance: forgetClient, Group: f.Application, Logger: f.cfg.Logger,
		Fence: func([]checkpoint.OffsetCommit) (string, int32, string, error) {
			id, generation, err := member.Fence()
			return id, generation, "", err
		},
	}
	begun, err := commits.CommitOffsets(ctx, f.cl, offsets)
	if begun {
		f.ended = plan.Life
	}
	switch {
	case err == nil:
		return nil
	case kafka.IsOwnershipLost(err):
		return fmt.Errorf("%w: %w", kafkasrc.ErrNotAlone, err)
	case begun:
		return fmt.Errorf("the state is given up, and the next run starts without it, but not all partitions say so and no file is deleted: cancel again: %w", err)
	}
	return fmt.Errorf("nothing is deleted: %w", err)
}

// sameStore refuses a directory that is not that of the checkpoints which the group names. named is false where it names none.
func sameStore(ctx context.Context, st snapshot.Storage, committed map[element.TopicPartition]kafka.Committed) (named bool, err error) {
	id := ""
	for tp, c := range committed {
		h, err := snapshot.ParseHandle(c.Metadata)
		if err != nil || h.StoreID == "" {
			continue
		}
		if !named { // once, and only where a handle asks for it; also one without state says whose files these are
			if id, err = snapshot.ReadStoreID(ctx, st); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return false, err
			}
			named = true
		}
		if id != h.StoreID {
			return true, fault.Stopf(fault.HandleMismatch, "the committed offset of %s belongs to a checkpoint directory with store id %s, state.checkpoints.dir has %q", tp, h.StoreID, id)
		}
	}
	return named, nil
}
