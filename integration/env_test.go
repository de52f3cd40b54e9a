//go:build unix

package integration

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/kafkasrc"
)

// env is one fact's own corner of the cluster: an input topic of four partitions, an output topic of one, a group and
// transactional ids that no other fact and no earlier run uses.
type env struct {
	t       *testing.T
	cfg     kafka.Config
	ctx     context.Context
	name    string
	in, out string
	inID    element.TopicID
	admin   *kgo.Client
}

func newEnv(t *testing.T, cfg kafka.Config, i int) *env {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	name := fmt.Sprintf("fact-%d-%s", i, strings.ToLower(rand.Text()[:8]))
	e := &env{t: t, cfg: cfg, ctx: ctx, name: name, in: name + "-in", out: name + "-out"}
	e.admin = e.client()
	var err error
	e.inID, err = kafka.EnsureTopic(ctx, e.admin, e.in, 4, nil)
	require.NoError(t, err)
	_, err = kafka.EnsureTopic(ctx, e.admin, e.out, 1, nil)
	require.NoError(t, err)
	return e
}

func (e *env) client(opts ...kgo.Opt) *kgo.Client {
	e.t.Helper()
	cl, err := kafka.NewClient(e.cfg, append([]kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
	require.NoError(e.t, err)
	e.t.Cleanup(cl.Close)
	return cl
}

// producer makes a transactional client; the same slot is the same transactional id.
func (e *env) producer(slot string) *kgo.Client {
	return e.client(kgo.TransactionalID(e.name+"-"+slot), kgo.TransactionTimeout(30*time.Second))
}

func (e *env) begin(p *kgo.Client) { require.NoError(e.t, p.BeginTransaction()) }

func (e *env) end(p *kgo.Client, how kgo.TransactionEndTry) string {
	return errName(p.EndTransaction(e.ctx, how))
}

// put writes one record to the output.
func (e *env) put(p *kgo.Client, value string) error {
	return p.ProduceSync(e.ctx, &kgo.Record{Topic: e.out, Value: []byte(value)}).FirstErr()
}

func (e *env) mustPut(p *kgo.Client, value string) { require.NoError(e.t, e.put(p, value)) }

// offsets is what a raw commit sends; the zero fence is that of no member at all.
type offsets struct {
	fence     kafkasrc.Fence
	partition int32
	at        int64
	metadata  string
	noID      bool // leave the topic id out
}

func nobody() kafkasrc.Fence { return kafkasrc.Fence{Generation: -1} }

// commit sends a raw TxnOffsetCommit through p and gives the code of its one partition.
func (e *env) commit(p *kgo.Client, o offsets) string {
	e.t.Helper()
	slot, _ := p.OptValue(kgo.TransactionalID).(string)
	require.NotEmpty(e.t, slot)
	id, epoch, err := p.ProducerID(e.ctx)
	require.NoError(e.t, err)
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch = slot, e.name, id, epoch
	req.Generation, req.MemberID = o.fence.Generation, o.fence.Member
	if o.fence.InstanceID != "" {
		req.InstanceID = &o.fence.InstanceID
	}
	rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = o.partition, o.at, 0, &o.metadata
	rt := kmsg.NewTxnOffsetCommitRequestTopic()
	rt.Topic, rt.Partitions = e.in, []kmsg.TxnOffsetCommitRequestTopicPartition{rp}
	if !o.noID {
		rt.TopicID = e.inID
	}
	req.Topics = append(req.Topics, rt)
	for {
		resp, err := req.RequestWith(e.ctx, p)
		require.NoError(e.t, err)
		require.Len(e.t, resp.Topics, 1)
		require.Len(e.t, resp.Topics[0].Partitions, 1)
		err = kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
		if errors.Is(err, kerr.ConcurrentTransactions) {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if err == nil {
			return "NONE"
		}
		return errName(err)
	}
}

// committed does a stable read of one partition.
func (e *env) committed(p int32) kafka.Committed {
	e.t.Helper()
	tp := element.TopicPartition{Topic: e.in, Partition: p}
	got, err := kafka.StableOffsets(e.ctx, e.admin, e.name, []element.TopicPartition{tp})
	require.NoError(e.t, err)
	return got[tp]
}

func (e *env) offset(p int32) string {
	c := e.committed(p)
	if !c.Found {
		return "no offset"
	}
	return fmt.Sprintf("offset %d", c.Offset)
}

// isOpen says whether a stable read still waits after some tries.
func (e *env) isOpen(p int32) bool {
	ctx, cancel := context.WithTimeout(e.ctx, 400*time.Millisecond)
	defer cancel()
	_, err := kafka.StableOffsets(ctx, e.admin, e.name, []element.TopicPartition{{Topic: e.in, Partition: p}})
	return errors.Is(err, context.DeadlineExceeded)
}

// fetchOffset sends one raw OffsetFetch and gives the partition's answer; ok is false when it is not in it.
func (e *env) fetchOffset(stable, named bool) (got kmsg.OffsetFetchResponseGroupTopicPartition, ok bool) {
	e.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = stable
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = e.name
	if named {
		t := kmsg.NewOffsetFetchRequestGroupTopic()
		t.Topic, t.TopicID, t.Partitions = e.in, e.inID, []int32{0}
		g.Topics = append(g.Topics, t)
	}
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(e.ctx, e.admin)
	require.NoError(e.t, err)
	require.Len(e.t, resp.Groups, 1)
	for _, t := range resp.Groups[0].Topics {
		for _, p := range t.Partitions {
			if t.TopicID == e.inID && p.Partition == 0 {
				return p, true
			}
		}
	}
	return got, false
}

// member joins the group statically and waits for the share of partitions that members of its kind get.
func (e *env) member(instance string, share int, change ...func(*kafkasrc.GroupConfig)) *kafkasrc.Group {
	e.t.Helper()
	gc := kafkasrc.GroupConfig{Kafka: e.cfg, Group: e.name, InstanceID: instance, Topics: []string{e.in}, SessionTimeout: 6 * time.Second, Logger: e.cfg.Logger}
	for _, c := range change {
		c(&gc)
	}
	g, err := kafkasrc.JoinGroup(e.ctx, gc)
	require.NoError(e.t, err)
	e.t.Cleanup(g.Close)
	e.awaitShare(g, share)
	return g
}

func (e *env) awaitShare(g *kafkasrc.Group, share int) {
	e.t.Helper()
	require.Eventually(e.t, func() bool { return len(g.Current().Partitions) == share }, 40*time.Second, 2*time.Millisecond)
}

// claims are those to all that a group owns now.
func claims(g *kafkasrc.Group) []element.Claim {
	var all []element.Claim
	now := g.Current()
	for _, tp := range now.Partitions {
		all = append(all, element.Claim{TopicPartition: tp, Epoch: now.Since[tp]})
	}
	return all
}

func (e *env) fence(g *kafkasrc.Group) kafkasrc.Fence {
	e.t.Helper()
	f, err := g.Fence(claims(g))
	require.NoError(e.t, err)
	return f
}

// readOut reads the committed records of the output until its last stable offset.
func (e *env) readOut() []string {
	e.t.Helper()
	values, _ := e.readUntilStable()
	return values
}

func (e *env) readUntilStable() (values []string, next int64) {
	e.t.Helper()
	tp := element.TopicPartition{Topic: e.out}
	end, err := kafka.StableEndOffsets(e.ctx, e.admin, []element.TopicPartition{tp})
	require.NoError(e.t, err)
	if end[tp].Offset == 0 {
		return nil, 0
	}
	recs, next := readAll(e, tp, 0, end[tp].Offset)
	for _, r := range recs {
		values = append(values, string(r.Value))
	}
	return values, next
}

// errName gives a Kafka error's name, "nil", or "failed" for any other error.
func errName(err error) string {
	var ke *kerr.Error
	switch {
	case err == nil:
		return "nil"
	case errors.As(err, &ke):
		return ke.Message
	}
	return "failed"
}
