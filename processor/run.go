package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/kafkasink"
	"github.com/millweir/millweir/kafkasrc"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
	"github.com/millweir/millweir/topology"
	"github.com/millweir/millweir/txn"
)

const (
	// leaveTimeout bounds the farewell to the group.
	leaveTimeout = 5 * time.Second
	// shortLeave is what a farewell may take where the last checkpoint has used up the shutdown timeout.
	shortLeave = 500 * time.Millisecond
	// settleTimeout bounds all that a cancel which deletes has to do behind the last checkpoint: a last look, the farewell, a
	// look for others, the deletion.
	settleTimeout = 3*leaveTimeout + forgetTimeout + fateTimeout
)

// ExitCode gives the documented exit code of an error of Run, 0 for nil.
func ExitCode(err error) int { return int(fault.CodeOf(err)) }

// runOnce is one try of Run, of which cfg has the defaults. unknown says that the group has never had this instance, and that
// nobody has cancelled it.
func runOnce(ctx context.Context, plan *topology.Plan, cfg Config) (unknown bool, err error) {
	if err := cfg.validate(); err != nil {
		return false, err
	}
	s := &service{plan: plan, application: plan.Application, feedback: plan.HasFeedback(), cfg: cfg, log: cfg.Logger.With("application", plan.Application)}
	if s.outflow, err = newOutflow(cfg, s.log); err != nil {
		return false, err
	}
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	s.ops = newOperations(ctx, s, quit)
	var lose context.CancelFunc
	s.patience, lose = context.WithCancel(context.WithoutCancel(ctx))
	defer lose()
	defer context.AfterFunc(ctx, func() {
		now := time.Now()
		s.stopped.Store(&now)
		time.AfterFunc(cfg.ShutdownTimeout, lose)
	})()
	defer func() {
		s.ops.ended(err)
		err = errors.Join(err, s.close())
		unknown = unknown && ctx.Err() == nil // until here it can be cancelled
	}()
	s.quiet = s.ops.tellWaits()
	defer s.quiet()
	if err := s.open(ctx); err != nil {
		if ctx.Err() != nil {
			return false, nil // told to stop before it had started
		}
		return false, err
	}
	err = s.run(ctx)
	return s.group.Current().Epoch == 0, err
}

// service is what Run has opened so far, and how to close it.
type service struct {
	plan *topology.Plan // openCluster may set another one: until runner is set it is for the start alone
	cfg  Config
	log  *slog.Logger

	application string // of any plan
	feedback    bool   // likewise

	ops         *operations // how it is seen and commanded from outside
	quiet       func()      // ends what tells of long waits
	instance    string
	incarnation element.Incarnation
	cluster     *kafka.Cluster
	repo        *snapshot.Repository
	reads       reads
	committed   map[element.TopicPartition]kafka.Committed // of the group, from openLife to refuseElsewhere
	group       *kafkasrc.Group
	outputs     outputs
	manager     committing
	outflow     *kafkasink.Outflow // set at the start
	later       goneSearch
	hanging     hangingLook
	local       engine.LocalCopy // nil without one
	spill       *store.Spill     // nil: all state is in memory
	runner      atomic.Pointer[engine.Runner]
	stopped     atomic.Pointer[time.Time] // when Run was told to stop
	patience    context.Context           // ends a shutdown timeout later

	closers []func() error
}

func (s *service) onClose(f func() error) { s.closers = append(s.closers, f) }

// close undoes open, last first.
func (s *service) close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	s.closers = nil
	return errors.Join(errs...)
}

func (s *service) kafka() kafka.Config {
	return kafka.Config{Brokers: s.cfg.Brokers, ClientID: s.plan.Application, Logger: s.log, Extra: s.cfg.ClientOptions}
}

// open checks and opens everything, cheapest and most local first.
func (s *service) open(ctx context.Context) error {
	steps := []struct {
		what string // as it is told who asks, "": the step says it itself, or goes on with the one before
		do   func(context.Context) error
	}{
		{"", s.openIdentity}, {"", s.openAdmin}, {"", s.openCluster}, {"", s.openReads},
		{"reading the committed offsets of the group " + s.plan.Application, s.openLife}, {"", s.openControl},
		{"opening the checkpoint directory", s.openCheckpoints}, {"", s.refuseElsewhere}, {"opening the local copy of the state", s.openLocal}, {"", s.openSpill},
		{"reading the control topic", s.awaitControl}, {"joining the group " + s.plan.Application, s.openKafka},
	}
	for _, step := range steps {
		if step.what != "" {
			s.ops.starting(step.what)
		}
		if err := step.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *service) openIdentity(context.Context) error {
	dir, err := openDataDir(s.cfg.DataDir)
	if err != nil {
		return err
	}
	s.onClose(dir.close)
	if s.instance = s.cfg.InstanceID; s.instance == "" {
		if s.instance, err = dir.instanceID(); err != nil {
			return err
		}
	}
	s.incarnation, err = newIncarnation()
	return err
}

func (s *service) openCluster(ctx context.Context) error {
	if err := s.probe(ctx); err != nil {
		return err
	}
	return s.resolvePatterns(ctx)
}

func (s *service) probe(ctx context.Context) (err error) {
	need := kafka.Need{Topics: s.topics(), TransactionTimeout: s.cfg.TransactionTimeout}
	if s.cfg.loose() {
		need.TransactionTimeout = 0
	}
	s.cluster, err = kafka.Probe(ctx, s.kafka(), need)
	return err
}

// topics lists the topics of sources and sinks, those that are known.
func (s *service) topics() []string {
	var names []string
	for _, src := range s.plan.Sources {
		if src.Topic != "" {
			names = append(names, src.Topic)
		}
	}
	for _, out := range s.plan.Sinks {
		names = append(names, out.Topic)
	}
	return names
}

func (s *service) openCheckpoints(ctx context.Context) error {
	var err error
	s.repo, err = snapshot.OpenRepository(ctx, snapshot.Config{
		Dir: s.cfg.CheckpointsDir, Storage: s.cfg.Storage, Application: s.plan.Application, Instance: s.instance, NumRetained: s.cfg.retained(), Repeats: s.cfg.loose(), Logger: s.log,
		MemoryThreshold: int(max(s.cfg.MemoryThreshold, 0)), WriteBufferSize: int(s.cfg.WriteBufferSize),
	})
	if err != nil {
		return err
	}
	s.onClose(s.repo.Close)
	return s.repo.AnnounceFor(ctx, s.cluster.ID)
}

// openReads makes the client that reads positions, and learns at once which run this start belongs to: the less time passes,
// the fewer of the instances that are started together find it over.
func (s *service) openReads(ctx context.Context) error {
	cl, err := kafka.NewClient(s.kafka())
	if err != nil {
		return fmt.Errorf("make a Kafka client: %w", err)
	}
	s.onClose(func() error { cl.Close(); return nil })
	s.reads = reads{cl: cl, group: s.plan.Application}
	if s.plan.Bounded() {
		s.reads.run, err = s.reads.beginRun(ctx, s.plan.Sources)
	}
	return err
}

// openKafka makes the clients that live as long as the service. Joining the group comes last: from then on other
// members wait for this one.
func (s *service) openKafka(ctx context.Context) error {
	err := s.openCommits()
	if err != nil {
		return err
	}
	s.onClose(func() error { s.manager.Close(); return nil })
	s.reads.waiting = func(ctx context.Context) {
		_ = s.fenceGoneAgain(ctx)
		s.tellHanging(ctx)
	}
	s.onClose(func() error { s.later.end(); return nil })

	if err := kafkasrc.Foreign(ctx, s.reads.cl, s.plan.Application); err != nil {
		return err
	}
	var inputs []string
	for _, src := range s.plan.Sources {
		inputs = append(inputs, src.Topic)
	}
	s.group, err = kafkasrc.JoinGroup(ctx, kafkasrc.GroupConfig{
		Kafka: s.kafka(), Group: s.plan.Application, InstanceID: s.instance, SessionTimeout: s.cfg.SessionTimeout, Topics: inputs, Whole: s.plan.HasExchange(), Logger: s.log,
		BeforeRevoke: s.beforeRevoke,
	})
	if err != nil {
		return err
	}
	s.onClose(func() error { s.group.Close(); return nil })
	s.reads.owned = func() []element.TopicPartition { return s.group.Current().Partitions }
	s.reads.learnt, s.reads.fewer = s.group.Know, s.group.KnowFewer
	return nil
}

// openCommits makes the transactions, or what stands in their place when none are wanted.
func (s *service) openCommits() error {
	cfg := txn.Config{
		Kafka: s.kafka(), Application: s.plan.Application, Instance: s.instance, Group: s.plan.Application,
		Incarnation: s.incarnation, Timeout: s.cfg.TransactionTimeout, TopicMaxBytes: s.outputs.maxBytes, RequestMaxBytes: s.outputs.maxRequest, Patience: s.patience, Logger: s.log, Fence: s.fence,
	}
	var err error
	if s.cfg.loose() {
		cfg.Timeout = 0 // that of transactions has no effect, Ignored says
		s.manager, err = txn.NewPlain(cfg)
	} else {
		s.manager, err = txn.NewManager(cfg)
	}
	return err
}

// beforeRevoke lets the tasks of partitions leave that the group gives to another member. The group waits meanwhile.
func (s *service) beforeRevoke(ctx context.Context, gone []element.TopicPartition) {
	if r := s.runner.Load(); r != nil {
		r.Revoke(ctx, gone)
	}
}

func (s *service) fence(offsets []checkpoint.OffsetCommit) (member string, generation int32, instance string, err error) {
	claims := make([]element.Claim, len(offsets))
	for i, o := range offsets {
		claims[i] = element.Claim{TopicPartition: o.Position.TopicPartition, Epoch: o.Epoch}
	}
	f, err := s.group.Fence(claims)
	return f.Member, f.Generation, f.InstanceID, err
}

func (s *service) run(ctx context.Context) error {
	ports := engine.Ports{
		Group: group{s.group}, Offsets: s.reads, Committer: committer{s.manager, s}, Checkpoints: s.repo, Local: s.local, GroupRoots: s.committedRoots,
		WriteSavepoint: s.writeSavepoint, OpenSavepoint: s.openSavepoint,
		OpenFrom: s.openFrom, DisposeSavepoint: snapshot.DisposeSavepoint,
		NewSource: s.newSource, NewSink: s.newSink, CleanGroup: s.cleanGone, CleanIdle: s.cleanIdle, Others: s.others, OthersHave: s.othersHave,
		NewState: func(task element.TaskID) engine.State {
			return state{store.New(store.Config{Spill: s.spill, Task: task})}
		},
	}
	if s.cfg.Decorate != nil {
		s.cfg.Decorate(&ports)
	}
	user := s.ops.listener(s.cfg.Listener)
	lis := logging(s.log, user)
	if s.cfg.DisabledCheckpoints {
		logOffsets(s.log, lis, user)
	}
	r, err := engine.New(s.plan, s.engineConfig(), ports, lis)
	if err != nil {
		return err
	}
	s.sayHow()
	s.runner.Store(r)
	if s.cfg.started != nil {
		s.cfg.started(s)
	}
	enough := s.renewing()
	err = r.Run(ctx)
	enough()
	s.quiet()
	if r.Halted() {
		s.cancel(ctx, false) // also when whoever asked for the savepoint waits no more
	}
	s.runner.Store(nil)
	if err == nil && s.ops.deletes() && s.ops.unfinished() == nil && s.cfg.Settling != nil {
		s.cfg.Settling(settleTimeout)
	}
	known := s.lastLook(ctx, err)
	s.farewell(ctx, err)
	return s.settleCancel(ctx, err, known)
}

// engineConfig gives the engine's part of the settings.
func (s *service) engineConfig() engine.Config {
	c := s.cfg
	e := engine.Config{
		Application: s.plan.Application, Instance: s.instance, ClusterID: s.cluster.ID, Incarnation: s.incarnation, Life: s.reads.life,
		Interval: c.Interval, CheckpointTimeout: c.CheckpointTimeout, MinPause: c.MinPause,
		MaxConcurrent: c.MaxConcurrent, TolerableFailures: max(c.TolerableFailures, checkpoint.Unlimited), TransactionTimeout: c.TransactionTimeout,
		AtLeastOnce: c.loose(), NoSnapshots: c.DisabledCheckpoints,
		Unaligned: c.Unaligned, AlignedTimeout: c.AlignedTimeout, ForceIterations: c.ForceIterations, Restart: c.Restart,
		SyncSnapshots: c.SyncSnapshots, FullSnapshots: c.FullSnapshots, PreferCheckpoint: c.PreferCheckpointForRecovery,
		UncommittedLimit: c.UncommittedLimit, ShutdownTimeout: c.ShutdownTimeout,
		RecoverFromStore: c.RecoverFromStore, OthersLast: c.SessionTimeout + othersLast, From: c.from(), AllowDropped: c.AllowDroppedState,
	}
	if c.loose() {
		e.TransactionTimeout = 0 // there is none that could end
	}
	if c.DisabledCheckpoints {
		e.MaxConcurrent, e.MinPause, e.TolerableFailures, e.Unaligned, e.AlignedTimeout, e.FullSnapshots, e.SyncSnapshots = 1, 0, 0, false, 0, false, false
		e.Interval, e.CheckpointTimeout = offsetsInterval, offsetsTimeout
	}
	return e
}

// Without checkpoints the offsets are committed so often, and a commit may take so long.
const (
	offsetsInterval = time.Second
	offsetsTimeout  = 30 * time.Second
)

// loose says that there are no transactions.
func (c Config) loose() bool { return c.Mode == AtLeastOnce || c.DisabledCheckpoints }

// sayHow logs how the service works, and what of its settings means less than one may think.
func (s *service) sayHow() {
	c := s.cfg
	mode := string(c.Mode)
	if c.DisabledCheckpoints {
		mode = "no checkpoints"
		s.log.Warn("CHECKPOINTS ARE DISABLED (checkpointing.interval: disabled): state is kept in memory only and begins empty with every attempt; offsets are committed as records are processed, output may repeat after a failure",
			"stateful_steps", len(s.plan.States))
	}
	attrs := []any{"instance", s.instance, "cluster", s.cluster.ID, "brokers", c.Brokers, "mode", mode}
	if !c.DisabledCheckpoints {
		attrs = append(attrs, "checkpoints", c.CheckpointsDir, "interval", c.Interval)
	}
	if !c.loose() {
		attrs = append(attrs, "transaction_timeout", c.TransactionTimeout)
	}
	s.log.Info("starting", attrs...)
	for _, line := range append(Ignored(c), ignoredBy(s.plan, c)...) {
		s.log.Warn("a setting has no effect", "setting", line)
	}
	for _, line := range Limited(c) {
		s.log.Warn("a setting has less effect than one may think", "setting", line)
	}
	for _, line := range Idle(c) {
		s.log.Info("a default has no effect", "setting", line)
	}
	if s.plan.HasFeedback() {
		s.log.Warn("records go around within the process (checkpointing.force: true): those on a feedback edge at a checkpoint, and what they would have changed, are lost with a failure; the log and millweir_feedback_records count them")
	}
}

// farewell leaves the group, unless the operator named the instance: then it is expected back under that name, but not after
// a cancel that deletes the state. It leaves
// also when it stops for good, since the repair may need a group without members (offsets are set only then). One that
// was fenced stays silent: the name belongs to another process now.
func (s *service) farewell(ctx context.Context, err error) {
	if fault.CodeOf(err) == fault.Fenced || s.cfg.InstanceID != "" && !s.ops.deletes() && !errors.Is(err, errOtherLife) {
		return
	}
	within := leaveTimeout
	if !s.ops.deletes() || s.ops.unfinished() != nil {
		within = max(s.closeBudget(within), shortLeave)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	if err := s.group.Leave(ctx); err != nil {
		s.log.Warn("could not leave the group: its partitions stay assigned until the session times out", "error", err)
	}
}

func (s *service) newSource(positions []element.Position) (engine.Source, error) {
	f, err := kafkasrc.NewFetcher(kafkasrc.FetcherConfig{Kafka: s.kafka(), Positions: positions, MostPartitions: s.inputPartitions(), OnMissing: s.onMissing(), Logger: s.log})
	if err != nil {
		return nil, err
	}
	return source{f}, nil
}

// inputPartitions is how many partitions the sources have together: one instance may come to own them all.
func (s *service) inputPartitions() int {
	n := 0
	for _, src := range s.plan.Sources {
		n += int(s.cluster.Topics[src.Topic].Partitions)
	}
	return n
}
