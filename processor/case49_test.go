package processor

import (
	"encoding/binary"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// poisonPlan passes values on, and panics at one as often as it is told to: with another message the first time.
func poisonPlan(t *testing.T, app string, at uint64, times int64) (*topology.Plan, *atomic.Int64) {
	faults := new(atomic.Int64)
	b := topology.New(app)
	in := topology.FromTopic(b, "in", inTopic(), serde.Bytes(), serde.Bytes())
	step := topology.Map(in, "step", func(_, v []byte) []byte {
		if binary.BigEndian.Uint64(v) == at && faults.Load() < times {
			if faults.Add(1) == 1 {
				panic("the first cause")
			}
			panic("a later one")
		}
		return v
	})
	topology.ToTopic(step, "out", outTopic(), serde.Bytes(), serde.Bytes())
	plan, err := b.Plan()
	require.NoError(t, err)
	return plan, faults
}

func case49Restarts(c *Config) {
	c.Restart = restart.Config{SameRecord: -1, Exponential: restart.Exponential{InitialBackoff: 20 * time.Millisecond, MaxBackoff: time.Second, Multiplier: 2, Jitter: 0.1, Attempts: 5, ResetThreshold: 10 * time.Second}}
}

// From outside: not ready between the attempts, an exit code, the record and the first cause in the message, and nothing of
// the record's transaction in the output.
func TestC49_APoisonRecordSeenFromOutside(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "poisoned"
	plan, faults := poisonPlan(t, app, 50, 1<<40)
	cfg, o := b.instance("a")
	case49Restarts(&cfg)
	var starts atomic.Int64
	var delays []time.Duration
	unready := make(chan struct{})
	cfg.Listener = engine.Listener{
		AttemptStarted: func(engine.AttemptInfo) { starts.Add(1) },
		AttemptEnded: func(n int, _ error, _ fault.Recovery, d time.Duration) {
			delays = append(delays, d)
			if n == 5 { // the longest wait
				close(unready)
			}
		},
	}
	b.writes(0, 0, 60, nil)
	b.groups[app] = true
	done := make(chan error, 1)
	go func() { done <- Run(t.Context(), plan, cfg) }()
	<-unready
	code, body := o.get("/readyz")
	require.Equal(t, 503, code, body)
	require.Contains(t, body, "panic: ")
	err := <-done
	require.Equal(t, int(fault.BadRecord), ExitCode(err))
	require.ErrorContains(t, err, inTopic()+"-0@50")
	require.ErrorContains(t, err, "first cause: ")
	require.ErrorContains(t, err, "panic: the first cause")
	require.EqualValues(t, 6, starts.Load())
	require.EqualValues(t, 6, faults.Load())
	require.Len(t, delays, 6)
	for i := 1; i < 5; i++ {
		require.Greater(t, delays[i], delays[i-1], "waits grow: %v", delays)
	}
	out := b.output()
	require.Equal(t, upTo(0, len(out)), out)
	require.LessOrEqual(t, len(out), 50, "of the poison record's transaction nothing is visible")
}

func TestC49_ThreeFaultsAreThreeRestarts(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "heals"
	plan, _ := poisonPlan(t, app, 50, 3)
	cfg, o := b.instance("a")
	case49Restarts(&cfg)
	b.writes(0, 0, 60, nil)
	stop := b.start(plan, cfg)
	b.keepsUp(app)
	o.says("/readyz", 200, "processing")
	require.EqualValues(t, 3, sum(o.metrics("num_restarts")))
	require.NoError(t, stop())
	require.Equal(t, upTo(0, 60), b.output())
}

// A broker that answers is not enough: the instance is ready when it has its partitions.
func TestC12_NotReadyUntilTheGroupIsJoined(t *testing.T) {
	b := newBed(t)
	cfg, o := b.instance("a")
	tap, joined := new(testbed.Tap), make(chan struct{})
	asked := tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.JoinGroup}, Before: func(kmsg.Request) error { <-joined; return nil }})
	cfg.ClientOptions = []kgo.Opt{tap.Opt()}
	stop := b.start(countPlan(t, "joins"), cfg)
	require.Eventually(t, func() bool { return asked.Hits() > 0 }, 20*time.Second, 5*time.Millisecond)
	for range 20 {
		code, body := o.get("/readyz")
		require.Equal(t, 503, code, body)
		code, _ = o.get("/livez")
		require.Equal(t, 200, code)
		time.Sleep(5 * time.Millisecond)
	}
	close(joined)
	o.says("/readyz", 200, "processing")
	require.NoError(t, stop())
}

// Whatever an instance measures, topic and partition are the labels that there are many values of; keys of records are none.
func TestC48_NoLabelHasAsManyValuesAsThereAreKeys(t *testing.T) {
	b := newBed(t)
	const app = "labels"
	cfg, o := b.instance("a")
	stop := b.start(countPlan(t, app), cfg)
	b.produce(0, 2000) // 300 keys
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	_, body := o.get("/metrics")
	values := map[string]map[string]bool{}
	for _, m := range regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(body, -1) {
		if values[m[1]] == nil {
			values[m[1]] = map[string]bool{}
		}
		values[m[1]][m[2]] = true
	}
	require.Len(t, values["partition"], 4)
	for label, all := range values {
		require.LessOrEqual(t, len(all), 30, "label %s", label)
	}
	require.NotContains(t, body, "key-0")
	require.NoError(t, stop())
}
