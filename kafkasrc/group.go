package kafkasrc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

// Defaults and limits of a Group.
const (
	DefaultSessionTimeout   = 10 * time.Second
	DefaultRebalanceTimeout = 60 * time.Second
	maxHeartbeat            = 3 * time.Second
	closeGrace              = 2 * time.Second // for a join or sync in flight when the Group is closed
)

// GroupConfig says which group to join and as whom.
type GroupConfig struct {
	Kafka kafka.Config
	// Group is the group id, the application's name.
	Group string
	// InstanceID makes the membership static: a process that starts again with it gets its partitions back at once.
	// It must be unique among the running processes of the group.
	InstanceID string
	// SessionTimeout is how long the group waits for a silent member; 0 means 10 s. The broker bounds it by
	// group.min.session.timeout.ms and group.max.session.timeout.ms.
	SessionTimeout time.Duration
	// RebalanceTimeout is how long the group waits for a member to give partitions up; 0 means 60 s.
	RebalanceTimeout time.Duration
	// Topics are the topics to share, at least one.
	Topics []string
	// CoPartitioned are groups of topics of which one member is to have the partitions of the same number. A topic in
	// none of them is shared out by itself; in two it must not be.
	CoPartitioned [][]string
	// Whole gives all partitions of all topics to one member; the others stand by, and one of them takes over when it is
	// gone. All members should say the same. While they differ, as in a rolling change, it is so for all.
	Whole bool
	// BeforeRevoke, when set, is called before partitions are given up in a rebalance, while the epoch still holds
	// and the group waits; ctx ends after RevokeBudget. It may take a last checkpoint: commits count all the time. It is
	// not called when the membership is lost (also when the member has come back under another id, or after a round that went
	// on without it, and learns only then that it lost something), nor by Leave and Close.
	BeforeRevoke func(ctx context.Context, gone []element.TopicPartition)
	// RevokeBudget bounds BeforeRevoke; 0 means half of RebalanceTimeout.
	RevokeBudget time.Duration
	// Logger gets what happens to the membership; nil means slog.Default().
	Logger *slog.Logger
}

// Group is the membership in a consumer group. It shares partitions out and fetches nothing. One per process.
type Group struct {
	cfg GroupConfig
	log *slog.Logger
	cl  *kgo.Client
	led atomic.Pointer[kgo.Client] // cl, for what its goroutines ask from the first moment on
	own *ownership
	bal *copartitioned

	leaving   context.Context // ended first of all by Leave and Close, so that no callback waits for a checkpoint
	leave     context.CancelFunc
	abandon   context.CancelFunc // ends the client's context, and with it a join that waits for other members
	closeOnce sync.Once
	polled    chan struct{} // closed when the poll loop has ended
	changed   chan struct{} // the membership has changed: others may have come
	looked    chan struct{} // closed when nobody looks at the others any more
}

// JoinGroup starts the membership and returns at once; Changes tells when partitions have come. The error is that of
// a wrong configuration. ctx only bounds the call itself.
func JoinGroup(ctx context.Context, cfg GroupConfig) (*Group, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if cfg.Group == "" || cfg.InstanceID == "" || len(cfg.Topics) == 0 {
		return nil, errors.New("a group needs a name, an instance id and at least one topic")
	}
	cfg.SessionTimeout = orDefault(cfg.SessionTimeout, DefaultSessionTimeout)
	cfg.RebalanceTimeout = orDefault(cfg.RebalanceTimeout, DefaultRebalanceTimeout)
	cfg.RevokeBudget = orDefault(cfg.RevokeBudget, cfg.RebalanceTimeout/2)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	bal, err := newCopartitioned(cfg.Topics, cfg.CoPartitioned, cfg.Whole)
	if err != nil {
		return nil, fmt.Errorf("group %s: %w", cfg.Group, err)
	}
	g := &Group{
		cfg: cfg, own: newOwnership(), bal: bal, polled: make(chan struct{}), changed: make(chan struct{}, 1), looked: make(chan struct{}),
		log: cfg.Logger.With("group", cfg.Group, "instance", cfg.InstanceID),
	}
	bal.joins, bal.vanished, bal.refresh = g.round, g.vanished, g.refresh
	g.leaving, g.leave = context.WithCancel(context.Background())
	whole, abandon := context.WithCancel(context.Background())
	g.abandon = abandon
	cl, err := kafka.NewClient(cfg.Kafka,
		kgo.WithContext(whole),
		kgo.ConsumerGroup(cfg.Group),
		kgo.InstanceID(cfg.InstanceID),
		kgo.ConsumeTopics(cfg.Topics...),
		kgo.Balancers(bal),
		kgo.SessionTimeout(cfg.SessionTimeout),
		kgo.HeartbeatInterval(min(cfg.SessionTimeout/4, maxHeartbeat)),
		kgo.RebalanceTimeout(cfg.RebalanceTimeout),
		kgo.DisableAutoCommit(),
		// With no offset to start from kgo assigns no partition to its fetcher, so the client never fetches. Pausing
		// instead would need every topic paused before its first assignment and again after a purge.
		kgo.AdjustFetchOffsetsFn(func(context.Context, map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
			return map[string]map[int32]kgo.Offset{}, nil
		}),
		kgo.OnPartitionsAssigned(g.onAssigned),
		kgo.OnPartitionsRevoked(g.onRevoked),
		kgo.OnPartitionsLost(g.onLost),
	)
	if err != nil {
		g.leave()
		abandon()
		return nil, fmt.Errorf("client of group %s: %w", cfg.Group, err)
	}
	g.cl = cl
	g.led.Store(cl)
	go g.poll()
	go g.lookAtOthers()
	return g, nil
}

// Changes gets a value whenever something changed; several changes may come as one. Read Current and Err then.
func (g *Group) Changes() <-chan struct{} { return g.own.changes }

// Current gives what is owned now.
func (g *Group) Current() Assignment { return g.own.current() }

// Member gives the id of the member that the group has assigned to last, "" while that does not stand.
func (g *Group) Member() string { return g.own.memberID() }

// Err gives the error that ended the membership for good, nil while there is none. Its class is Stop.
func (g *Group) Err() error { return g.own.failure() }

// Fence gives member and generation for a transactional offset commit of what is claimed. They are read under the lock
// that proves every claim to hold; the error is of class Rejoin when one does not, or that of Err.
func (g *Group) Fence(claims []element.Claim) (Fence, error) {
	member, generation, err := g.own.fence(claims, g.cl.GroupMetadata)
	if err != nil {
		return Fence{}, fmt.Errorf("group %s: %w", g.cfg.Group, err)
	}
	return Fence{Group: g.cfg.Group, Member: member, Generation: generation, InstanceID: g.cfg.InstanceID}, nil
}

// Leave closes the Group and gives the static membership up, so that the others get the partitions at once instead of
// after the session timeout. ctx bounds the request to the group; closing takes about 2 s at most.
func (g *Group) Leave(ctx context.Context) error {
	// The client goes first: it would join again when it learns that its member is gone. It cannot do the leaving
	// itself, since kgo keeps static memberships when it closes.
	g.Close()
	cl, err := kafka.NewClient(g.cfg.Kafka)
	if err != nil {
		return err
	}
	defer cl.Close()
	left, err := kadm.NewClient(cl).LeaveGroup(ctx, kadm.LeaveGroup(g.cfg.Group).InstanceIDs(g.cfg.InstanceID).Reason("instance is shut down"))
	if err == nil {
		err = left.Error()
	}
	if err != nil && !leftAlready(err) {
		return kafka.Classify(err, "leave group %s as instance %s", g.cfg.Group, g.cfg.InstanceID)
	}
	g.log.Info("left the group")
	return nil
}

// leftAlready says that the group does not know the member any more, which is what leaving wants.
func leftAlready(err error) bool {
	return errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.GroupIDNotFound)
}

// Close ends the client and waits for its goroutines, which takes about 2 s at most: the client would wait for a join
// in flight, and a join may wait for the other members as long as RebalanceTimeout, so it is cut off then. The static membership stays until the session times out, so
// that a process that starts again within it gets its partitions back without a rebalance.
func (g *Group) Close() {
	g.closeOnce.Do(func() {
		g.leave()
		cut := time.AfterFunc(closeGrace, g.abandon)
		g.cl.Close()
		cut.Stop()
		g.abandon()
		<-g.polled
		<-g.looked
		g.own.lost()
	})
}

func (g *Group) onAssigned(_ context.Context, cl *kgo.Client, added map[string][]int32) {
	member, generation := cl.GroupMetadata()
	g.round(generation)
	epoch, grew := g.own.assigned(added, member)
	g.tellChange()
	switch {
	case grew && len(added) == 0:
		g.log.Info("joined the group, no partition for this instance yet", "generation", generation)
	case grew:
		g.log.Info("partitions assigned", "added", sortedPartitions(added), "epoch", epoch, "generation", generation)
	}
	if why := g.bal.rejoin(member, func(topic string, partition int32) bool {
		leader, _, _ := cl.PartitionLeader(topic, partition)
		return leader != -1 && !g.vanished(topic, partition) // kgo's word for one that is not in the metadata
	}); why != "" {
		g.log.Info("the group is balanced anew", "why", why)
		cl.ForceRebalance()
	}
}

// vanished says that the client's metadata once had a partition that is not in them any more: the client keeps such a one, with
// an error that is not of a broker's answer.
func (g *Group) vanished(topic string, partition int32) bool {
	cl := g.led.Load()
	if cl == nil {
		return false // it has just been made
	}
	_, _, err := cl.PartitionLeader(topic, partition)
	var answered *kerr.Error
	return err != nil && !errors.As(err, &answered)
}

func (g *Group) refresh() {
	if cl := g.led.Load(); cl != nil {
		cl.ForceMetadataRefresh()
	}
}

// round notes the round that the client took part in last.
func (g *Group) round(generation int32) {
	if g.own.round(generation) {
		g.log.Warn("the group went on without this instance for a while: what it had is lost, also where it gets it back", "generation", generation)
	}
}

func (g *Group) onRevoked(_ context.Context, cl *kgo.Client, gone map[string][]int32) {
	if len(gone) == 0 {
		return
	}
	tps := sortedPartitions(gone)
	member, generation := cl.GroupMetadata()
	g.round(generation)
	if g.cfg.BeforeRevoke != nil && g.leaving.Err() == nil && g.own.isMember(member) {
		ctx, cancel := context.WithTimeout(g.leaving, g.cfg.RevokeBudget)
		g.cfg.BeforeRevoke(ctx, tps)
		cancel()
	}
	epoch := g.own.revoked(gone)
	g.tellChange()
	g.log.Info("partitions revoked", "gone", tps, "epoch", epoch)
}

func (g *Group) onLost(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
	epoch := g.own.lost()
	if len(gone) > 0 {
		g.log.Warn("membership lost, and with it all partitions", "gone", sortedPartitions(gone), "epoch", epoch)
	}
}

func (g *Group) tellChange() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// lookAtOthers ends the membership when somebody has come with whom the group cannot be shared. It ends with Close.
func (g *Group) lookAtOthers() {
	defer close(g.looked)
	for {
		select {
		case <-g.leaving.Done():
			return
		case <-g.changed:
		}
		if err := Foreign(g.leaving, g.cl, g.cfg.Group); fault.CodeOf(err) == fault.BadFile {
			g.own.fail(err)
		} else if err != nil && g.leaving.Err() == nil {
			g.log.Debug("could not look at the other members of the group", "error", err)
		}
	}
}

// poll takes what kgo injects: with nothing to fetch these are only errors. It ends when the client is closed or a
// fatal error came; the client then goes on failing to join until Close, which a fenced member may do without harm.
func (g *Group) poll() {
	defer close(g.polled)
	for {
		fetches := g.cl.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		fetches.EachError(func(topic string, partition int32, err error) {
			if fatal := g.fatal(topic, err); fatal != nil {
				g.own.fail(fatal)
				return
			}
			log := g.log
			if topic != "" {
				log = log.With("topic", topic, "partition", partition)
			}
			log.Warn("group membership disturbed, trying again", "err", err)
		})
	}
}

// fatal classes the errors that no new try of joining can cure; nil for the others.
func (g *Group) fatal(topic string, err error) error {
	switch {
	case kafka.IsInstanceFenced(err):
		return fault.Stopf(fault.Fenced, "group %s: another process uses instance id %q: every instance needs its own (%w)", g.cfg.Group, g.cfg.InstanceID, err)
	case kafka.IsDenied(err):
		if topic != "" {
			return fault.Stopf(fault.Denied, "group %s: access to topic %s is refused: %w", g.cfg.Group, topic, err)
		}
		return fault.Stopf(fault.Denied, "group %s: access is refused: %w", g.cfg.Group, err)
	case errors.Is(err, kerr.InvalidSessionTimeout):
		return fault.Stopf(fault.BadFile, "group %s: session timeout %v is outside the broker's group.min.session.timeout.ms and group.max.session.timeout.ms: %w", g.cfg.Group, g.cfg.SessionTimeout, err)
	case errors.Is(err, kerr.InconsistentGroupProtocol):
		return fault.Stopf(fault.BadFile, "group %s is used by consumers of another kind; choose another application name: %w", g.cfg.Group, err)
	case errors.Is(err, kerr.InvalidGroupID):
		return fault.Stopf(fault.BadFile, "group %s: the brokers do not take the name; choose another application name: %w", g.cfg.Group, err)
	case errors.Is(err, kerr.GroupMaxSizeReached):
		return fault.Stopf(fault.Denied, "group %s has as many members as the brokers' group.max.size allows: %w", g.cfg.Group, err)
	}
	return nil
}

func orDefault(d, def time.Duration) time.Duration {
	if d <= 0 {
		return def
	}
	return d
}
