package kafkasrc

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
)

// forgetful is a leader that keeps everything in one round, and has nothing for the others, not even a note, as when the one who made
// the plan has been replaced before it could send it.
type forgetful struct {
	*copartitioned
	round, forgets int
}

func (f *forgetful) MemberBalancer(members []kmsg.JoinGroupResponseMember) (kgo.GroupMemberBalancer, map[string]struct{}, error) {
	mb, topics, err := f.copartitioned.MemberBalancer(members)
	return forgetfulPlan{mb, f, members}, topics, err
}

type forgetfulPlan struct {
	kgo.GroupMemberBalancer
	f       *forgetful
	members []kmsg.JoinGroupResponseMember
}

func (p forgetfulPlan) BalanceOrError(counts map[string]int32) (kgo.IntoSyncAssignment, error) {
	plan, err := p.GroupMemberBalancer.(kgo.GroupMemberBalancerOrError).BalanceOrError(counts)
	if p.f.round++; err == nil && p.f.round == p.f.forgets {
		a := plan.(*assignments)
		for _, m := range p.members {
			delete(a.to, m.MemberID)
			if *m.InstanceID == "i1" {
				for topic, n := range counts {
					for partition := range n {
						a.to[m.MemberID] = append(a.to[m.MemberID], element.TopicPartition{Topic: topic, Partition: partition})
					}
				}
			}
		}
		clear(a.givesUp)
	}
	return plan, err
}

// A static member whose predecessor led the group, and died before it sent the plan, takes part in a round that has no plan: it gets
// nothing, and nobody else asks for another round.
func TestAMemberThatTheAssignmentLeavesOutAsksForAnother(t *testing.T) {
	k := newBed(t, 4)
	bal, err := newCopartitioned([]string{k.in}, nil, false)
	require.NoError(t, err)
	leads := &forgetful{bal, 0, 2}
	has := make(chan map[string][]int32, 16)
	client(t, k.cfg, kgo.ConsumerGroup(k.Name("g")), kgo.InstanceID("i1"), kgo.ConsumeTopics(k.in), kgo.Balancers(leads), kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) { has <- added }))
	require.Len(t, (<-has)[k.in], 4)
	owns(t, 2, k.join(t, "i2"))
}
