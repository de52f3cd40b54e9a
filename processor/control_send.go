package processor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/kafkasrc"
)

const (
	// sendSettle bounds the wait for a group that is being shared out.
	sendSettle = 30 * time.Second
	settlePoll = 100 * time.Millisecond
	// memberPoll is the pause between two looks at who is still in the group, memberGone how long the reply of one that has
	// left is waited for: it may have been written before it left.
	memberPoll = 2 * time.Second
	memberGone = 3 * time.Second
)

// Send is a command to all instances of an application.
type Send struct {
	Command   Command
	Savepoint bool   // of CancelCommand: cut a savepoint at the last checkpoint
	Dir       string // for savepoints; "" = the state.savepoints.dir of each instance
	// Timeout bounds the whole: the search for who is to obey, the wait for replies, and the deletion after a cancel.
	Timeout time.Duration
}

// Outcome is what became of a command.
type Outcome struct {
	// Replies are those that came, sorted by instance.
	Replies []Reply `json:"replies"`
	// Problems are what is wrong with the whole, in lines: instances that did not reply, partitions that no part has.
	Problems []string `json:"problems"`
	// Notes are what is worth knowing and no problem: instances that were ended without a reply.
	Notes []string `json:"notes,omitempty"`
	// Deleted is what a cancel has deleted after the instances had ended; they delete it themselves where they can.
	Deleted *Forgotten `json:"deleted,omitempty"`

	known   []string // see forget
	life    uint64   // that was the one of now when the command was given; anyLife: not known
	pending bool     // somebody who may have got it has not said that it has ended
}

// Err sums an outcome up: nil when all went well. Its code is that of the first instance that failed.
func (o Outcome) Err() error {
	var failed []string
	code := fault.OK
	for _, r := range o.Replies {
		if r.Error != "" {
			failed = append(failed, fmt.Sprintf("%s: %s", r.Instance, r.Error))
			code = cmp.Or(code, r.Code, fault.Failed)
		}
	}
	if len(failed)+len(o.Problems) == 0 {
		return nil
	}
	return fault.Stopf(cmp.Or(code, fault.NotRunning), "%s", strings.Join(append(failed, o.Problems...), "; "))
}

// SendAll sends a command to all instances of the application and waits for their replies. The error is that nothing could
// be sent; what the instances made of it is in the outcome.
func SendAll(ctx context.Context, application string, cfg Config, cmd Send) (Outcome, error) {
	cfg = cfg.withDefaults()
	if cmd.Command == CancelCommand {
		return Cancel(ctx, application, cfg, cmd)
	}
	return sendAll(ctx, application, cfg, cmd)
}

func sendAll(ctx context.Context, application string, cfg Config, cmd Send) (Outcome, error) {
	bounded, cancel := context.WithTimeout(ctx, cmd.Timeout)
	defer cancel()
	out, err := sendBounded(bounded, application, cfg, cmd)
	switch {
	case ctx.Err() != nil:
		return out, ctx.Err()
	case errors.Is(err, errMaybeGiven):
		return out, fault.Stopf(fault.NotRunning, "%w", err)
	case passes(err):
		return out, fault.Stopf(fault.NotRunning, "the command could not be given: try again: %w", err)
	}
	return out, err
}

// errMaybeGiven says that a command was written, and the answer to that is lost.
var errMaybeGiven = errors.New("it is not known whether the command was given: see what the instances do, and try again")

// passes says of what kept a command back that it is over in a while: another broker takes the place of one that has died, or
// the topic, which was deleted or made a moment ago, is there. That no broker answers at all is something else.
func passes(err error) bool {
	switch fault.CodeOf(err) {
	case fault.Failed:
		return errors.Is(err, context.DeadlineExceeded) || kafka.IsRetriable(err)
	case fault.Unreachable:
		return fault.RecoveryOf(err) != fault.Stop && !errors.Is(err, kafka.ErrNoBroker)
	case fault.UnknownTopic:
		return fault.RecoveryOf(err) != fault.Stop
	}
	return false
}

func sendBounded(ctx context.Context, application string, cfg Config, cmd Send) (Outcome, error) {
	conn := kafka.Config{Brokers: cfg.Brokers, ClientID: application + "-command", Logger: cfg.Logger, Extra: cfg.ClientOptions}
	cl, err := kafka.NewClient(conn,
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), kgo.FetchMaxWait(250*time.Millisecond), kgo.DisableIdempotentWrite(), controlPartition)
	if err != nil {
		return Outcome{}, fault.Stopf(fault.BadFile, "kafka.brokers: %w", err)
	}
	defer cl.Close()
	if err := kafka.Reach(ctx, conn); err != nil {
		return Outcome{}, err
	}
	before, err := knownBefore(ctx, cl, application, cfg, cmd)
	if err != nil {
		return Outcome{}, err
	}
	members, err := settledMembers(ctx, cl, application)
	if err != nil {
		return before, err
	}
	s := &sender{application: application, cl: cl, cmd: cmd, members: members, before: before, got: map[string]Reply{}, partitions: map[string][]string{}, gone: map[string]time.Time{}}
	if err := s.send(ctx); err != nil {
		return before, err
	}
	s.collect(ctx)
	return s.outcome(ctx), nil
}

// knownBefore gives what a cancel that deletes finds.
func knownBefore(ctx context.Context, cl *kgo.Client, application string, cfg Config, cmd Send) (Outcome, error) {
	if !cfg.cancelDeletes(cmd) {
		return Outcome{life: anyLife}, nil
	}
	committed, err := kafka.GroupOffsets(ctx, cl, application, false)
	out := Outcome{known: []string{markOf(committed)}, life: anyLife}
	for _, c := range committed {
		if c.Found { // without any a reset may have begun a later one
			out.life = LifeOf(committed)
		}
	}
	return out, err
}

// groupMember is a member of the group and what it has.
type groupMember struct {
	id         string
	instance   string
	host       string
	client     string
	partitions []element.TopicPartition
}

// deletes says that it is in the group to delete the state after a cancel, and is no instance.
func (m groupMember) deletes(application string) bool {
	return m.client == application+"-"+forgetClient
}

// describeMembers gives the members; settled is false while the group is being shared out.
func describeMembers(ctx context.Context, cl *kgo.Client, application string) (members []groupMember, settled bool, err error) {
	var g kadm.DescribedGroup
	err = kafka.Again(ctx, cl, func(ctx context.Context) error {
		groups, err := kadm.NewClient(cl).DescribeGroups(ctx, application)
		if g = groups[application]; err == nil {
			err = g.Err
		}
		return err
	})
	if errors.Is(err, kerr.GroupIDNotFound) || err == nil && g.State == "Dead" { // or it is of another kind
		err = kafkasrc.Foreign(ctx, cl, application)
	}
	if err != nil {
		return nil, false, kafka.Classify(err, "describe group %s", application)
	}
	for _, m := range g.Members {
		gm := groupMember{id: m.MemberID, instance: m.MemberID, host: m.ClientHost, client: m.ClientID}
		if m.InstanceID != nil {
			gm.instance = *m.InstanceID
		}
		if a, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range a.Topics {
				for _, p := range t.Partitions {
					gm.partitions = append(gm.partitions, element.TopicPartition{Topic: t.Topic, Partition: p})
				}
			}
		}
		members = append(members, gm)
	}
	slices.SortFunc(members, func(a, b groupMember) int { return strings.Compare(a.instance, b.instance) })
	return members, g.State == "Stable" || len(members) == 0, nil
}

// settledMembers waits until the group is shared out, so that it is known who is to reply, and with what.
func settledMembers(ctx context.Context, cl *kgo.Client, application string) ([]groupMember, error) {
	bounded, cancel := context.WithTimeout(ctx, sendSettle)
	defer cancel()
	begun := time.Now()
	for {
		members, settled, err := describeMembers(bounded, cl, application)
		members = slices.DeleteFunc(members, func(m groupMember) bool { return m.deletes(application) })
		switch {
		case err != nil:
			return nil, err
		case settled && len(members) == 0:
			return nil, fault.Stopf(fault.NotRunning, "no instance of %s is running: %w", application, errNobody)
		case settled:
			return members, nil
		}
		if sleep(bounded, settlePoll) != nil {
			return nil, fault.Stopf(fault.NotRunning, "the group %s is being shared out for %s: try again", application, time.Since(begun).Round(time.Second))
		}
	}
}

// sender sends one command and gathers the replies.
type sender struct {
	application string
	cl          *kgo.Client
	cmd         Send
	members     []groupMember
	before      Outcome
	request     string
	got         map[string]Reply     // by instance
	partitions  map[string][]string  // of replies, as far as they have come
	gone        map[string]time.Time // members that have left without a reply, and since when
	denied      error                // why the replies cannot be read
}

// send finds the end of the topic, from which replies are read, and writes the command.
func (s *sender) send(ctx context.Context) error {
	if err := ensureControlTopic(ctx, s.cl, s.application); err != nil {
		return err
	}
	tp := element.TopicPartition{Topic: ControlTopic(s.application)}
	ends, err := kafka.EndOffsets(ctx, s.cl, []element.TopicPartition{tp})
	if err != nil {
		return err
	}
	s.cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{tp.Topic: {0: kgo.NewOffset().At(ends[tp].Offset)}})
	if s.request, err = newRequest(); err != nil {
		return err
	}
	err = writeControl(ctx, s.cl, s.application, controlRecord{Request: s.request, Command: s.cmd.Command, Savepoint: s.cmd.Savepoint, Dir: s.cmd.Dir, Patience: patience(ctx, s.cmd.Timeout).Milliseconds()})
	switch refused := errors.As(err, new(*kerr.Error)); {
	case errors.Is(err, kerr.RequestTimedOut), errors.Is(err, kerr.NotEnoughReplicasAfterAppend),
		!refused && (errors.Is(err, context.DeadlineExceeded) || kafka.IsRetriable(err) || kafka.IsUnreachable(err)):
		return fmt.Errorf("%w: %w", errMaybeGiven, err)
	}
	return err
}

// patience is how long the instances may take. They end their work on the command then, and say so: that takes time, too.
func patience(ctx context.Context, timeout time.Duration) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end))
	}
	return max(0, timeout-min(controlReply, timeout/5))
}

// collect reads replies until all members have replied or left, or the time is over.
func (s *sender) collect(ctx context.Context) {
	looked := time.Now()
	for s.waiting() && ctx.Err() == nil {
		poll, done := context.WithTimeout(ctx, memberPoll)
		fetches := s.cl.PollFetches(poll)
		done()
		fetches.EachRecord(func(r *kgo.Record) {
			var rec controlRecord
			if len(r.Value) <= maxControlRecord && json.Unmarshal(r.Value, &rec) == nil && rec.Version == controlVersion && rec.Request == s.request && rec.Reply != nil {
				s.take(*rec.Reply, rec.More)
			}
		})
		fetches.EachError(func(_ string, _ int32, err error) {
			if kafka.IsDenied(err) {
				s.denied = err
			}
		})
		if time.Since(looked) >= memberPoll {
			looked = time.Now()
			s.look(ctx)
		}
	}
}

// take takes a reply, or a part of one. A part may come twice, from a client that tries again.
func (s *sender) take(r Reply, more bool) {
	r.Partitions = append(r.Partitions, s.partitions[r.Instance]...)
	slices.Sort(r.Partitions)
	r.Partitions = slices.Compact(r.Partitions)
	if s.partitions[r.Instance] = r.Partitions; !more {
		s.got[r.Instance] = r
	}
}

// waiting reports that a reply is still to come.
func (s *sender) waiting() bool {
	for _, m := range s.members {
		if _, ok := s.got[m.instance]; ok {
			continue
		}
		if since, left := s.gone[m.instance]; !left || time.Since(since) < memberGone {
			return true
		}
	}
	return false
}

// look notes who has left the group.
func (s *sender) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, memberPoll)
	defer cancel()
	now, _, err := describeMembers(ctx, s.cl, s.application)
	if err != nil {
		return
	}
	// One that deletes replies behind the deletion, and the others behind it when they see that it is done.
	if slices.ContainsFunc(now, func(m groupMember) bool { return m.deletes(s.application) }) {
		clear(s.gone)
		return
	}
	for _, m := range s.members {
		if slices.ContainsFunc(now, func(o groupMember) bool { return o.instance == m.instance }) {
			delete(s.gone, m.instance)
		} else if _, known := s.gone[m.instance]; !known {
			s.gone[m.instance] = time.Now()
		}
	}
}

// outcome judges what came.
func (s *sender) outcome(ctx context.Context) Outcome {
	out := s.before
	out.Replies, out.Problems = []Reply{}, []string{}
	for _, name := range slices.Sorted(maps.Keys(s.got)) {
		r := s.got[name]
		if r.Mark != "" {
			out.known, r.Mark = append(out.known, r.Mark), ""
		}
		out.pending = out.pending || r.Stopping
		out.Replies = append(out.Replies, r)
	}
	for _, m := range s.members {
		if _, ok := s.got[m.instance]; ok {
			continue
		}
		why := fmt.Sprintf("no reply within %s", s.cmd.Timeout)
		if _, left := s.gone[m.instance]; left {
			why = "it has left the group without a reply"
		}
		out.Problems, out.pending = append(out.Problems, fmt.Sprintf("%s (%s): %s", m.instance, m.host, why)), true
	}
	if s.denied != nil && len(out.Problems) > 0 {
		out.Problems = append(out.Problems, fmt.Sprintf("replies cannot be read here, whatever the instances did: topic %s: %v", ControlTopic(s.application), s.denied))
	}
	if s.cmd.Command == SavepointCommand || s.cmd.Savepoint {
		problems, err := s.uncovered(ctx)
		if err != nil {
			problems = []string{fmt.Sprintf("it is not known whether the parts have all partitions: %v", err)}
		}
		out.Problems = append(out.Problems, problems...)
	}
	return out
}

// uncovered finds the partitions that no part of a savepoint has, or two: they were on the way from one instance to another.
// A partition without a committed offset has nothing yet. Those of instances that failed are their problem.
func (s *sender) uncovered(ctx context.Context) ([]string, error) {
	holders := map[string][]string{}
	for name, r := range s.got {
		if r.Path != "" {
			for _, p := range r.Partitions {
				holders[p] = append(holders[p], name)
			}
		}
	}
	committed, err := kafka.GroupOffsets(ctx, s.cl, s.application, false)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range s.members {
		if r, ok := s.got[m.instance]; !ok || r.Error != "" {
			continue
		}
		for _, tp := range m.partitions {
			if committed[tp].Found && len(holders[tp.String()]) == 0 {
				out = append(out, fmt.Sprintf("no part has %s, which was on its way to another instance: take another savepoint", tp))
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(holders)) {
		if h := holders[p]; len(h) > 1 {
			slices.Sort(h)
			out = append(out, fmt.Sprintf("%s is in the parts of %s, since it went from one to the other: take another savepoint", p, strings.Join(h, " and ")))
		}
	}
	return out, nil
}
