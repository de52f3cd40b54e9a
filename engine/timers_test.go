package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// alarm sets a timer of its own for every record, and counts per key those that have fired.
type alarm struct {
	base  time.Time
	fired *topology.Value[int64]
}

func (a *alarm) Open(ctx *topology.ProcessContext) error {
	a.fired = topology.ValueState(ctx, "fired", serde.Int64())
	return nil
}

func (a *alarm) Process(ctx *topology.ProcessContext, in *topology.Rec[string, string], _ *topology.Collector[string, int64]) error {
	ctx.SetTimer(a.base.Add(time.Duration(in.Offset) * time.Millisecond)) // no two of a key are the same
	return nil
}

func (a *alarm) OnTimer(_ *topology.ProcessContext, _ string, _ time.Time, out *topology.Collector[string, int64]) error {
	n, _ := a.fired.Get()
	a.fired.Set(n + 1)
	out.Emit(n + 1)
	return nil
}

// timerPlan fires a timer per record, parallelism 0: without an exchange.
func timerPlan(t *testing.T, parallelism int, base time.Time) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	if parallelism > 0 {
		in = topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(parallelism))
	}
	timed := topology.Process(in, "timed", func() topology.Processor[string, string, int64] { return &alarm{base: base} })
	topology.ToTopic(timed, "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// Pending timers are part of the checkpoints: each fires once, also those that come due while nobody runs, and at another
// parallelism.
func TestEveryTimerFiresOnce(t *testing.T) {
	t.Parallel()
	for name, set := range modes {
		for _, exchange := range []bool{false, true} {
			t.Run(name+map[bool]string{false: "/chained", true: "/exchange"}[exchange], func(t *testing.T) {
				w := newWorld(t, 3)
				base := time.Now().Add(40 * time.Millisecond)
				for _, parallelism := range []int{1, 3, 2, 4} {
					if !exchange {
						parallelism = 0
					}
					cfg := w.config()
					set(&cfg)
					cfg.ShutdownTimeout = 1 // cut short
					kill := w.startPlan(timerPlan(t, parallelism, base), cfg, w.ports(), nil)
					w.produce(60, 11)
					time.Sleep(30 * time.Millisecond)
					require.NoError(t, kill())
					time.Sleep(20 * time.Millisecond) // some come due meanwhile
				}
				cfg := w.config()
				set(&cfg)
				par := 2
				if !exchange {
					par = 0
				}
				stop := w.startPlan(timerPlan(t, par, base), cfg, w.ports(), nil)
				w.outputs()
				time.Sleep(20 * time.Millisecond)
				require.NoError(t, stop())
				w.exact()
			})
		}
	}
}

// A timer fires although no record comes.
func TestATimerFiresInSilence(t *testing.T) { synctest.Test(t, aTimerInSilence) }

func aTimerInSilence(t *testing.T) {
	w := newWorld(t, 1)
	stop := w.startPlan(timerPlan(t, 0, time.Now().Add(200*time.Millisecond)), w.config(), w.ports(), nil)
	w.produce(1, 1)
	w.caughtUp()
	require.Zero(t, w.done())
	w.outputs()
	require.NoError(t, stop())
	w.exact()
}
