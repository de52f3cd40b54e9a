package checkpoint

import (
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is what an observer knows who sees every input and every action of a coordinator, and nothing of its inside.
// It judges each action by the rules of doc.go, and after each input it asks whether an action is missing.
type model struct {
	t   *rapid.T
	c   *Coordinator
	cfg Config
	now time.Duration

	tasks     map[element.TaskID]bool // moved
	base      element.CheckpointID    // the last id known at the start
	last      element.CheckpointID    // the last id seen or known
	completed element.CheckpointID
	flight    *flight
	started   bool
	trigger   time.Duration // the last one, or the first task
	ended     bool
	end       time.Duration
	wanted    Reason
	final     bool // requested
	finalDone bool // triggered
	dead      bool

	cause                       FailureReason // what the input at hand must lead to
	refused                     Reason        // a request that comes after the final trigger, to be answered at once
	triggers, completes, losses int
}

// flight is the observer's view of the checkpoint in flight.
type flight struct {
	id                                      element.CheckpointID
	triggered                               time.Duration
	tasks                                   []element.TaskID
	moved                                   map[element.TaskID]bool
	positions                               map[element.TaskID]int64
	barrier, acked                          map[element.TaskID]bool
	flushAsked, persistAsked, rootAsked     bool
	flushed, rootWritten, permit, committed bool
	cancelled                               bool
}

func (f *flight) all(m map[element.TaskID]bool) bool { return len(m) == len(f.tasks) }

// input runs one input and judges what it gives. note tells the model what the input means, with the clock advanced
// and the deadline checked.
func (m *model) input(now time.Duration, call func() []Action, note func()) []Action {
	m.now = max(m.now, now)
	wasDead := m.dead
	m.cause = NoFailure
	if f := m.flight; f != nil && !f.permit && m.now >= f.triggered+m.cfg.Timeout {
		m.cause = FailureTimeout
	} else if !wasDead {
		note()
	}
	actions := call()
	if wasDead {
		require.Empty(m.t, actions, "a dead coordinator acts")
		return nil
	}
	for i, a := range actions {
		require.False(m.t, m.dead, "an action after the end: %v", actions)
		m.judge(a, actions[i:])
	}
	m.missing()
	return actions
}

func (m *model) judge(a Action, rest []Action) {
	t, f := m.t, m.flight
	ours := func(id element.CheckpointID) {
		require.NotNil(t, f, "%v with none in flight", a)
		require.Equal(t, f.id, id, "%v", a)
	}
	switch a := a.(type) {
	case Trigger:
		m.judgeTrigger(a)
	case Flush:
		ours(a.ID)
		require.True(t, f.all(f.barrier) && !f.flushAsked, "%v", a)
		f.flushAsked = true
	case Persist:
		ours(a.ID)
		require.True(t, f.all(f.barrier) && !f.persistAsked, "%v", a)
		f.persistAsked = true
	case WriteRoot:
		ours(a.ID)
		require.True(t, f.flushed && f.all(f.acked) && !f.rootAsked, "%v", a)
		require.Len(t, a.Tasks, len(f.tasks))
		for i, tp := range a.Tasks {
			require.Equal(t, f.tasks[i], tp.Task)
			require.Equal(t, f.positions[tp.Task], tp.Positions[0].Offset, "%v", a)
		}
		f.rootAsked = true
	case CommitAction:
		ours(a.ID)
		require.True(t, f.all(f.barrier) && f.all(f.acked) && f.flushed && f.rootWritten && !f.permit, "%v", a)
		require.True(t, a.Permit.Allows(a.ID) && a.Permit.ID() == a.ID)
		require.Less(t, m.now, f.triggered+m.cfg.Timeout, "a permit after the deadline")
		f.permit = true
	case Complete:
		ours(a.ID)
		require.True(t, f.permit && f.committed, "%v", a)
		require.Greater(t, a.ID, m.completed, "commits out of order")
		m.completed, m.flight = a.ID, nil
		m.ended, m.end = true, m.now
		m.completes++
	case Cancel:
		ours(a.ID)
		require.False(t, f.permit, "%v after the permit", a)
		require.Len(t, rest, 2, "Cancel without FailAttempt")
		f.cancelled = true
	case FailAttempt:
		m.judgeFailure(a)
	case Drained:
		require.Nil(t, f, "drained with one in flight")
		require.True(t, m.final && (m.finalDone || !m.anyMoved()), "%v", a)
		require.Equal(t, Periodic, m.wanted, "a request was not answered before the end")
		m.dead = true
	case Skipped:
		if m.refused == a.Reason {
			m.refused = Periodic
			return
		}
		require.Nil(t, f, "%v with one in flight", a)
		require.True(t, a.Reason == m.wanted && (m.finalDone || !m.anyMoved()), "%v", a)
		m.wanted = Periodic
	case Ignored:
		require.Equal(t, NoFailure, m.cause, "%v was to count", a)
		require.NotEqual(t, Success, a.Answer)
		if a.ID <= m.base || a.ID > m.last {
			require.Equal(t, Unknown, a.Answer, "%v", a)
		}
	default:
		t.Fatalf("unknown action %v", a)
	}
}

func (m *model) judgeTrigger(a Trigger) {
	t := m.t
	require.Nil(t, m.flight, "two in flight: %v", a)
	require.True(t, m.anyMoved(), "nothing moved: %v", a)
	require.False(t, m.finalDone, "a trigger after the final one: %v", a)
	require.Equal(t, m.last+1, a.ID, "ids grow by one")
	require.Equal(t, m.final, a.Reason == Final)
	if a.Reason != Final {
		require.Equal(t, m.wanted, a.Reason)
		require.GreaterOrEqual(t, m.now, m.due())
	}
	f := &flight{
		id: a.ID, triggered: m.now, tasks: a.Tasks, moved: map[element.TaskID]bool{}, positions: map[element.TaskID]int64{},
		barrier: map[element.TaskID]bool{}, acked: map[element.TaskID]bool{},
	}
	require.True(t, slices.IsSortedFunc(a.Tasks, element.TaskID.Compare))
	require.Len(t, a.Tasks, len(m.tasks))
	for _, task := range a.Tasks {
		moved, ok := m.tasks[task]
		require.True(t, ok, "%v names a task that is not here", a)
		f.moved[task] = moved
		m.tasks[task] = false
	}
	m.flight, m.last, m.trigger, m.wanted = f, a.ID, m.now, Periodic
	m.finalDone = a.Reason == Final
	m.triggers++
}

func (m *model) judgeFailure(a FailAttempt) {
	t, f := m.t, m.flight
	require.NotEqual(t, NoFailure, m.cause, "no reason to fail: %v", a)
	require.Equal(t, m.cause, a.Reason, "%v", a)
	require.Error(t, a.Err)
	require.Equal(t, a.Class, fault.RecoveryOf(a.Err))
	if f == nil {
		require.Zero(t, a.ID)
		require.Equal(t, FailureTaskRemoved, a.Reason)
	} else {
		require.Equal(t, f.id, a.ID)
		require.Equal(t, !f.permit, f.cancelled, "workers are told to stop, unless the Permit is out: %v", a)
		require.Equal(t, f.permit, a.Reason == FailureCommit, "only the outcome of the commit ends it after the permit: %v", a)
		m.losses++
	}
	m.flight, m.dead = nil, true
}

// missing asks for what the input should have led to.
func (m *model) missing() {
	t := m.t
	require.Equal(t, m.dead, m.c.Dead())
	require.Equal(t, m.last, m.c.LastID())
	wake, ok := m.c.NextWake(m.now)
	if m.dead {
		require.False(t, ok)
		return
	}
	require.Equal(t, Periodic, m.refused, "a request was not answered")
	require.Equal(t, NoFailure, m.cause, "the failure did not end the attempt")
	id, permitted, flying := m.c.InFlight()
	if f := m.flight; f != nil {
		require.True(t, flying && id == f.id && permitted == f.permit)
		require.Equal(t, f.all(f.barrier), f.flushAsked && f.persistAsked)
		require.Equal(t, f.flushed && f.all(f.acked), f.rootAsked)
		require.Equal(t, f.rootWritten, f.permit)
		require.False(t, f.committed)
		require.Equal(t, !f.permit, ok, "the deadline counts until the permit")
		if ok {
			require.Equal(t, f.triggered+m.cfg.Timeout-m.now, wake)
		}
		return
	}
	require.False(t, flying)
	require.False(t, m.final, "the final checkpoint has neither begun nor ended")
	require.Equal(t, m.anyMoved(), ok)
	if ok {
		require.Less(t, m.now, m.due(), "a checkpoint is due and was not triggered")
		require.Equal(t, m.due()-m.now, wake)
	} else {
		require.Equal(t, Periodic, m.wanted, "a request was not answered")
	}
}

func (m *model) anyMoved() bool {
	for _, moved := range m.tasks {
		if moved {
			return true
		}
	}
	return false
}

func (m *model) due() time.Duration {
	due := m.trigger + m.cfg.Interval
	if m.wanted != Periodic {
		due = 0
	}
	if m.ended {
		due = max(due, m.end+m.cfg.MinPause)
	}
	return due
}
