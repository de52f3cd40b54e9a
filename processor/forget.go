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
	return fmt.Sprintf("the group still has %s", strings.Join(e.names, ", "))
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
// was is the life that is to end, anyLife where that is not known.
//
// Very many positions take several requests. The first that is taken ends the life, see planForget; who starts after a crash
// between them has no state, and another cancel does the rest.
func forget(ctx context.Context, application string, cfg Config, of, was uint64, known []string) (Forgotten, error) {
	outer := ctx
	ctx, cancel := context.WithTimeout(outer, forgetWithin(outer))
	defer cancel()
	incarnation, err := newIncarnation()
	if err != nil {
		return Forgotten{}, err
	}
	f := &forgetter{Reset: Reset{Application: application, cfg: cfg}, of: of, was: was, known: known, incarnation: incarnation}
	cl, err := f.clientFor(forgetClient)
	if err != nil {
		return Forgotten{}, err
	}
	defer cl.Close()
	f.cl = cl
	if cfg.Storage == nil {
		if _, err := os.Stat(cfg.CheckpointsDir); errors.Is(err, fs.ErrNotExist) {
			return Forgotten{}, f.verdict(outer, ctx, fault.Stopf(fault.CheckpointDir, "state.checkpoints.dir %s does not exist here", cfg.CheckpointsDir))
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
	return out, f.verdict(outer, ctx, err)
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
	of    uint64   // for planForget
	was   uint64   // see fateNow
	known []string // see forget
	// incarnation marks the handles that this commits, so that it knows them again where the answer was lost.
	incarnation element.Incarnation
	// may says that the state may be given up by what was not answered, or that another one is at it; removing that it is.
	may, removing bool
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
		return Forgotten{}, err
	}
	if LifeOf(committed) > f.of && !f.mine(committed) {
		return Forgotten{}, fault.Stopf(fault.OK, "%w", errOtherLife)
	}
	member, err := kafkasrc.JoinAlone(ctx, f.cl, f.Application, f.cfg.SessionTimeout)
	if err != nil {
		return Forgotten{}, err
	}
	defer member.Leave(ctx)
	failpoint.Hit(failpoint.ForgetJoinAfter)
	holdings, err := snapshot.HoldingsOf(ctx, st, f.Application) // before the positions are read: see below
	if err != nil {
		return Forgotten{}, err
	}
	plan, err := f.look(ctx, st, member, holdings)
	if errors.Is(err, errElsewhere) {
		return Forgotten{}, member.Prove(ctx)
	}
	if err != nil {
		return Forgotten{}, err
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
		return out, err
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
	if f.may = f.mine(committed); f.may { // the commit was taken, or a part of it: then the rest follows
		of = anyLife
	}
	plan, err := planForget(committed, f.incarnation, of)
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
			return err
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
		f.may = true
		if sleep(ctx, goneRetry) != nil {
			return fault.Stopf(fault.NotRunning, "another cancel is deleting at %s, or did until a moment ago", members[0].host)
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
			return fmt.Errorf("%s: %w", tp, err)
		}
		at := element.Position{TopicPartition: tp, TopicID: h.TopicID, PartitionCount: h.PartitionCount, Offset: h.Offset, LeaderEpoch: h.LeaderEpoch}
		offsets = append(offsets, checkpoint.OffsetCommit{Position: at, Metadata: text})
	}
	commits := txn.Config{
		Kafka: f.kafka(), Application: f.Application, Instance: forgetClient, Group: f.Application, Logger: f.cfg.Logger,
		Fence: func([]checkpoint.OffsetCommit) (string, int32, string, error) {
			id, generation, err := member.Fence()
			f.may = f.may || err == nil
			return id, generation, "", err
		},
	}
	err := commits.CommitOffsets(ctx, f.cl, offsets)
	if kafka.IsOwnershipLost(err) {
		return fmt.Errorf("%w: %w", kafkasrc.ErrNotAlone, err)
	}
	return err
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
