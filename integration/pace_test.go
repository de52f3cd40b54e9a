//go:build unix

package integration

import (
	"sync"
	"time"
)

// pace spreads records over the steps of a plan. A step takes as long as the machine needs for it: were the records spread over
// a time alone, on a busy machine all of them would be processed before the last kills, and a process that is to be killed at its
// next checkpoint, or in a transaction, would have neither.
type pace struct {
	mu       sync.Mutex
	steps    []time.Duration // as planned
	step     int
	began    time.Time // the step
	from, to float64   // shares of all records: before the step, and at most in it
}

// slack is what a step takes beyond its moment: for the start, and the wait for a file.
const slack = 500 * time.Millisecond

// paceOf has a step for each moment, and a last one for the process that is not killed.
func paceOf(plan []moment) *pace {
	p := &pace{step: -1}
	for _, m := range plan {
		p.steps = append(p.steps, m.after+slack)
	}
	p.steps = append(p.steps, slack)
	p.next()
	return p
}

// over is the time that all steps take as planned.
func (p *pace) over() (sum time.Duration) {
	for _, d := range p.steps {
		sum += d
	}
	return sum
}

// next begins a step.
func (p *pace) next() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.step >= 0 {
		p.from = p.share()
	}
	p.step++
	p.began, p.to = time.Now(), p.to+p.steps[p.step].Seconds()/p.over().Seconds()
}

// due gives the share of the records that is to be written by now. Most of what a step has comes in the planned time, the rest
// more and more slowly but without an end; in the last step all of it comes.
func (p *pace) due() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.share()
}

func (p *pace) share() float64 {
	const most = 0.8
	last := p.step == len(p.steps)-1
	x := time.Since(p.began).Seconds() / p.steps[p.step].Seconds()
	switch {
	case last && x >= 1:
		return 1
	case x >= 1:
		x = 1 - (1-most)/x
	case !last:
		x *= most
	}
	return p.from + (p.to-p.from)*x
}

// evenly spreads records over a time from now on.
func evenly(over time.Duration) (due func() float64) {
	began := time.Now()
	return func() float64 { return min(1, time.Since(began).Seconds()/over.Seconds()) }
}

// soonAfter is a while after a kill, and where catching up has taken longer than that, what the end of the last transaction takes.
func soonAfter(kill time.Time) time.Time {
	until := kill.Add(2 * transactionTimeout)
	if moment := time.Now().Add(5 * time.Second); moment.After(until) {
		return moment
	}
	return until
}
