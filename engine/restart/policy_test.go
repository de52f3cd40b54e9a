package restart

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/topology"
)

// mid is a source of figures that makes jitter nothing.
func mid() float64 { return 0.5 }

// sequence gives its figures over and over.
func sequence(figures ...float64) func() float64 {
	i := 0
	return func() float64 { i++; return figures[(i-1)%len(figures)] }
}

func policy(t *testing.T, c Config, random func() float64) *Policy {
	t.Helper()
	p, err := New(c, random)
	require.NoError(t, err)
	return p
}

func badRecord(offset int64, cause error) error {
	return fmt.Errorf("task in-0: %w", &topology.RecordError{From: element.TopicPartition{Topic: "in"}, Offset: offset, Step: "count", Reason: cause})
}

// drive plays a script: "12s" a failure at that time, "12s!" one after having run since the second figure ("12s!5s").
// It gives the delays, with a verdict as its text.
func drive(p *Policy, script string) string {
	var out []string
	for _, f := range strings.Fields(script) {
		at, ran, runs := strings.Cut(f, "!")
		now, _ := time.ParseDuration(at)
		since, _ := time.ParseDuration(ran)
		p.Started(now)
		if runs {
			p.Running(since)
			p.Running(now) // only the first counts
		}
		delay, v := p.Failed(now, errors.New("at "+at))
		if v != nil {
			out = append(out, "["+v.Error()+"]")
			continue
		}
		out = append(out, delay.String())
	}
	return strings.Join(out, " ")
}

func TestStrategies(t *testing.T) {
	fast := Exponential{InitialBackoff: 100 * time.Millisecond, MaxBackoff: time.Second, Multiplier: 2, ResetThreshold: 10 * time.Second, Jitter: -1}
	few := fast
	few.Attempts = 3
	for name, c := range map[string]struct {
		cfg    Config
		script string
		want   string
	}{
		"none never restarts": {Config{Strategy: None}, "1s 2s",
			"[restart strategy none gives up after 0 restarts: it restarts nothing; cause: at 1s] [restart strategy none gives up after 0 restarts: it restarts nothing; first cause: at 1s; last cause: at 2s]"},
		"fixed delay: one restart by default": {Config{Strategy: FixedDelay}, "0s 5s",
			"1s [restart strategy fixed-delay gives up after 1 restart: 1 restart used up; first cause: at 0s; last cause: at 5s]"},
		"fixed delay counts over the whole life": {Config{Strategy: FixedDelay, Fixed: Fixed{Attempts: 2, Delay: 3 * time.Second}}, "0s 10h!1h 30h!11h 31h",
			"3s 3s [restart strategy fixed-delay gives up after 2 restarts: 2 restarts used up; first cause: at 0s; last cause: at 30h] [restart strategy fixed-delay gives up after 2 restarts: 2 restarts used up; first cause: at 0s; last cause: at 31h]"},
		"failure rate: one failure in a minute by default": {Config{Strategy: FailureRate}, "0s 61s 121s",
			"1s 1s [restart strategy failure-rate gives up after 2 restarts: more than 1 failure within 1m; first cause: at 61s; last cause: at 121s]"},
		"failure rate: exactly the interval is within": {Config{Strategy: FailureRate}, "0s 60s",
			"1s [restart strategy failure-rate gives up after 1 restart: more than 1 failure within 1m; first cause: at 0s; last cause: at 60s]"},
		"failure rate: the window slides": {Config{Strategy: FailureRate, Rate: Rate{MaxFailures: 2, Interval: 10 * time.Second, Delay: 20 * time.Millisecond}}, "0s 6s 11s 17s 20s 40s",
			"20ms 20ms 20ms 20ms [restart strategy failure-rate gives up after 4 restarts: more than 2 failures within 10s; first cause: at 0s; last cause: at 20s] [restart strategy failure-rate gives up after 4 restarts: more than 2 failures within 10s; first cause: at 0s; last cause: at 40s]"},
		"exponential: grows to the maximum, for ever":  {Config{Exponential: fast}, "0s 0s 1s 1s 2s 2s 3s", "100ms 200ms 400ms 800ms 1s 1s 1s"},
		"exponential: Flink's defaults":                {Config{}, "0s 0s 0s 0s", "1s 1.5s 2.25s 3.375s"},
		"exponential: falls back after a stable run":   {Config{Exponential: fast}, "0s 1s 2s 12s!2s 13s", "100ms 200ms 400ms 100ms 200ms"},
		"exponential: a shorter run is not stable":     {Config{Exponential: fast}, "0s 1s 11s!1001ms 12s", "100ms 200ms 400ms 800ms"},
		"exponential: a wait and a restore are no run": {Config{Exponential: fast}, "0s 1s 100s 200s!199s", "100ms 200ms 400ms 800ms"},
		"exponential: gives up": {Config{Exponential: few}, "0s 1s 2s 3s 99s!4s",
			"100ms 200ms 400ms [restart strategy exponential-delay gives up after 3 restarts: 3 restarts used up, and no attempt ran for 10s; first cause: at 0s; last cause: at 3s] [restart strategy exponential-delay gives up after 3 restarts: 3 restarts used up, and no attempt ran for 10s; first cause: at 0s; last cause: at 99s]"},
		"exponential: a stable run forgets the attempts and their cause": {Config{Exponential: few}, "0s 1s 2s 20s!5s 21s 22s 23s",
			"100ms 200ms 400ms 100ms 200ms 400ms [restart strategy exponential-delay gives up after 6 restarts: 3 restarts used up, and no attempt ran for 10s; first cause: at 20s; last cause: at 23s]"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, drive(policy(t, c.cfg, mid), c.script)) })
	}
}

func TestJitterStaysWithinTheBounds(t *testing.T) {
	e := Exponential{InitialBackoff: time.Second, MaxBackoff: 2 * time.Second, Multiplier: 1.5, Jitter: 0.5}
	require.Equal(t, "1s 1.5s 1s", drive(policy(t, Config{Exponential: e}, sequence(0, 0.5, 0)), "0s 0s 0s"))
	require.Equal(t, "1.25s 1.125s 2s", drive(policy(t, Config{Exponential: e}, sequence(0.75, 0.25, 0.9)), "0s 0s 0s"))
}

func c49() Config {
	return Config{Exponential: Exponential{InitialBackoff: 100 * time.Millisecond, MaxBackoff: 5 * time.Second, Multiplier: 2, ResetThreshold: 10 * time.Second, Attempts: 5}}
}

func TestC49_APoisonRecordIsGivenUpAndNamed(t *testing.T) {
	p := policy(t, c49(), sequence(0.01, 0.99, 0.4, 0.7))
	var now, before time.Duration
	var verdict *Verdict
	starts := 0
	for verdict == nil {
		starts++
		require.LessOrEqual(t, starts, 6)
		p.Started(now)
		now += 300 * time.Millisecond // restore
		p.Running(now)
		now += 50 * time.Millisecond
		cause := badRecord(50, &topology.PanicError{Value: "index out of range"})
		if starts > 1 {
			cause = badRecord(50, fmt.Errorf("follow-up %d", starts))
		}
		var delay time.Duration
		if delay, verdict = p.Failed(now, cause); verdict == nil {
			require.Greater(t, delay, before)
			require.LessOrEqual(t, delay, 5*time.Second)
			before = delay
		}
		now += delay
	}
	require.Equal(t, 6, starts)
	require.Equal(t, 5, p.Restarts())
	require.False(t, verdict.Poison)
	require.Equal(t, "restart strategy exponential-delay gives up after 5 restarts: 5 restarts used up, and no attempt ran for 10s; 6 attempts failed at record in-0@50; first cause: task in-0: topic in partition 0 offset 50: step count: panic: index out of range; last cause: task in-0: topic in partition 0 offset 50: step count: follow-up 6", verdict.Error())
	err := verdict.Fault()
	require.Equal(t, fault.BadRecord, fault.CodeOf(err))
	require.Equal(t, fault.Stop, fault.RecoveryOf(err))
	var panicked *topology.PanicError
	require.ErrorAs(t, err, &panicked)
	last := p.History()[5]
	require.Same(t, verdict, last.Verdict)
	require.Equal(t, Record{TopicPartition: element.TopicPartition{Topic: "in"}, Offset: 50, Step: "count"}, *last.Record)
}

func TestC49_AFaultEveryHalfMinuteIsNeverGivenUp(t *testing.T) {
	p := policy(t, c49(), mid)
	now := time.Duration(0)
	for range 20 {
		p.Started(now)
		p.Running(now + time.Second)
		now += 30 * time.Second
		delay, v := p.Failed(now, io.ErrUnexpectedEOF)
		require.Nil(t, v)
		require.Equal(t, 100*time.Millisecond, delay)
		now += delay
	}
	require.Equal(t, 20, p.Restarts())
	// The same faults give up when the attempts spend the time with restoring.
	p = policy(t, c49(), mid)
	var v *Verdict
	for n := range 6 {
		p.Started(now)
		now += 30 * time.Second
		p.Running(now)
		_, v = p.Failed(now+time.Second, io.ErrUnexpectedEOF)
		require.Equal(t, n == 5, v != nil)
	}
}

func TestC49_AFaultThatHealsAfterTheThirdAttempt(t *testing.T) {
	p := policy(t, c49(), mid)
	now := time.Duration(0)
	for range 3 {
		p.Started(now)
		delay, v := p.Failed(now, badRecord(50, io.ErrUnexpectedEOF))
		require.Nil(t, v)
		now += delay
	}
	p.Started(now)
	p.Running(now)
	require.Equal(t, 3, p.Restarts())
	p.Left(now+time.Minute, io.EOF, time.Second)
	h := p.History()
	require.Len(t, h, 4)
	require.Equal(t, Attempt{Number: 4, Started: now, Running: now, Ended: now + time.Minute, Cause: io.EOF, Another: true, Delay: time.Second}, h[3])
	require.True(t, h[2].Another && h[2].Counted, "the strategy counts what has failed, and only that")
}

// An attempt that ends because its partitions go is neither a failure nor the end of a time of health; the wait for others is no
// part of it.
func TestTheWaitForPartitionsIsNoSignOfHealth(t *testing.T) {
	for name, c := range map[string]struct {
		ran    time.Duration // of each of two attempts
		reason string        // of the verdict on the next failure
	}{"ran for a minute": {time.Minute, "2 restarts used up, and no attempt ran for 1h"}, "ran for long enough together": {40 * time.Minute, ""}} {
		for then, runs := range map[string]bool{"fails before it runs": false, "fails at once": true} {
			t.Run(name+", "+then, func(t *testing.T) {
				p := policy(t, Config{Exponential: Exponential{ResetThreshold: time.Hour, Attempts: 2}}, mid)
				now := time.Duration(0)
				for range 2 {
					p.Started(now)
					_, v := p.Failed(now, io.EOF)
					require.Nil(t, v)
				}
				for range 2 {
					p.Started(now)
					p.Running(now)
					now += c.ran
					p.Left(now, io.EOF, 0)
					now += 2 * time.Hour
				}
				p.Started(now)
				if runs {
					p.Running(now)
				}
				_, v := p.Failed(now, io.EOF)
				if c.reason == "" {
					require.Nil(t, v)
					return
				}
				require.NotNil(t, v)
				require.Equal(t, c.reason, v.Reason)
			})
		}
	}
}

// Two tasks have a poison record each, and either of them ends the attempt: neither fails in a row.
func TestTheGuardNamesARecordAmongOthersThatFail(t *testing.T) {
	p := policy(t, Config{SameRecord: 3}, mid)
	for i, offset := range []int64{50, 7, 7, 50} {
		_, v := p.Failed(time.Duration(i)*time.Hour, badRecord(offset, fmt.Errorf("no %d", i)))
		require.Nil(t, v)
		_, v = p.Failed(time.Duration(i)*time.Hour, io.EOF)
		require.Nil(t, v)
	}
	_, v := p.Failed(9*time.Hour, badRecord(50, errors.New("no 9")))
	require.NotNil(t, v)
	require.True(t, v.Poison)
	require.Equal(t, "record in-0@50 fails every time: 3 attempts failed at it, after 8 restarts; first cause: task in-0: topic in partition 0 offset 50: step count: no 0; last cause: task in-0: topic in partition 0 offset 50: step count: no 9", v.Error())
	require.Equal(t, fault.BadRecord, fault.CodeOf(v.Fault()))
}

func TestTheGuardCanBeOffAndIsBounded(t *testing.T) {
	p := policy(t, Config{SameRecord: -1}, mid)
	for i := range 200 {
		_, v := p.Failed(time.Duration(i), badRecord(50, io.EOF))
		require.Nil(t, v)
	}
	p = policy(t, Config{SameRecord: 2}, mid)
	for i := range 3 * guardRecords {
		_, v := p.Failed(time.Duration(i), badRecord(int64(i), io.EOF))
		require.Nil(t, v)
	}
	require.Len(t, p.guard.suspects, guardRecords)
	_, v := p.Failed(0, badRecord(0, io.EOF))
	require.Nil(t, v, "forgotten long ago")
	_, v = p.Failed(0, badRecord(3*guardRecords-1, io.EOF))
	require.NotNil(t, v)
	require.Len(t, p.History(), HistorySize)
	require.Equal(t, 3*guardRecords+2, p.History()[HistorySize-1].Number)
}

func TestTheExitCodeOfTheCauseSurvives(t *testing.T) {
	p := policy(t, Config{Strategy: None}, mid)
	_, v := p.Failed(0, fault.Restartf(fault.CheckpointDir, "disk full"))
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(v.Fault()))
	require.Equal(t, fault.Stop, fault.RecoveryOf(v.Fault()))
	_, v = policy(t, Config{Strategy: None}, mid).Failed(0, badRecord(1, io.EOF))
	require.Equal(t, fault.Failed, fault.CodeOf(v.Fault()), "one failure at a record proves nothing")
	require.ErrorIs(t, v.Fault(), io.EOF)
}

func TestTheGuardNamesATimer(t *testing.T) {
	fire := func(step, key string, at int64) error {
		return &topology.RecordError{Offset: -1, Step: step, Reason: io.EOF, Timer: &topology.TimerRef{Key: []byte(key), At: time.UnixMilli(at)}}
	}
	p := policy(t, Config{SameRecord: 2}, mid)
	for _, err := range []error{fire("s", "k", 1500), fire("s", "l", 1500), fire("t", "k", 1500), badRecord(-1, io.EOF), badRecord(0, io.EOF)} {
		_, v := p.Failed(0, err)
		require.Nil(t, v, err)
	}
	_, v := p.Failed(0, fire("s", "k", 1500))
	require.NotNil(t, v)
	require.Equal(t, `timer of step s, key "k", at 1970-01-01T00:00:01.5Z fails every time: 2 attempts failed at it, after 5 restarts; cause: step s: timer of key "k" at 1970-01-01T00:00:01.500Z: EOF`, v.Error())
}

func TestTheGuardNamesARecordOfATimer(t *testing.T) {
	fails := func(step, key string, at int64, emitted bool) error {
		return fault.Restartf(fault.BadRecord, "%w", &topology.RecordError{Offset: -1, Step: step, Reason: io.EOF, Timer: &topology.TimerRef{Key: []byte(key), At: time.UnixMilli(at)}, Emitted: emitted})
	}
	p := policy(t, Config{SameRecord: 2}, mid)
	for _, err := range []error{fails("s", "k", 1500, true), fails("s", "k", 1500, false), fails("s", "l", 1500, true), fails("t", "k", 1500, true)} {
		_, v := p.Failed(0, err)
		require.Nil(t, v, err)
	}
	_, v := p.Failed(0, fails("s", "k", 1500, true))
	require.NotNil(t, v)
	require.True(t, v.Poison)
	require.Equal(t, fault.BadRecord, fault.CodeOf(v.Fault()))
	require.Equal(t, fault.Stop, fault.RecoveryOf(v.Fault()))
	require.Equal(t, `record of a timer at step s, key "k", at 1970-01-01T00:00:01.5Z fails every time: 2 attempts failed at it, after 4 restarts; cause: step s: record of a timer, key "k", at 1970-01-01T00:00:01.500Z: EOF`, v.Error())
}

// A timer that is set anew in each attempt, or a record of one that has the time of the attempt, is recognised by step and
// key, unless attempts have run for so long in between that it is another one; one that has the same time is the same.
func TestTheGuardKnowsATimerThatHasAnotherTimeInEachAttempt(t *testing.T) {
	fails := func(key string, at int64, emitted bool) error {
		return fault.Restartf(fault.BadRecord, "%w", &topology.RecordError{Offset: -1, Step: "s", Reason: io.EOF, Timer: &topology.TimerRef{Key: []byte(key), At: time.UnixMilli(at)}, Emitted: emitted})
	}
	for _, emitted := range []bool{false, true} {
		p := policy(t, Config{SameRecord: 3}, mid)
		now := time.Duration(0)
		attempt := func(runs time.Duration, err error) *Verdict {
			p.Started(now)
			p.Running(now)
			now += runs
			_, v := p.Failed(now, err)
			now += time.Hour // a delay is no sign of health
			return v
		}
		require.Nil(t, attempt(time.Minute, fails("k", 1, emitted)))
		require.Nil(t, attempt(time.Minute, fails("k", 2, emitted)))
		require.Nil(t, attempt(time.Minute, fails("k", 3, !emitted)))
		require.Nil(t, attempt(anewWithin/2, io.EOF))
		p.Started(now)
		p.Running(now)
		now += anewWithin / 2
		p.Ended(now, nil)
		require.Nil(t, attempt(time.Minute, fails("k", 4, emitted)), "too late")
		require.Nil(t, attempt(time.Minute, fails("k", 5, emitted)))
		v := attempt(time.Minute, fails("k", 6, emitted))
		require.NotNil(t, v)
		require.Equal(t, 3, v.Failures)
		require.ErrorContains(t, v.First, "00:00:00.004Z")

		p = policy(t, Config{SameRecord: 3}, mid)
		require.Nil(t, attempt(24*time.Hour, fails("k", 1, emitted)))
		require.Nil(t, attempt(24*time.Hour, fails("k", 1, emitted)))
		require.NotNil(t, attempt(24*time.Hour, fails("k", 1, emitted)))
	}
}

func TestRecordsThatAreNone(t *testing.T) {
	for _, err := range []error{io.EOF, &topology.RecordError{Step: "timer", Offset: 3, Reason: io.EOF}, &topology.RecordError{From: element.TopicPartition{Topic: "in"}, Offset: -1, Reason: io.EOF}} {
		_, ok := RecordOf(err)
		require.False(t, ok)
	}
}
