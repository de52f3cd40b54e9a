package txn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

// Commit commits the offsets and their metadata for the sealed checkpoint; the fence function vouches for the ownership of
// each before every send. nil means that the checkpoint is complete.
//
// An answer that is lost leaves nothing to find out: the same offsets are sent again, until the broker confirms them, the
// fence fails or time runs out. Twice is as good as once, because a commit says where the group stands, and the position
// of checkpoint n is the same in both. If time runs out the class is Unconfirmed, and whatever the next attempt reads is
// right: with the offsets of n it goes on behind n, whose output is all acknowledged; with those before n it does n
// again, which doubles output. A checkpoint.RefusedError says that no copy was taken, and none will be: each was answered.
//
// A copy that was given up may reach the broker late, behind the commit of a later checkpoint, as long as the group stays
// in its generation. The group then stands at n until the next commit, which is right for the same reason: it is a
// complete checkpoint of these partitions, and a restart from it doubles output. It only asks that the checkpoint is kept
// when a later one is complete. Only a commit that was sent more than once can do that, and commits are strictly one
// after the other, so the one that it sets back is the one that follows, unless the network holds a packet back for longer
// than it takes to make a checkpoint.
//
// The offsets of very many partitions go in several requests, one after the other, which nothing ties together: when a
// later one fails, some partitions stand at n and the others where they stood. The class is Unconfirmed then, unless it is a
// harder one. Each partition's position and handle are right by themselves, so what follows goes over the records of the
// others once more, and nothing is left out; where tasks exchange records, snapshot.Resolve has all of them begin at the newer
// of the two checkpoints, which is complete.
func (p *Plain) Commit(ctx context.Context, c checkpoint.Commit) error {
	if !c.Permit.Allows(c.Name.ID) {
		return fault.Stopf(fault.Failed, "checkpoint %s has no permit to be committed", c.Name)
	}
	if err := p.lock(ctx); err != nil {
		return err
	}
	defer p.unlock()
	if !p.seal || p.sealed != c.Name.ID {
		return p.outOfOrder("checkpoint %s is not sealed", c.Name)
	}
	p.seal = false
	return p.commit(ctx, c)
}

// CommitInitial commits start positions. It needs no permit: there is no snapshot before it.
func (p *Plain) CommitInitial(ctx context.Context, c checkpoint.Commit) error {
	if err := p.lock(ctx); err != nil {
		return err
	}
	defer p.unlock()
	return p.commit(ctx, c)
}

func (p *Plain) commit(ctx context.Context, c checkpoint.Commit) error {
	p.mu.RLock()
	cl := p.cl
	p.mu.RUnlock()
	if cl == nil {
		return p.outOfOrder("commit checkpoint %s before Init", c.Name)
	}
	for i := range c.Offsets {
		if n := len(c.Offsets[i].Metadata); n > MaxHandle {
			return p.refused(StepHandle, fault.Stop, fault.Failed, fmt.Errorf("%d bytes, a broker takes %d", n, MaxHandle))
		}
	}
	if len(c.Offsets) == 0 {
		return p.refused(StepOffsets, fault.Restart, fault.Failed, errors.New("no partition to commit"))
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	ctx, done := p.patient(ctx)
	defer done()
	start := time.Now()
	p.unsure = false
	begun, err := p.sendAll(ctx, cl.Client, c.Offsets)
	p.stats.Offsets += time.Since(start)
	if err != nil && !begun && !p.unsure {
		return &checkpoint.RefusedError{Err: err}
	}
	if err != nil {
		return err
	}
	p.end(Committed, c.Name.ID)
	return nil
}

// sendAll sends the offsets piece by piece. One that may be more than the coordinator writes at once is cut, and sent in
// smaller ones: whatever part of it was taken is taken again. begun says that some may be committed.
func (p *Plain) sendAll(ctx context.Context, cl *kgo.Client, all []checkpoint.OffsetCommit) (begun bool, err error) {
	ps := p.sizes.begin(p.cfg.Group, all)
	for i := 0; i < len(ps); {
		cut, lost, err := p.send(ctx, cl, all, ps[i], begun)
		begun = begun || lost || err == nil && !cut
		if err != nil {
			return begun, err
		}
		if cut {
			ps = p.sizes.cut(p.cfg.Group, all, ps, i)
			continue
		}
		p.sizes.taken()
		i++
	}
	return begun, nil
}

// CommitOffsets commits offsets without a Plain: nothing was produced. It sends them as Plain.Commit does, as long as the fence
// vouches for the member, in several requests where they are too many for one. With an error some of them may be committed.
func (c Config) CommitOffsets(ctx context.Context, cl *kgo.Client, offsets []checkpoint.OffsetCommit) error {
	p, err := NewPlain(c)
	if err != nil {
		return err
	}
	_, err = p.sendAll(ctx, cl, offsets)
	return err
}

func (p *Plain) refused(step Step, rec fault.Recovery, code fault.Code, cause error) error {
	return fault.New(rec, code, "commit of group %s: %s: %w", p.cfg.Group, step, cause)
}

// send sends one piece of the offsets until it is committed, is to be cut, or there is no hope. begun says that pieces
// before it are committed: whatever comes now, the group no longer stands where it stood. lost says so of this one.
func (p *Plain) send(ctx context.Context, cl *kgo.Client, all, piece []checkpoint.OffsetCommit, begun bool) (cut, lost bool, err error) {
	var pause time.Duration
	lost = begun
	stale := 0
	for {
		a := p.sendOnce(ctx, cl, all, piece)
		lost, p.unsure = lost || a.lost, p.unsure || a.maybe
		if a.stale {
			if stale++; stale > maxStale {
				a.again, a.rec = false, fault.Rejoin
			}
		}
		switch {
		case a.err == nil:
			return false, lost, nil
		case a.large && len(piece) > 1:
			return true, lost, nil
		case ctx.Err() != nil:
			a.again = false
		case a.again:
			p.stats.Retries++
			if p.cfg.Hooks.Retried != nil {
				p.cfg.Hooks.Retried(0)
			}
			pause = min(max(retryFirst, 2*pause), retryMost)
			t := time.NewTimer(pause)
			select {
			case <-t.C:
				continue
			case <-ctx.Done():
				t.Stop()
				a.err = errors.Join(a.err, ctx.Err())
			}
		}
		if lost && a.rec == fault.Restart {
			a.rec = fault.Unconfirmed
		}
		return false, lost, p.refused(a.step, a.rec, a.code, a.err)
	}
}

// sent is what one send came to.
type sent struct {
	err   error
	step  Step
	rec   fault.Recovery
	code  fault.Code
	again bool // worth another send
	lost  bool // the broker may have done it, or a part of it
	maybe bool // it has refused it, and may do it all the same
	stale bool // refused for its generation, see maxStale
	large bool // perhaps refused since it is too much at once
}

// sendOnce reads the fence, which vouches for all offsets of the checkpoint, and sends a piece of them. kgo itself sends the request again over a new connection or to a
// new coordinator, without asking the fence; that is as good, because the broker takes it in the same generation only,
// and within a generation no partition changes hands.
func (p *Plain) sendOnce(ctx context.Context, cl *kgo.Client, all, piece []checkpoint.OffsetCommit) sent {
	member, generation, instanceID, err := p.cfg.Fence(all)
	if err == nil && (member == "" || generation < 0) {
		err = errNoFence
	}
	if err != nil {
		s := sent{err: err, step: StepFence, rec: fault.Rejoin, code: fault.Failed}
		var classed *fault.Error
		if errors.As(err, &classed) {
			s.rec, s.code = classed.Recovery, classed.Code
		}
		return s
	}
	req := plainRequest(piece)
	req.Group, req.MemberID, req.Generation = p.cfg.Group, member, generation
	if instanceID != "" {
		req.InstanceID = &instanceID
	}
	failpoint.Hit(failpoint.OffsetsBefore)
	copies := p.copies.Load()
	resp, err := req.RequestWith(ctx, cl)
	failpoint.Hit(failpoint.OffsetsAfter)
	if err != nil {
		s := sent{err: err, step: StepOffsets, rec: fault.Restart, code: fault.Failed, lost: true}
		if kafka.IsDenied(err) {
			s.rec, s.code = fault.Stop, fault.Denied
		}
		// Not only what kgo calls retriable: the offsets are the same each time, so nothing but time is at stake.
		s.again = s.rec != fault.Stop && !errors.Is(err, kgo.ErrClientClosed)
		return s
	}
	s := judge(resp, piece)
	s.maybe = s.maybe || p.copies.Load()-copies > 1
	if s.err == nil || s.again || s.large && len(piece) > 1 {
		return s
	}
	var final bool
	if s.err, final = p.sizes.explain(ctx, cl, p.cfg.Group, piece, s.err); final {
		s.rec, s.code = plainVerdict(StepOffsets, Answer{Final: true})
	}
	return s
}

// judge reads the answer for each partition. The hardest refusal counts, before what may be accepted a moment later.
func judge(resp *kmsg.OffsetCommitResponse, asked []checkpoint.OffsetCommit) sent {
	var worst sent
	n, hard, some, maybe := 0, false, false, false
	for _, t := range resp.Topics {
		name := t.Topic
		for i := range asked {
			if name == "" && asked[i].Position.TopicID == t.TopicID {
				name = asked[i].Position.Topic // version 10 answers with ids
			}
		}
		for _, pt := range t.Partitions {
			n++
			c := pt.ErrorCode
			if c == 0 {
				some = true
				continue
			}
			maybe = maybe || !slices.Contains(plainUntaken, c)
			s := sent{err: fmt.Errorf("%s/%d: %w", name, pt.Partition, kerr.ErrorForCode(c)), step: StepOffsets}
			s.stale = c == kerr.IllegalGeneration.Code
			s.again = s.stale || slices.Contains(plainRetriable, c)
			s.large = slices.Contains(tooMuch, c)
			s.rec, s.code = plainVerdict(StepOffsets, Answer{Code: c})
			if worst.err == nil || (!s.again && (!hard || s.rec > worst.rec)) {
				worst = s
			}
			hard = hard || !s.again
		}
	}
	if worst.err == nil && n != len(asked) {
		return sent{err: fmt.Errorf("the broker answered for %d of %d partitions", n, len(asked)), step: StepOffsets,
			rec: fault.Restart, code: fault.Failed, lost: true, again: true}
	}
	worst.lost, worst.maybe = worst.err != nil && some, maybe || n != len(asked)
	return worst
}

// plainRetriable are the codes after which the same offsets may be accepted a moment later. While the group waits for its
// members' new assignment it takes none; whether the partitions are still ours the fence says before the next send.
var plainRetriable = append(codesOf(kerr.RebalanceInProgress, kerr.RequestTimedOut), retriable...)

// plainUntaken are the codes of refusals before a coordinator writes anything. Others may come when it has written the offsets,
// and does not know whether the other replicas have them: they may be committed yet.
var plainUntaken = codesOf(kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.FencedInstanceID, kerr.FencedMemberEpoch, kerr.StaleMemberEpoch,
	kerr.RebalanceInProgress, kerr.CoordinatorLoadInProgress, kerr.GroupAuthorizationFailed, kerr.TopicAuthorizationFailed, kerr.InvalidGroupID,
	kerr.OffsetMetadataTooLarge, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InvalidRequest)

// copies is a client's hook that counts the commits it writes: kgo sends one again by itself, and says nothing of it.
type copies struct{ atomic.Int64 }

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (c *copies) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == int16(kmsg.OffsetCommit) {
		c.Add(1)
	}
}

// plainVerdict is verdict without transactions: nobody can fence an idempotent producer.
func plainVerdict(step Step, a Answer) (fault.Recovery, fault.Code) {
	if !a.Lost && slices.Contains(fencing, a.Code) {
		return fault.Restart, fault.Failed
	}
	return verdict(step, a)
}

// explainPlain is explain without what it says about transactional ids.
func explainPlain(err error) error {
	if errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch) {
		return err
	}
	return explain(err)
}

// plainRequest groups the offsets by topic. Name and id are both set: version 10 sends the id, older ones the name.
func plainRequest(offsets []checkpoint.OffsetCommit) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	at := make(map[string]int)
	for i := range offsets {
		o := &offsets[i]
		t, ok := at[o.Position.Topic]
		if !ok {
			t = len(req.Topics)
			at[o.Position.Topic] = t
			rt := kmsg.NewOffsetCommitRequestTopic()
			rt.Topic, rt.TopicID = o.Position.Topic, o.Position.TopicID
			req.Topics = append(req.Topics, rt)
		}
		rp := kmsg.NewOffsetCommitRequestTopicPartition()
		rp.Partition, rp.Offset, rp.LeaderEpoch = o.Position.Partition, o.Position.Offset, o.Position.LeaderEpoch
		rp.Metadata = &o.Metadata
		req.Topics[t].Partitions = append(req.Topics[t].Partitions, rp)
	}
	return req
}
