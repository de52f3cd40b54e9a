package processor

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/topology"
)

// logged is a buffer that a logger may write to while it is read.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// keepsUp waits until everything is committed.
func (b *bed) keepsUp(app string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
}

func TestC15_TheCommittedOffsetIsGone(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	b.writes(0, 0, 5, func(i int) int64 { return 1000 + int64(i) })
	stop := b.start(passPlan(t, "gap"), b.config())
	b.keepsUp("gap")
	require.NoError(t, stop())
	b.writes(0, 5, 15, func(i int) int64 { return 500 + int64(i) }) // older than what has been read
	b.writes(1, 100, 5, nil)
	b.deletes(0, 10)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := Run(ctx, passPlan(t, "gap"), b.config())
	require.Equal(t, int(fault.OffsetGone), ExitCode(err), "%v", err)
	require.ErrorContains(t, err, "topic "+inTopic()+" partition 0: offset 5 is not in the log, it has offsets 10 to 20: 5 records were deleted")
	require.Equal(t, upTo(0, 5), b.output(), "nothing was written, not for the other partition either")

	text := &logged{}
	cfg := b.config()
	cfg.Logger = slog.New(slog.NewTextHandler(text, nil))
	stop = b.start(passPlan(t, "gap", topology.OnMissing(topology.MissingEarliest)), cfg)
	b.keepsUp("gap")
	require.NoError(t, stop())
	require.Equal(t, append(append(upTo(0, 5), upTo(10, 20)...), upTo(100, 105)...), b.output())
	require.Contains(t, text.String(), "position=5 first=10 goes_on_at=10 lost=5")
}

// With latest what is left behind the gap is passed over, too; a partition without a gap is read as ever.
func TestC15_LatestPassesOverWhatIsLeft(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	b.writes(0, 0, 5, nil)
	stop := b.start(passPlan(t, "passed"), b.config())
	b.keepsUp("passed")
	require.NoError(t, stop())
	b.writes(0, 5, 15, nil)
	b.writes(1, 100, 5, nil)
	b.deletes(0, 10)
	stop = b.start(passPlan(t, "passed", topology.OnMissing(topology.MissingLatest)), b.config())
	b.keepsUp("passed")
	b.writes(0, 20, 3, nil)
	b.keepsUp("passed")
	require.NoError(t, stop())
	require.Equal(t, append(append(upTo(0, 5), upTo(20, 23)...), upTo(100, 105)...), b.output())
}

// The position is committed also when nothing is left to be read: the next start finds no gap.
func TestC15_WhatIsLeftIsNothing(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	b.writes(0, 0, 5, nil)
	stop := b.start(passPlan(t, "empty"), b.config())
	b.keepsUp("empty")
	require.NoError(t, stop())
	b.writes(0, 5, 5, nil)
	b.deletes(0, 10)
	stop = b.start(passPlan(t, "empty", topology.OnMissing(topology.MissingLatest)), b.config())
	b.keepsUp("empty")
	require.NoError(t, stop())
	stop = b.start(passPlan(t, "empty"), b.config())
	b.writes(0, 10, 1, nil)
	b.keepsUp("empty")
	require.NoError(t, stop())
	require.Equal(t, append(upTo(0, 5), 10), b.output())
}

// What was passed over was written in a later leader epoch than what was read: the position behind it is none of the earlier one.
func TestC15_TheLeaderChangesInTheGap(t *testing.T) {
	testbed.Alongside(t)
	tb, fake := testbed.NewFake(t, "a partition that gets another leader, on demand", kfake.NumBrokers(2))
	b := bedOn(t, tb)
	b.writes(0, 0, 5, nil)
	stop := b.start(passPlan(t, "led"), b.config())
	b.keepsUp("led")
	require.NoError(t, stop())
	for i := range int32(4) {
		require.NoError(t, fake.MoveTopicPartition(inTopic(), 0, i%2))
		b.writes(0, 5+5*int(i), 5, nil)
	}
	b.deletes(0, 12)
	latest := passPlan(t, "led", topology.OnMissing(topology.MissingLatest))
	stop = b.start(latest, b.config())
	b.keepsUp("led")
	require.NoError(t, stop())
	stop = b.start(latest, b.config()) // from the position behind the gap, of which no record was read
	b.keepsUp("led")
	b.writes(0, 25, 3, nil)
	b.keepsUp("led")
	require.NoError(t, stop())
	require.Equal(t, append(upTo(0, 5), upTo(25, 28)...), b.output())
}

func TestC15_LatestIsForThePartitionsOfTheFirstStart(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	b.writes(0, 0, 5, nil)
	cfg := b.config()
	cfg.ClientOptions = []kgo.Opt{kgo.MetadataMaxAge(500 * time.Millisecond)}
	stop := b.start(passPlan(t, "grows", topology.StartAt(topology.Latest())), cfg)
	b.keepsUp("grows")
	_, err := kadm.NewClient(b.cl).CreatePartitions(t.Context(), 1, inTopic())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		topics, err := kadm.NewClient(b.cl).ListTopics(t.Context(), inTopic())
		return err == nil && len(topics[inTopic()].Partitions) == 5
	}, 10*time.Second, 5*time.Millisecond)
	b.writes(4, 100, 50, nil)
	b.keepsUp("grows")
	require.NoError(t, stop())
	require.Equal(t, upTo(100, 150), b.output())
}
