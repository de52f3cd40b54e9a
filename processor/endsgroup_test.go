package processor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/kafkasrc"
	"github.com/millweir/millweir/topology"
)

// refusedStart runs a plan that is refused because of its name, and leaves the group m.ends as it is.
func (b *bed) refusedStart(plan *topology.Plan, cfg Config, words ...string) {
	b.t.Helper()
	b.groups[plan.Application] = true
	mark := b.mark("m.ends")
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
	defer cancel()
	err := Run(ctx, plan, cfg)
	require.Equal(b.t, int(fault.BadFile), ExitCode(err), "%v", err)
	for _, word := range words {
		require.ErrorContains(b.t, err, word)
	}
	require.NotContains(b.t, err.Error(), "\n")
	require.Equal(b.t, mark, b.mark("m.ends"), "the group is as it was")
}

func (b *bed) mark(group string) string {
	b.t.Helper()
	offsets, err := kafka.GroupOffsets(b.t.Context(), b.cl, group, false)
	require.NoError(b.t, err)
	return markOf(offsets)
}

// The group of the ends of m may be that of an application, or of anybody else: nothing is written into it then.
func TestEndsAreNotKeptInTheGroupOfAnother(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	b.groups["m.ends"] = true
	bounded := passPlan(t, "m", topology.EndAt(topology.EndLatest()))
	m, _ := b.instance("m")

	member, err := kafkasrc.JoinGroup(t.Context(), kafkasrc.GroupConfig{Kafka: kafka.Config{Brokers: []string{b.addr}}, Group: "m.ends", InstanceID: "waits", Topics: []string{inTopic()}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return member.Current().Member }, 20*time.Second, 10*time.Millisecond)
	b.refusedStart(bounded, m, "application m keeps the ends of its bounded runs in the group m.ends", "has members: waits (", "another name")
	require.NoError(t, member.Leave(t.Context()))
	member.Close()

	other, _ := b.instance("other")
	for range 2 { // the refused run has cost it nothing
		stop := b.start(countByKey(t, "m.ends"), other)
		b.put(100)
		require.Eventually(t, func() bool { return b.lag("m.ends") == 0 }, 20*time.Second, 20*time.Millisecond)
		require.NoError(t, stop())
		b.refusedStart(bounded, m, "application m keeps the ends of its bounded runs in the group m.ends", "is the application m.ends's", "another name")
	}
	require.Len(t, b.counts(), 200)

	named := topology.EndOffsets(map[int32]int64{0: 0, 1: 0, 2: 0, 3: 0})
	require.NoError(t, Run(t.Context(), passPlan(t, "m", topology.EndAt(named)), m), "ends that the source names are kept nowhere")

	b.groups["plain.ends"] = true
	b.commitsPlain("plain.ends", 7)
	plain, _ := b.instance("plain")
	b.refusedStart(passPlan(t, "plain", topology.EndAt(topology.EndLatest())), plain, "is somebody else's: it has offsets that are no ends of runs")
}

// An application that is called as the group of the ends of another one finds them there, and leaves them alone.
func TestAnApplicationDoesNotTakeTheGroupOfTheEndsOfAnother(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	b.put(100)
	m, _ := b.instance("m")
	b.groups["m"], b.groups["m.ends"] = true, true
	require.NoError(t, Run(t.Context(), passPlan(t, "m", topology.EndAt(topology.EndLatest())), m))

	other, _ := b.instance("other")
	says := []string{"the group m.ends has the ends of bounded runs of the application m", "another application name"}
	b.refusedStart(countByKey(t, "m.ends"), other, says...)
	_, err := PlanReset(t.Context(), "m.ends", other)
	require.Equal(t, fault.BadFile, fault.CodeOf(err), "%v", err)
	for _, word := range says {
		require.ErrorContains(t, err, word)
	}

	// A mixture, which earlier versions made, is cured by a reset of the application that has the group.
	require.ErrorContains(t, refuseEnds("m.ends", map[element.TopicPartition]kafka.Committed{input(0): {Found: true}, input(1): {Found: true, Metadata: keptEnd{run: 1}.note()}}), "and reset m.ends")

	r, err := PlanReset(t.Context(), "m", m)
	require.NoError(t, err)
	require.Equal(t, []string{"m", "m.ends"}, r.Groups)
	require.NoError(t, r.Do(t.Context()))
	stop := b.start(countByKey(t, "m.ends"), other)
	require.Eventually(t, func() bool { return b.lag("m.ends") == 0 }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
}
