package checkpoint

import (
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/stretchr/testify/require"
)

// The rules of doc.go as the model knows them: what is due, what a failure leads to, how tasks leave.

func (m *model) anyWaits() bool {
	for _, p := range m.tasks {
		if p.leaving && p.with == 0 {
			return true
		}
	}
	return false
}

// work: somebody has moved or waits to leave, or a savepoint is wanted of somebody.
func (m *model) work() bool {
	for _, p := range m.tasks {
		if !p.out() && (p.moved || p.leaving || len(m.waiting) > 0) {
			return true
		}
	}
	return false
}

func (m *model) due() time.Duration {
	tick, pause := m.trigger+m.cfg.Interval, time.Duration(0)
	if m.ended {
		pause = m.end + m.cfg.MinPause
	}
	due := max(tick, pause)
	urgent := m.final || m.anyWaits()
	switch {
	case urgent && m.repeats >= 2:
		due, pause = tick, m.now
	case urgent:
		due, pause = m.now, m.now
	case m.wanted != Periodic || m.hurry:
		due = max(m.now, pause)
	}
	if !m.ended && !urgent {
		pause = m.now
	}
	if tt := m.cfg.TransactionTimeout; m.failures > 0 && tt > 0 && len(m.flights) == 0 {
		due = min(due, max(pause, m.opened+tt-m.cfg.Timeout))
	}
	return due
}

// use: from now on something may be in the transaction.
func (m *model) use() {
	if m.idle {
		m.idle, m.opened = false, m.now
	}
}

// fails says what the failure of a checkpoint must lead to.
func (m *model) fails(f *flight, reason FailureReason, class fault.Recovery) {
	i := slices.Index(m.flights, f)
	tail := slices.Clone(m.flights[i:])
	whole := class == fault.Restart && (reason == FailureTimeout || reason == FailureDeclined || reason == FailureRoot)
	few := m.cfg.TolerableFailures == Unlimited || m.failures < m.cfg.TolerableFailures
	next := m.now
	if f.reason != Final && f.reason != Revoke {
		next += m.cfg.MinPause
	}
	lasts := i > 0 || m.cfg.TransactionTimeout == 0 || next+m.cfg.Timeout <= m.opened+m.cfg.TransactionTimeout
	if whole && few && lasts {
		m.gives(tail)
		return
	}
	end := &expected{f.id, reason, class}
	switch {
	case i > 0 && m.flights[0].permit:
		m.doom, tail = end, slices.Clone(m.flights[1:])
	default:
		m.must, tail = end, m.flights
	}
	var waiting []string
	for _, g := range tail {
		if !g.permit {
			m.cancel = append(m.cancel, g.id)
		}
		m.abandoned[g.id] = true
		waiting = append(waiting, g.savepoints...)
	}
	m.waiting = append(waiting, m.waiting...)
	m.losses += len(tail)
	m.flights = m.flights[:len(m.flights)-len(tail)]
}

// gives is an Abandon: what moved has still to be committed, savepoints wait again, what was held back behind the barriers
// flows on, and who was to leave asks again.
func (m *model) gives(tail []*flight) {
	m.flights = m.flights[:len(m.flights)-len(tail)]
	m.failures++
	m.abandons += len(tail)
	m.ended, m.end = true, m.now
	again := false
	var waiting []string
	for _, g := range tail {
		m.abandon = append(m.abandon, g.id)
		m.abandoned[g.id] = true
		waiting = append(waiting, g.savepoints...)
		if g.reason == Final {
			m.finalDone, again = false, true
		}
		for _, task := range g.tasks {
			p := m.tasks[task]
			if p == nil || !g.moved[task] {
				continue
			}
			if p.out() {
				p.behind = true
			} else {
				p.moved = true
			}
		}
	}
	m.waiting = append(waiting, m.waiting...)
	for task, p := range m.tasks {
		// What was held back behind them follows what is before: into the transaction, or behind the newest that is left. A
		// task that joined behind that has no mark of it yet.
		i := slices.IndexFunc(p.marks, func(k mark) bool { return slices.Contains(m.abandon, k.id) })
		if i < 0 {
			continue
		}
		at := p.marks[i].at
		p.marks = p.marks[:i]
		if f := m.newest(); f != nil && !f.covers(task) && i == 0 {
			p.marks = append(p.marks, mark{f.id, at})
		}
	}
	if m.leavesAgain() || again {
		m.repeats++
	}
}

func (m *model) leavesAgain() bool {
	var open, atOnce []element.TaskID
	moved := false
	for task, p := range m.tasks {
		switch f := m.newest(); {
		case !p.out() || m.flight(p.with) != nil:
		case f == nil:
			open = append(open, task)
			moved = moved || p.behind
		case f.covers(task):
			p.with = f.id
		default:
			atOnce = append(atOnce, task)
		}
	}
	for _, task := range open {
		if p := m.tasks[task]; moved {
			p.with, p.moved, p.behind = 0, p.behind, false
		} else {
			atOnce = append(atOnce, task)
		}
	}
	m.leftAtOnce(atOnce)
	return moved
}

// leftAtOnce takes tasks out, for whom Left has to come in this very call. The transaction has nothing of theirs that is
// not committed with its position.
func (m *model) leftAtOnce(tasks []element.TaskID) {
	if len(tasks) == 0 {
		return
	}
	for _, task := range tasks {
		p := m.tasks[task]
		require.LessOrEqual(m.t, p.written(), p.committed, "%v leaves with outputs that nobody commits", task)
		m.gone[task] = p.committed
		delete(m.tasks, task)
	}
	slices.SortFunc(tasks, element.TaskID.Compare)
	m.lefts = append(m.lefts, tasks)
}

// leaves is what a Leave must lead to.
func (m *model) leaves(tasks []element.TaskID) {
	var going, atOnce []element.TaskID
	f := m.newest()
	for _, task := range tasks {
		p := m.tasks[task]
		if p == nil || p.leaving || slices.Contains(going, task) {
			continue
		}
		going = append(going, task)
		m.revoke = m.revoke || f == nil && p.moved
	}
	for _, task := range going {
		p := m.tasks[task]
		switch {
		case f != nil && !f.covers(task), f == nil && !m.revoke:
			atOnce = append(atOnce, task)
		case f == nil:
			p.leaving = true
		default:
			p.leaving, p.with, p.behind, p.moved = true, f.id, p.moved, false
		}
	}
	m.leftAtOnce(atOnce)
}

func (m *model) unserved() []string {
	var ids []string
	for _, f := range m.flights {
		ids = append(ids, f.savepoints...)
	}
	return append(ids, m.waiting...)
}
