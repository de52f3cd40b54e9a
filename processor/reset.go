package processor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
	"github.com/millweir/millweir/txn"
)

// Reset is what a reset of an application deletes: the next start is as the first one. Inputs, outputs and savepoints stay.
type Reset struct {
	Application string `json:"application"`
	// Offsets is the number of partitions with a committed offset in Groups: the application's, and that of the ends of
	// bounded runs.
	Groups  []string `json:"groups"`
	Offsets int      `json:"offsets"`
	// Topics are the internal topics that exist.
	Topics []string `json:"topics"`
	// CheckpointsDir holds Files files of Bytes bytes of the application; Foreign are files there that stay.
	CheckpointsDir string   `json:"checkpoints_dir"`
	Files          int      `json:"checkpoint_files"`
	Bytes          int64    `json:"checkpoint_bytes"`
	Foreign        []string `json:"foreign_files"`
	// Elsewhere: the committed offsets name checkpoints, and CheckpointsDir is not the directory that has them. They stay.
	Elsewhere bool `json:"checkpoints_elsewhere"`
	// Local are the directories with local copies of the state. Those of other machines are not seen; they are not taken for
	// anything once the checkpoints are gone.
	Local []string `json:"local_dirs"`
	// Notes are what stays, or could not be done, in lines: of PlanReset and of Do.
	Notes []string `json:"notes,omitempty"`

	cfg      Config
	holdings snapshot.Holdings
	stores   []string // which have the checkpoints that the committed offsets name
	mark     string   // of what the application's group has committed
	badStore bool     // the identity of the checkpoint directory is damaged
}

// Empty reports that there is nothing to delete.
func (r *Reset) Empty() bool {
	return len(r.Groups)+len(r.Topics)+len(r.Local)+r.Files+len(r.holdings.InTheWay) == 0 && !r.badStore
}

// note keeps what who resets has to know beside what is deleted.
func (r *Reset) note(text string, err error) {
	if err != nil {
		text += ": " + oneLine(err.Error())
	}
	r.Notes = append(r.Notes, text)
	r.cfg.Logger.Warn(text)
}

// PlanReset looks what a reset would delete. It is refused while the group has members, which the error names.
func PlanReset(ctx context.Context, application string, cfg Config) (*Reset, error) {
	cfg = cfg.withDefaults()
	r := &Reset{Application: application, Groups: []string{}, Topics: []string{}, CheckpointsDir: cfg.CheckpointsDir, Foreign: []string{}, Local: []string{}, cfg: cfg}
	cl, err := r.client()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	if err := kafka.Reach(ctx, r.kafkaFor("reset")); err != nil {
		return nil, err
	}
	if err := noMembers(ctx, cl, application); err != nil {
		return nil, err
	}
	if err := r.lookAtKafka(ctx, cl); err != nil {
		return nil, err
	}
	if err := r.lookAtCheckpoints(ctx, cl); err != nil {
		return nil, err
	}
	for _, d := range cfg.LocalDirs {
		dir := filepath.Join(d, application, store.LocalDirName)
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			r.Local = append(r.Local, dir)
		}
	}
	return r, nil
}

func (r *Reset) client() (*kgo.Client, error) { return r.clientFor("reset") }

func (r *Reset) kafkaFor(what string) kafka.Config {
	return kafka.Config{Brokers: r.cfg.Brokers, ClientID: r.Application + "-" + what, Logger: r.cfg.Logger, Extra: r.cfg.ClientOptions}
}

func (r *Reset) clientFor(what string) (*kgo.Client, error) {
	cl, err := kafka.NewClient(r.kafkaFor(what))
	if err != nil {
		return nil, fault.Stopf(fault.BadFile, "kafka.brokers: %w", err)
	}
	return cl, nil
}

// noMembers refuses a group that somebody is in.
func noMembers(ctx context.Context, cl *kgo.Client, application string) error {
	members, _, err := describeMembers(ctx, cl, application)
	if err != nil {
		return err
	}
	if len(members) == 0 {
		return nil
	}
	return fault.Stopf(fault.GroupActive, "nothing is deleted: the group %s has %s: stop them first; one that was stopped and has an instance.id of its own stays a member for its group.session-timeout",
		application, memberNames(members))
}

func (r *Reset) lookAtKafka(ctx context.Context, cl *kgo.Client) error {
	adm := kadm.NewClient(cl)
	for _, g := range []string{r.Application, endsGroup(r.Application)} {
		offsets, err := kafka.GroupOffsets(ctx, cl, g, false)
		if g != r.Application && kafka.IsDenied(err) { // only sources with an end need it
			r.note("the group "+g+" stays, if there is one, since it may not be read: the next run of sources with an end may have the ends of the one before", err)
			continue
		}
		if err != nil {
			return err
		}
		if g == r.Application {
			r.mark = markOf(offsets)
			r.stores = storesOf(offsets)
			if err := refuseEnds(g, offsets); err != nil && allEnds(offsets) { // of a mixture only a reset is the cure
				return err
			}
		} else if !allEnds(offsets) {
			r.note("the group "+g+" stays: it has offsets that are no ends of runs, so it is somebody else's", nil)
			continue
		}
		if n := len(offsets); n > 0 {
			r.Groups, r.Offsets = append(r.Groups, g), r.Offsets+n
		}
	}
	topics, err := adm.ListTopics(ctx, r.Application+"-checkpoints", ControlTopic(r.Application))
	if err != nil {
		return kafka.Classify(err, "read the metadata of the internal topics of %s", r.Application)
	}
	for _, t := range topics.Sorted() {
		if t.Err == nil {
			r.Topics = append(r.Topics, t.Topic)
		} else if !errors.Is(t.Err, kerr.UnknownTopicOrPartition) {
			return kafka.Classify(t.Err, "read the metadata of topic %s", t.Topic)
		}
	}
	return nil
}

// lookAtCheckpoints refuses a directory in which the application has been with another cluster: it may run there at this moment.
func (r *Reset) lookAtCheckpoints(ctx context.Context, cl *kgo.Client) error {
	meta, err := kadm.NewClient(cl).BrokerMetadata(ctx)
	if err != nil {
		return kafka.Classify(err, "read the id of the cluster")
	}
	r.Elsewhere = len(r.stores) > 0
	return r.withStorage(func(st snapshot.Storage) (err error) {
		id, err := snapshot.ReadStoreID(ctx, st)
		switch {
		case err == nil:
			r.Elsewhere = slices.ContainsFunc(r.stores, func(s string) bool { return s != id })
		case !errors.Is(err, fs.ErrNotExist): // it cannot be told, and a reset is a cure for what is damaged
			r.Elsewhere, r.badStore = false, errors.As(err, new(*snapshot.CorruptError))
		}
		if err := snapshot.RefuseOtherClusters(ctx, st, r.Application, meta.Cluster); err != nil {
			return err
		}
		r.holdings, err = snapshot.HoldingsOf(ctx, st, r.Application)
		r.Files, r.Bytes, r.Foreign = r.holdings.Files, r.holdings.Bytes, append(r.Foreign, r.holdings.Foreign...)
		return err
	})
}

// storesOf gives the identities of the checkpoint directories in which the state of the positions is.
func storesOf(committed map[element.TopicPartition]kafka.Committed) (ids []string) {
	for _, tp := range inOrder(committed) {
		h, err := snapshot.ParseHandle(committed[tp].Metadata)
		if err == nil && h.Kind == snapshot.HandleCheckpoint && !slices.Contains(ids, h.StoreID) {
			ids = append(ids, h.StoreID)
		}
	}
	return ids
}

// withStorage opens the checkpoint directory, if there is one. A full one will do: what is done to it makes room.
func (r *Reset) withStorage(f func(snapshot.Storage) error) error {
	if r.cfg.Storage != nil {
		return f(r.cfg.Storage)
	}
	if _, err := os.Stat(r.cfg.CheckpointsDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	st, err := snapshot.OpenLocal(r.cfg.CheckpointsDir)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		st, err = snapshot.OpenLocalReadOnly(r.cfg.CheckpointsDir)
	}
	if err != nil {
		return err
	}
	return errors.Join(f(st), st.Close())
}

// Do deletes. Before, what the application's instances have left open is ended: nothing names them afterwards, and readers would
// wait for the timeout of their transactions. The offsets go first, and the broker itself refuses that when somebody is in the
// group; who has worked and ended since the plan shows in what is committed. When it is interrupted, another reset does the
// rest; a start in between is refused, since the offsets do not match the checkpoints.
//
// No fence is around all that: a group with a member cannot be deleted. Who starts, works and ends between the last look at the
// offsets and their deletion loses them, and the next start is refused for its checkpoints, which are not in the plan. Who
// starts behind the deletion begins anew, and its files are not in the plan either.
func (r *Reset) Do(ctx context.Context) error {
	if _, err := os.Stat(r.cfg.DataDir); err == nil {
		dir, err := openDataDir(r.cfg.DataDir)
		if err != nil {
			return err
		}
		defer dir.close()
	}
	cl, err := r.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	if err := r.endLeft(ctx, cl); err != nil {
		return err
	}
	if err := r.keepLife(ctx, cl); err != nil {
		return err
	}
	if err := r.deleteGroups(ctx, cl, adm); err != nil {
		return err
	}
	if err := r.withStorage(func(st snapshot.Storage) error { return r.holdings.Remove(ctx, st) }); err != nil {
		return err
	}
	for _, dir := range r.Local {
		if err := os.RemoveAll(dir); err != nil {
			return fault.Stopf(fault.CheckpointDir, "local state: %w", err)
		}
		_ = os.Remove(filepath.Dir(dir)) // unless something of somebody else's is in it
	}
	if len(r.Topics) == 0 {
		return r.left(ctx)
	}
	deleted, err := adm.DeleteTopics(ctx, r.Topics...)
	if err != nil {
		return kafka.Classify(err, "delete topics %v", r.Topics)
	}
	for _, t := range deleted.Sorted() {
		if t.Err != nil && !errors.Is(t.Err, kerr.UnknownTopicOrPartition) {
			return kafka.Classify(t.Err, "delete topic %s", t.Topic)
		}
	}
	return r.left(ctx)
}

// left is an error where something stays for which the next start is refused.
func (r *Reset) left(ctx context.Context) error {
	if err := r.withStorage(func(st snapshot.Storage) error { return snapshot.RemoveDamagedStoreID(ctx, st) }); err != nil {
		return fmt.Errorf("all else is deleted, and the next start is refused: %w; put the file back from a backup, or, where no other application needs its checkpoints in %s, empty the directory", err, r.CheckpointsDir)
	}
	if odd := r.holdings.InTheWay; len(odd) > 0 {
		return fault.Stopf(fault.Corrupt, "all else is deleted, and the next start is refused for what has the name of a checkpoint's file in %s and is no file: look what it is, and remove it: %s", r.CheckpointsDir, strings.Join(odd, ", "))
	}
	return nil
}

// endLeft ends what instances that are gone have left open. Who may not do that leaves it to the timeout.
func (r *Reset) endLeft(ctx context.Context, cl *kgo.Client) error {
	bounded, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	err := r.endOpen(bounded, r.holdings.Instances, func(ctx context.Context) error { return noMembers(ctx, cl, r.Application) })
	switch {
	case kafka.IsDenied(err):
		r.note("could not end the transactions of instances that are gone, readers may wait for their timeout", err)
		return nil
	case err != nil && fault.CodeOf(err) != fault.GroupActive:
		return fmt.Errorf("nothing is deleted: %w", err)
	}
	return err
}

// endOpen ends the transactions of the instances. alone is an error when somebody is in the group.
func (r *Reset) endOpen(ctx context.Context, instances []string, alone func(context.Context) error) error {
	ids := txn.Config{Kafka: kafka.Config{Brokers: r.cfg.Brokers, ClientID: r.Application, Logger: r.cfg.Logger, Extra: r.cfg.ClientOptions}, Application: r.Application, Timeout: r.cfg.TransactionTimeout}
	for {
		_, err := ids.FenceGone(ctx, instances, func(ctx context.Context) ([]string, error) { return nil, alone(ctx) })
		if !kafka.IsRetriable(err) || sleep(ctx, goneRetry) != nil {
			return err
		}
	}
}

func (r *Reset) deleteGroups(ctx context.Context, cl *kgo.Client, adm *kadm.Client) error {
	// That of the application is deleted also when it has no offsets: that is the broker's word that nobody is in it.
	groups := r.Groups
	if !slices.Contains(groups, r.Application) {
		groups = append([]string{r.Application}, groups...)
	}
	for _, g := range groups {
		err := kafka.Again(ctx, cl, func(ctx context.Context) error {
			deleted, err := adm.DeleteGroups(ctx, g)
			if err == nil {
				err = deleted[g].Err
			}
			return err
		})
		switch {
		case err == nil, errors.Is(err, kerr.GroupIDNotFound):
		case errors.Is(err, kerr.NonEmptyGroup):
			if merr := noMembers(ctx, cl, g); merr != nil {
				return merr
			}
			return fault.Stopf(fault.GroupActive, "nothing is deleted: somebody has just joined or left the group %s: try again", g)
		default:
			return kafka.Classify(err, "delete group %s", g)
		}
	}
	return nil
}
