package txn

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/kafka"
)

// errNoFence is the cause when the group's member has no identity at the moment.
var errNoFence = errors.New("the instance is not a member of the group at the moment")

// sendOffsets sends TxnOffsetCommit for one piece once. It goes through the slot's own client, because the broker takes
// the producer id and epoch that the transaction's records were written with. The fence has to vouch for all partitions of
// the checkpoint each time: what was sent before counts only together with this.
func (m *Manager) sendOffsets(j *job, c *client, piece int) Event {
	start := time.Now()
	defer func() { m.stats.Offsets += time.Since(start) }()
	member, generation, instanceID, err := m.cfg.Fence(j.commit.Offsets)
	if err == nil && (member == "" || generation < 0) {
		err = errNoFence
	}
	if err != nil {
		j.noteCause(err)
		return Event{Kind: EvNoFence, Answer: Answer{Lost: true}}
	}
	offsets := j.pieces[piece]
	req := offsetsRequest(offsets)
	req.TransactionalID, req.Group = c.id, m.cfg.Group
	req.MemberID, req.Generation = member, generation
	if instanceID != "" {
		req.InstanceID = &instanceID
	}
	if req.ProducerID, req.ProducerEpoch, err = c.cl.ProducerID(j.ctx); err != nil {
		return Event{Kind: EvOffsets, Answer: j.answerLost(err)}
	}
	if was, is := c.acked.Load(), (producer{req.ProducerID, req.ProducerEpoch}); c.mixed.Load() || was != nil && *was != is {
		return Event{Kind: EvOffsets, Answer: j.answerLost(fmt.Errorf("the broker has forgotten producer %d: its epoch has changed to %d within the transaction, of which a part is aborted by that",
			was.id, is.epoch))}
	}
	failpoint.Hit(failpoint.OffsetsBefore)
	resp, err := req.RequestWith(j.ctx, c.cl)
	failpoint.Hit(failpoint.OffsetsAfter)
	if err != nil {
		if kafka.IsDenied(err) {
			j.noteCause(err)
			return Event{Kind: EvOffsets, Codes: []int16{answerOf(err).Code}} // the login, on a new connection
		}
		return Event{Kind: EvOffsets, Answer: j.answerLost(err)}
	}
	codes, err := offsetCodes(resp, offsets)
	ev := Event{Kind: EvOffsets, Codes: codes}
	switch {
	case codes == nil:
		ev.Answer = j.answerLost(err)
	case err == nil:
		m.sizes.taken()
	case onlyRetriable(codes, len(offsets) > 1):
		j.notYet = err
	default:
		err, ev.Answer.Final = m.sizes.explain(j.ctx, c.cl, m.cfg.Group, offsets, err)
		j.noteCause(err)
	}
	return ev
}

// resendOffsets is sendOffsets after a pause that doubles. kgo retries these codes for its own commits, not for a raw
// request.
func (m *Manager) resendOffsets(j *job, c *client, piece int) Event {
	m.stats.Retries++
	if m.cfg.Hooks.Retried != nil {
		m.cfg.Hooks.Retried(c.slot)
	}
	j.pause = min(max(retryFirst, 2*j.pause), retryMost)
	t := time.NewTimer(j.pause)
	defer t.Stop()
	select {
	case <-t.C:
		return m.sendOffsets(j, c, piece)
	case <-j.ctx.Done():
		j.noteCause(errors.Join(j.notYet, j.ctx.Err()))
		return Event{Kind: EvGaveUp}
	}
}

// answerLost notes an error of a request that may or may not have reached the broker.
func (j *job) answerLost(err error) Answer {
	j.noteCause(err)
	return Answer{Lost: true}
}

// onlyRetriable says that the offsets are sent again, and in smaller pieces if these can be cut.
func onlyRetriable(codes []int16, cuttable bool) bool {
	for _, c := range codes {
		if c != 0 && c != kerr.IllegalGeneration.Code && !slices.Contains(retriable, c) && !(cuttable && slices.Contains(tooMuch, c)) {
			return false
		}
	}
	return true
}

// offsetsRequest groups the offsets by topic. Name and id are both set: version 6 sends the id, older ones the name.
func offsetsRequest(offsets []checkpoint.OffsetCommit) *kmsg.TxnOffsetCommitRequest {
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	at := make(map[string]int)
	for i := range offsets {
		o := &offsets[i]
		t, ok := at[o.Position.Topic]
		if !ok {
			t = len(req.Topics)
			at[o.Position.Topic] = t
			rt := kmsg.NewTxnOffsetCommitRequestTopic()
			rt.Topic, rt.TopicID = o.Position.Topic, o.Position.TopicID
			req.Topics = append(req.Topics, rt)
		}
		rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		rp.Partition, rp.Offset, rp.LeaderEpoch = o.Position.Partition, o.Position.Offset, o.Position.LeaderEpoch
		rp.Metadata = &o.Metadata
		req.Topics[t].Partitions = append(req.Topics[t].Partitions, rp)
	}
	return req
}

// offsetCodes collects the code of every partition. An answer that leaves one out is no answer: codes is nil. err names
// the first partition that was refused for good, or else the first that was not accepted.
func offsetCodes(resp *kmsg.TxnOffsetCommitResponse, asked []checkpoint.OffsetCommit) (codes []int16, err error) {
	codes = make([]int16, 0, len(asked))
	named := false
	for _, t := range resp.Topics {
		name := t.Topic
		for i := range asked {
			if name == "" && asked[i].Position.TopicID == t.TopicID {
				name = asked[i].Position.Topic // version 6 answers with ids
			}
		}
		for _, p := range t.Partitions {
			codes = append(codes, p.ErrorCode)
			if p.ErrorCode == 0 {
				continue
			}
			if hard := !slices.Contains(retriable, p.ErrorCode); err == nil || (hard && !named) {
				err, named = fmt.Errorf("%s/%d: %w", name, p.Partition, kerr.ErrorForCode(p.ErrorCode)), hard
			}
		}
	}
	if len(codes) != len(asked) {
		return nil, fmt.Errorf("the broker answered for %d of %d partitions", len(codes), len(asked))
	}
	return codes, err
}
