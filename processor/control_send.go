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
)

const (
	// sendReach bounds the search for a broker, sendSettle the wait for a group that is being shared out.
	sendReach  = 10 * time.Second
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
	// Timeout bounds the wait for replies.
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
	cl, err := kafka.NewClient(kafka.Config{Brokers: cfg.Brokers, ClientID: application + "-command", Logger: cfg.Logger, Extra: cfg.ClientOptions},
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), kgo.FetchMaxWait(250*time.Millisecond), kgo.DisableIdempotentWrite())
	if err != nil {
		return Outcome{}, fault.Stopf(fault.BadFile, "kafka.brokers: %w", err)
	}
	defer cl.Close()
	if err := reachAny(ctx, cl, cfg.Brokers); err != nil {
		return Outcome{}, err
	}
	members, err := settledMembers(ctx, cl, application)
	if err != nil {
		return Outcome{}, err
	}
	s := &sender{application: application, cl: cl, cmd: cmd, members: members, got: map[string]Reply{}, gone: map[string]time.Time{}}
	if err := s.send(ctx); err != nil {
		return Outcome{}, err
	}
	if err := s.collect(ctx); err != nil {
		return Outcome{}, err
	}
	return s.outcome(ctx)
}

// reachAny waits for a broker.
func reachAny(ctx context.Context, cl *kgo.Client, brokers []string) error {
	bounded, cancel := context.WithTimeout(ctx, sendReach)
	defer cancel()
	if err := cl.Ping(bounded); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fault.Stopf(fault.Unreachable, "kafka.brokers %v: no broker answers: %w", brokers, err)
	}
	return nil
}

// groupMember is a member of the group and what it has.
type groupMember struct {
	id         string
	instance   string
	host       string
	partitions []element.TopicPartition
}

// describeMembers gives the members; settled is false while the group is being shared out.
func describeMembers(ctx context.Context, cl *kgo.Client, application string) (members []groupMember, settled bool, err error) {
	groups, err := kadm.NewClient(cl).DescribeGroups(ctx, application)
	if err != nil {
		return nil, false, kafka.Classify(err, "describe group %s", application)
	}
	g := groups[application]
	if g.Err != nil && !errors.Is(g.Err, kerr.GroupIDNotFound) {
		return nil, false, kafka.Classify(g.Err, "describe group %s", application)
	}
	for _, m := range g.Members {
		gm := groupMember{id: m.MemberID, instance: m.MemberID, host: m.ClientHost}
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
	for {
		members, settled, err := describeMembers(bounded, cl, application)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil && !kafka.IsRetriable(err):
			return nil, err
		case err == nil && settled && len(members) == 0:
			return nil, fault.Stopf(fault.NotRunning, "no instance of %s is running: %w", application, errNobody)
		case err == nil && settled:
			return members, nil
		}
		if sleep(bounded, settlePoll) != nil {
			return nil, fault.Stopf(fault.NotRunning, "the group %s is being shared out since %s: try again", application, sendSettle)
		}
	}
}

// sender sends one command and gathers the replies.
type sender struct {
	application string
	cl          *kgo.Client
	cmd         Send
	members     []groupMember
	request     string
	got         map[string]Reply     // by instance
	gone        map[string]time.Time // members that have left without a reply, and since when
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
	return writeControl(ctx, s.cl, s.application, controlRecord{Request: s.request, Command: s.cmd.Command, Savepoint: s.cmd.Savepoint, Dir: s.cmd.Dir, Patience: s.cmd.Timeout.Milliseconds()})
}

// collect reads replies until all members have replied or left, or the time is over.
func (s *sender) collect(ctx context.Context) error {
	// The instances end their work on the command when the time is over, and say so.
	bounded, cancel := context.WithTimeout(ctx, s.cmd.Timeout+controlReply)
	defer cancel()
	looked := time.Now()
	for s.waiting() && bounded.Err() == nil {
		poll, done := context.WithTimeout(bounded, memberPoll)
		fetches := s.cl.PollFetches(poll)
		done()
		fetches.EachRecord(func(r *kgo.Record) {
			var rec controlRecord
			if len(r.Value) <= maxControlRecord && json.Unmarshal(r.Value, &rec) == nil && rec.Version == controlVersion && rec.Request == s.request && rec.Reply != nil {
				s.got[rec.Reply.Instance] = *rec.Reply
			}
		})
		if time.Since(looked) >= memberPoll {
			looked = time.Now()
			s.look(bounded)
		}
	}
	return ctx.Err()
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
	now, _, err := describeMembers(ctx, s.cl, s.application)
	if err != nil {
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
func (s *sender) outcome(ctx context.Context) (Outcome, error) {
	out := Outcome{Replies: []Reply{}, Problems: []string{}}
	for _, name := range slices.Sorted(maps.Keys(s.got)) {
		out.Replies = append(out.Replies, s.got[name])
	}
	for _, m := range s.members {
		if _, ok := s.got[m.instance]; ok {
			continue
		}
		why := fmt.Sprintf("no reply within %s", s.cmd.Timeout)
		if _, left := s.gone[m.instance]; left {
			why = "it has left the group without a reply"
		}
		out.Problems = append(out.Problems, fmt.Sprintf("%s (%s): %s", m.instance, m.host, why))
	}
	if s.cmd.Command == SavepointCommand || s.cmd.Savepoint {
		problems, err := s.uncovered(ctx)
		if err != nil {
			return out, err
		}
		out.Problems = append(out.Problems, problems...)
	}
	return out, nil
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
	committed, err := kadm.NewClient(s.cl).FetchOffsets(ctx, s.application)
	if err != nil {
		return nil, kafka.Classify(err, "read the offsets of group %s", s.application)
	}
	var out []string
	for _, m := range s.members {
		if r, ok := s.got[m.instance]; !ok || r.Error != "" {
			continue
		}
		for _, tp := range m.partitions {
			if at, ok := committed.Lookup(tp.Topic, tp.Partition); ok && at.At >= 0 && len(holders[tp.String()]) == 0 {
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
