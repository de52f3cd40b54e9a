package processor

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// once sets one timer and passes nothing on: at a time that does not change when its record comes again, or at the time of
// the call.
type once struct{ now bool }

const onceAt = 1_700_000_000_000

func (once) Open(*topology.ProcessContext) error { return nil }

func (o once) Process(ctx *topology.ProcessContext, _ *topology.Rec[string, string], _ *topology.Collector[string, string]) error {
	if o.now {
		ctx.SetTimer(time.Now())
		return nil
	}
	ctx.SetTimer(time.UnixMilli(onceAt))
	return nil
}

func (once) OnTimer(_ *topology.ProcessContext, _ string, at time.Time, out *topology.Collector[string, string]) error {
	out.Emit(strconv.FormatInt(at.UnixMilli(), 10))
	return nil
}

// A record that a timer emits and that fails every time in a later step stops the service, in a chain and behind an
// exchange, after same-record-failures attempts, and is named.
func TestARecordOfATimerThatAlwaysFailsStopsTheService(t *testing.T) {
	for name, in := range map[string]struct{ behindExchange, now bool }{
		"chain": {}, "exchange": {behindExchange: true}, "another time in each attempt": {now: true},
	} {
		behindExchange, timer := in.behindExchange, once{now: in.now}
		t.Run(name, func(t *testing.T) {
			s := newSettled(t)
			s.cfg.Restart = restart.Config{Exponential: restart.Exponential{InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond, Jitter: -1}, SameRecord: 3}
			b := topology.New(s.app)
			in := topology.FromTopic(b, "in", inTopic(), serde.String(), serde.String())
			late := topology.Stream[string, string](topology.Process(in, "late", func() topology.Processor[string, string, string] { return timer }))
			if behindExchange {
				late = topology.GroupBy(late, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(2))
			}
			bad := topology.MapRec(late, "bad", func(_, _ *topology.Rec[string, string]) error { return errors.New("no luck") })
			topology.ToTopic(bad, "out", outTopic(), serde.String(), serde.String())
			plan, err := b.Plan()
			require.NoError(t, err)
			s.put(1)
			done := make(chan error, 1)
			go func() { done <- Run(t.Context(), plan, s.cfg) }()
			select {
			case err = <-done:
			case <-time.After(10 * time.Second):
				t.Fatalf("it goes on failing: %d attempts", len(s.failures()))
			}
			require.Equal(t, fault.BadRecord, fault.CodeOf(err), err)
			require.Len(t, s.failures(), 3)
			require.ErrorContains(t, err, `record of a timer at step bad, key "`)
			require.ErrorContains(t, err, ` fails every time: 3 attempts failed at it`)
			if !timer.now {
				require.ErrorContains(t, err, `, at 2023-11-14T22:13:20Z fails every time`)
			}
			require.ErrorContains(t, err, "no luck")
		})
	}
}
