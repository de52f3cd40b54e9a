//go:build unix

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/processor"
	"github.com/millweir/millweir/topology"
)

const (
	pressureTasks   = 2    // partitions of the input, and subtasks behind the exchange
	channelRecords  = 1024 // what one channel takes before it gives no credit
	channelOverhang = 512  // what a sender had begun when it still had credit, and what it sends before it sees its barrier
	recordBytes     = 512  // more than a record of these tests is estimated at
)

// pressed are the checkpoints of a job whose slow step has full channels before it.
type pressed struct {
	stats  []checkpoint.CheckpointStats
	each   time.Duration // of a record in the slow step
	rest   time.Duration // of a record in the rest of the job, as if one task did all of it
	record time.Duration // of a record in the whole job with the slow step, while the checkpoints were measured
}

// took gives a percentile of the checkpoints' durations.
func (p pressed) took(percent int) time.Duration {
	var all []time.Duration
	for _, s := range p.stats {
		all = append(all, s.EndToEnd)
	}
	slices.Sort(all)
	return all[(len(all)*percent+99)/100-1]
}

func (p pressed) buffered(percent int) (records, bytes int64) {
	var rs, bs []int64
	for _, s := range p.stats {
		rs, bs = append(rs, s.Buffered), append(bs, s.BufferedBytes)
	}
	slices.Sort(rs)
	slices.Sort(bs)
	i := (len(rs)*percent+99)/100 - 1
	return rs[i], bs[i]
}

// inside runs the job with one exchange in this process.
func (e *exchangeSite) inside(x exchangeSettings, heard func(checkpoint.CheckpointStats)) *inside {
	e.t.Helper()
	b := topology.New(e.app)
	countByGroupWith(b, e.in, e.out, x)
	plan, err := b.Plan()
	require.NoError(e.t, err)
	return e.insideJob(plan, processor.Config{Brokers: e.brokers, DataDir: e.dir, Interval: e.every, CheckpointTimeout: 50 * time.Second,
		Unaligned: x.Unaligned, AlignedTimeout: x.Timeout}, func(c *processor.Config) {
		before := c.Listener.CheckpointCompleted
		c.Listener.CheckpointCompleted = func(s checkpoint.CheckpointStats) {
			before(s)
			heard(s)
		}
	})
}

// rest measures how long a record takes in the job without the slow step.
func (e *exchangeSite) rest(from, tickets int) time.Duration {
	e.tickets(from, tickets)
	job := e.inside(exchangeSettings{Parallelism: pressureTasks}, func(checkpoint.CheckpointStats) {})
	job.until(30*time.Second, func() bool { return strings.Contains(job.log.String(), "msg=processing") }, "it works")
	began := time.Now()
	job.caughtUp()
	took := time.Since(began)
	job.stop()
	return took / time.Duration(tickets)
}

// press measures n checkpoints of a job whose step behind the exchange takes so long for each record, and then has the output
// judged. The first 2 checkpoints are left out: the channels fill up meanwhile.
func press(e *exchangeSite, p pressed, unaligned bool, fast, n int) pressed {
	t := e.t
	most := int(60 * time.Second / p.each * pressureTasks)
	e.tickets(fast, most)
	heard := make(chan checkpoint.CheckpointStats, 1000)
	var began time.Time
	var waiting int64
	job := e.inside(exchangeSettings{Parallelism: pressureTasks, Unaligned: unaligned, Slow: p.each}, func(s checkpoint.CheckpointStats) { heard <- s })
	for i := 0; len(p.stats) < n; i++ {
		select {
		case s := <-heard:
			if i >= 2 {
				p.stats = append(p.stats, s)
			} else {
				began = time.Now()
				_, waiting = e.offsets()
			}
		case <-job.done:
			require.Fail(t, "the service has ended", "%v", job.err)
		case <-time.After(30 * time.Second):
			require.Fail(t, "no checkpoint completes")
		}
	}
	_, behind := e.offsets()
	require.Positive(t, behind, "the input ran out")
	p.record = time.Since(began) / time.Duration(waiting-behind)
	require.Empty(t, job.failed())
	job.stop()
	job = e.inside(exchangeSettings{Parallelism: pressureTasks}, func(checkpoint.CheckpointStats) {})
	job.until(30*time.Second, func() bool { _, behind := e.offsets(); return behind == 0 }, "the group's lag is 0")
	job.stop()
	e.counted(fast + most)
	return p
}

// pressure compares aligned and unaligned checkpoints under back-pressure. What an unaligned one holds, and what waits behind
// the barriers of an aligned one, is bounded by what the channels can hold.
func pressure(t *testing.T, site func(t *testing.T) *site) {
	const fast = 50_000 // twice, since the first time a broker is cold
	one, two := site(t).exchanges("by-group"), site(t).exchanges("by-group")
	one.every, two.every = 100*time.Millisecond, 100*time.Millisecond
	var p pressed
	p.rest = min(one.rest(0, fast), one.rest(fast, fast))
	// So much slower that both subtasks together are 20 times as slow as the rest, within what can be slept and waited for.
	p.each = min(max(pressureTasks*20*p.rest, 150*time.Microsecond), time.Millisecond)
	aligned := press(one, p, false, 2*fast, 20)
	unaligned := press(two, p, true, 0, 30)
	for name, p := range map[string]pressed{"aligned": aligned, "unaligned": unaligned} {
		records, bytes := p.buffered(50)
		most, mostBytes := p.buffered(100)
		t.Logf("%-9s %d checkpoints: median %v, p99 %v; records buffered: median %d (%d bytes), most %d (%d bytes); %v per record in the slow step, %v in the rest, %v measured",
			name, len(p.stats), p.took(50).Round(time.Millisecond), p.took(99).Round(time.Millisecond), records, bytes, most, mostBytes, p.each, p.rest, p.record)
		require.GreaterOrEqual(t, p.record, 20*p.rest, "%s: the slow step is not 20 times slower than the rest: there is no back-pressure to speak of", name)
	}
	t.Logf("ratio of the p99: %.2f", float64(unaligned.took(99))/float64(aligned.took(99)))
	const channels = pressureTasks * pressureTasks
	for i, s := range append(unaligned.stats, aligned.stats...) {
		at := fmt.Sprintf("%+v", s)
		require.Equal(t, i < len(unaligned.stats), s.Unaligned, at)
		require.LessOrEqual(t, s.Buffered, int64(channels*(channelRecords+channelOverhang)), at)
		require.LessOrEqual(t, s.BufferedBytes, s.Buffered*recordBytes, at)
	}
	records, _ := unaligned.buffered(50)
	require.Greater(t, records, int64(channels*channelRecords/2), "the channels were not full")
	most, _ := aligned.buffered(100)
	require.Positive(t, most, "no input was set aside with records behind its barrier")
	require.LessOrEqual(t, unaligned.took(99), aligned.took(99)/2)
}

func TestUnalignedCheckpointsUnderPressure(t *testing.T) {
	t.Parallel()
	pressure(t, func(t *testing.T) *site { return embeddedSite(t, pressureTasks) })
}

func TestRealUnalignedCheckpointsUnderPressure(t *testing.T) {
	pressure(t, func(t *testing.T) *site { return realSite(t, pressureTasks) })
}
