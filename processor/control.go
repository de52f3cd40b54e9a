package processor

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

// A command to all instances is a record of the control topic, <application>-control. Every instance reads it from the end
// that it had when the instance started, does what it says, and writes its reply there. Who commanded waits for the replies
// of all members of the group.
const (
	controlSuffix = "-control"
	// controlVersion is that of the records; others are passed over.
	controlVersion = 1
	// maxControlRecord bounds a record, maxControlText the partitions in it, about, and the text of an error; maxControlRuns the
	// commands that an instance serves at once.
	maxControlRecord = 256 << 10
	maxControlText   = 32 << 10
	maxControlRuns   = 8
	// maxControlKnown bounds the commands that an instance remembers, so as to obey none twice.
	maxControlKnown = 256
	// controlLate is how much older than its own patience a command may be when it is read. Who asked has given up then.
	// The age is that of fetchTimes, no clock of another machine is asked.
	controlLate = time.Minute
	// controlOpen bounds the wait for the topic at the start; the rest happens beside the work.
	controlOpen = 5 * time.Second
	// controlRetry is the pause after an error, controlReply bounds the writing of a reply.
	controlRetry = 2 * time.Second
	controlReply = 5 * time.Second
	// mostPassed bounds how many records that are passed over are told of within passedPause.
	mostPassed  = 10
	passedPause = 10 * time.Minute
)

// controlRetention is how long commands and replies are kept.
var controlRetention = "86400000"

// Command is what instances can be told to do.
type Command string

// The commands.
const (
	CheckpointCommand Command = "checkpoint"
	SavepointCommand  Command = "savepoint"
	CancelCommand     Command = "cancel"
)

// controlRecord is a record of the control topic: a command, or the reply of one instance.
type controlRecord struct {
	Version int    `json:"version"`
	Request string `json:"request"` // id that replies repeat

	Command   Command `json:"command,omitempty"`
	Savepoint bool    `json:"savepoint,omitempty"` // of cancel
	Dir       string  `json:"dir,omitempty"`
	// Patience is how long who commands waits, in milliseconds.
	Patience int64 `json:"patience_ms,omitempty"`

	Reply *Reply `json:"reply,omitempty"`
	// More: other partitions of the reply follow in another record, and the rest of it again.
	More bool `json:"more,omitempty"`
}

// Reply is what one instance says to a command.
type Reply struct {
	admin.Part
	// Skipped: a checkpoint was asked for, and nothing had changed since the last one.
	Skipped bool `json:"skipped,omitempty"`
	// Error is what went wrong, in one line; Code is its exit code.
	Error string     `json:"error,omitempty"`
	Code  fault.Code `json:"code,omitempty"`
	// Stopping: it was told to end and has not yet when the time to reply was over.
	Stopping bool `json:"stopping,omitempty"`
	// Mark is for who deletes the state after a cancel: that of what was committed behind the last checkpoint.
	Mark string `json:"mark,omitempty"`
}

// controlPartition has commands and replies go where they are read: to the first partition, however many the topic was given.
var controlPartition = kgo.RecordPartitioner(kgo.ManualPartitioner())

// ControlTopic is the topic that carries commands to all instances of an application.
func ControlTopic(application string) string { return application + controlSuffix }

func ensureControlTopic(ctx context.Context, cl *kgo.Client, application string) error {
	// The brokers' time: a sender with a clock of its own is neither refused, nor are its commands deleted too early.
	policy, clock := "delete", "LogAppendTime"
	_, err := kafka.EnsureTopic(ctx, cl, ControlTopic(application), 1, map[string]*string{"cleanup.policy": &policy, "retention.ms": &controlRetention, "message.timestamp.type": &clock})
	return err
}

// control reads the commands to all instances. Its goroutine is started by openControl and ended by close, as are those of
// the commands.
type control struct {
	s     *service
	cl    *kgo.Client
	ctx   context.Context // of the reading
	stop  context.CancelFunc
	tried chan struct{}   // closed when the end of the topic was looked for once
	done  chan struct{}   // closed when the reading has ended
	work  context.Context // of the commands
	kill  context.CancelFunc
	runs  sync.WaitGroup
	fresh freshness // of the reading
	slot  chan struct{}
	taken requests // of the reading

	passed   int       // of the reading: records that were passed over since passedAt, see passOver
	passedAt time.Time // of the reading
	deniedAt time.Time // of the reading: when it was last told that the topic may not be read
}

// requests are the newest commands that were begun, by the hash of their ids.
type requests struct {
	ids  [maxControlKnown][sha256.Size]byte
	n    int // how many of them are set
	next int // the oldest one, when all are
}

// add is false when the command is known.
func (r *requests) add(request string) bool {
	id := sha256.Sum256([]byte(request))
	if slices.Contains(r.ids[:r.n], id) {
		return false
	}
	r.ids[r.next] = id
	r.next = (r.next + 1) % len(r.ids)
	r.n = min(r.n+1, len(r.ids))
	return true
}

// openControl begins to look for the end of the control topic.
func (s *service) openControl(context.Context) error {
	fetches := &fetchTimes{}
	cl, err := kafka.NewClient(s.kafka(), kgo.WithHooks(fetches), kgo.FetchMaxWait(500*time.Millisecond), kgo.FetchMaxBytes(1<<20), kgo.FetchMaxPartitionBytes(1<<20),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), kgo.ProducerBatchMaxBytes(maxControlRecord+1024), kgo.DisableIdempotentWrite(), controlPartition)
	if err != nil {
		return fmt.Errorf("client of the control topic: %w", err)
	}
	c := &control{s: s, cl: cl, fresh: freshness{fetches: fetches}, tried: make(chan struct{}), done: make(chan struct{}), slot: make(chan struct{}, maxControlRuns)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.work, c.kill = context.WithCancel(context.Background())
	s.ops.control = c
	go c.run()
	s.onClose(func() error { c.close(); return nil })
	return nil
}

// awaitControl waits until the end of the control topic is known, so that no command is missed which comes after the instance
// has become a member of the group. Where that does not go, the service does without until it does.
func (s *service) awaitControl(ctx context.Context) error {
	select {
	case <-s.ops.control.tried:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// close lets the commands that are being served write their replies: the engine has ended, so none has to wait any more.
func (c *control) close() {
	c.stop()
	<-c.done
	late := time.AfterFunc(max(0, c.s.closeBudget(controlReply)), c.kill)
	c.runs.Wait()
	late.Stop()
	c.kill()
	c.cl.Close()
}

// end creates the topic unless it is there, and gives its end, from which it is read.
func (c *control) end(ctx context.Context) (int64, error) {
	c.fresh = freshness{fetches: c.fresh.fetches}
	c.fresh.fetches.begin(time.Now())
	topic := ControlTopic(c.s.plan.Application)
	if err := ensureControlTopic(ctx, c.cl, c.s.plan.Application); err != nil {
		return 0, err
	}
	tp := element.TopicPartition{Topic: topic}
	ends, err := kafka.EndOffsets(ctx, c.cl, []element.TopicPartition{tp})
	return ends[tp].Offset, err
}

// run reads until close.
func (c *control) run() {
	defer close(c.done)
	topic := ControlTopic(c.s.plan.Application)
	bounded, cancel := context.WithTimeout(c.ctx, controlOpen)
	at, err := c.end(bounded)
	cancel()
	if err != nil && c.ctx.Err() == nil {
		c.s.log.Warn("commands to all instances do not reach this one: trying on beside the work", "topic", topic, "error", err)
	}
	close(c.tried)
	for err != nil {
		if sleep(c.ctx, controlRetry) != nil {
			return
		}
		at, err = c.end(c.ctx)
	}
	// The offset is that of the end at the start. When it is gone, so are the commands: the next one is at the beginning.
	c.cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(at)}})
	for {
		fetches := c.cl.PollFetches(c.ctx)
		if c.ctx.Err() != nil || fetches.IsClientClosed() {
			return
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			c.fresh.next(p.FetchPartition)
			p.EachRecord(func(r *kgo.Record) { c.take(r, longest(c.fresh.since, time.Now())) })
		})
		failed := false
		fetches.EachError(func(_ string, _ int32, err error) { failed = true; c.failed(topic, err) })
		if failed && sleep(c.ctx, controlRetry) != nil {
			return
		}
	}
}

// failed goes on at the end where the position is gone: the topic was deleted and made again, or trimmed. The client forgets
// the topic first, as it would go on asking for the one that it knows by id, which is gone.
//
// That the topic may not be read is for an administrator, and nothing else shows it: who may write to it learns its end.
func (c *control) failed(topic string, err error) {
	if kafka.IsDenied(err) && time.Since(c.deniedAt) > passedPause {
		c.deniedAt = time.Now()
		c.s.log.Warn("commands to all instances do not reach this one: it may not read the control topic", "topic", topic, "error", err)
	}
	c.s.log.Debug("the control topic cannot be read", "topic", topic, "error", err)
	at, err := c.end(c.ctx)
	if err != nil {
		return
	}
	c.cl.PurgeTopicsFromClient(topic)
	c.cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(at)}})
}

// passOver tells of a record that is passed over: of the first ones in a while each, of the others that there are more. Whoever
// may write to the topic could fill a disk with what is said of it.
func (c *control) passOver(what string, attrs ...any) {
	if time.Since(c.passedAt) > passedPause {
		c.passed, c.passedAt = 0, time.Now()
	}
	switch c.passed++; {
	case c.passed <= mostPassed:
		c.s.log.Warn(what, attrs...)
	case c.passed == mostPassed+1:
		c.s.log.Warn("more records of the control topic are passed over: they are not told of one by one", "for", passedPause)
	}
}

// take begins what a record asks for, that is at most so old.
func (c *control) take(r *kgo.Record, age time.Duration) {
	var rec controlRecord
	if len(r.Value) > maxControlRecord || json.Unmarshal(r.Value, &rec) != nil || rec.Version != controlVersion {
		c.passOver("a record of the control topic is no command of this version, and is passed over", "topic", r.Topic, "offset", r.Offset)
		return
	}
	if rec.Reply != nil {
		return
	}
	patience := time.Duration(rec.Patience) * time.Millisecond
	if age > patience+controlLate {
		c.passOver("a command may be older than who gave it waits, and is passed over: this instance could not read the control topic for a while",
			"command", string(rec.Command), "request", rec.Request, "for", age.Round(time.Second), "patience", patience)
		return
	}
	// A sender's client may write a record twice, and a topic that was made again may be filled with what was in the old one.
	if !c.taken.add(rec.Request) {
		c.passOver("a command is in the control topic again, and is passed over: it was begun already", "command", string(rec.Command), "again", rec.Request)
		return
	}
	c.s.log.Info("command to all instances", "command", string(rec.Command), "request", rec.Request)
	select {
	case c.slot <- struct{}{}:
	default:
		c.reply(rec.Request, Reply{Part: admin.Part{Instance: c.s.instance}, Error: fmt.Sprintf("the instance serves %d commands already", maxControlRuns), Code: fault.NotRunning})
		return
	}
	c.runs.Go(func() {
		defer func() { <-c.slot }()
		ctx, cancel := context.WithTimeout(c.work, max(patience, time.Second))
		defer cancel()
		c.reply(rec.Request, c.execute(ctx, rec))
	})
}

// execute does what a command says.
func (c *control) execute(ctx context.Context, rec controlRecord) Reply {
	var rep Reply
	var err error
	switch rec.Command {
	case CheckpointCommand:
		var t admin.Triggered
		t, err = c.s.ops.TriggerCheckpoint(ctx)
		rep.Part, rep.Skipped = t.Part, !t.Needed
	case SavepointCommand:
		rep.Part, err = c.s.ops.savepoint(ctx, rec.Request, rec.Dir)
	case CancelCommand:
		rep.Part, err = c.s.ops.cancelFor(ctx, rec.Request, admin.Cancel{Savepoint: rec.Savepoint, Dir: rec.Dir})
		rep.Mark = c.s.ops.lastMark()
	default:
		err = fault.Stopf(fault.Usage, "the instance does not know the command %q", rec.Command)
	}
	rep.Instance = c.s.instance
	if err != nil {
		rep.Stopping = errors.Is(err, errStopping)
		rep.Error, rep.Code = oneLine(err.Error()), fault.CodeOf(err)
		if rep.Code == fault.Failed && (fault.RecoveryOf(err) == fault.Rejoin || ctx.Err() != nil) { // nothing has failed
			rep.Code = fault.NotRunning
		}
	}
	return rep
}

// reply writes a reply, in several records when its partitions fill more than one. It is the last thing that an instance does
// which was cancelled.
func (c *control) reply(request string, rep Reply) {
	rep.Error = strings.ToValidUTF8(rep.Error[:min(len(rep.Error), maxControlText)], "")
	for rest := rep.Partitions; ; {
		n, size := 0, 0
		for ; n < len(rest) && size < maxControlText; n++ {
			size += len(rest[n]) + len(`"",`)
		}
		rep.Partitions, rest = rest[:n], rest[n:]
		if err := writeControl(c.work, c.cl, c.s.plan.Application, controlRecord{Request: request, Reply: &rep, More: len(rest) > 0}); err != nil {
			c.s.log.Warn("the reply to a command was not written", "request", request, "error", err)
			return
		}
		if len(rest) == 0 {
			return
		}
	}
}

func writeControl(ctx context.Context, cl *kgo.Client, application string, rec controlRecord) error {
	ctx, cancel := context.WithTimeout(ctx, controlReply)
	defer cancel()
	rec.Version = controlVersion
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if len(b) > maxControlRecord {
		return errors.New("it is too large")
	}
	topic := ControlTopic(application)
	return kafka.Classify(cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Key: []byte(rec.Request), Value: b}).FirstErr(), "write to topic %s", topic)
}

// newRequest draws the id of a command.
func newRequest() (string, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("draw a request id: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}
