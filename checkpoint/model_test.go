package checkpoint

import (
	"maps"
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
	leaving   map[element.TaskID]bool
	atOnce    []element.TaskID              // must be left by the input at hand
	given     map[element.CheckpointID]bool // ids that were triggered
	last      element.CheckpointID          // the last id seen or known
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

	cause                              FailureReason // what the input at hand must lead to
	revoke                             bool          // the input at hand must lead to a checkpoint for those who leave
	refused                            Reason        // a request that comes after the final trigger, to be answered at once
	triggers, completes, losses, lefts int

	// What the outputs of the tasks come to: read says how far a task has read, written up to where its outputs are in the
	// open transaction, committed the S of the last completed checkpoint that covered it, holding that outputs are held
	// back.
	read, written, committed map[element.TaskID]int64
	holding                  map[element.TaskID]bool
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
		for task := range m.tasks {
			covered := m.committed[task]
			if slices.Contains(f.tasks, task) {
				covered = f.positions[task]
			}
			require.LessOrEqual(t, m.written[task], covered, "%v would commit outputs of %v without their position", a, task)
		}
	case Complete:
		ours(a.ID)
		require.True(t, f.permit && f.committed, "%v", a)
		require.Greater(t, a.ID, m.completed, "commits out of order")
		m.complete(a, rest[1:])
	case Left:
		m.judgeLeft(a)
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
		require.Empty(t, m.leaving, "drained before those who leave have left")
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
		if !m.given[a.ID] {
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
	if a.Reason == Revoke {
		require.NotEmpty(t, m.leaving, "%v for nobody", a)
	} else {
		require.Equal(t, m.final, a.Reason == Final)
	}
	require.Equal(t, m.revoke, a.Reason == Revoke, "%v", a)
	m.revoke = false
	if a.Reason != Final && a.Reason != Revoke {
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
	m.given[a.ID] = true
	m.finalDone = a.Reason == Final
	m.triggers++
}

// complete takes the checkpoint in flight for committed: those who stay go on, those who leave must follow at once.
func (m *model) complete(a Complete, rest []Action) {
	for task, s := range m.flight.positions {
		m.committed[task] = s
	}
	for task := range m.tasks {
		if !m.leaving[task] {
			m.holding[task], m.written[task] = false, m.read[task]
		}
	}
	if len(m.leaving) > 0 {
		require.NotEmpty(m.t, rest, "nobody has left")
		require.IsType(m.t, Left{}, rest[0], "Left follows directly behind Complete")
		require.Empty(m.t, m.atOnce)
		m.atOnce = slices.SortedFunc(maps.Keys(m.leaving), element.TaskID.Compare)
		for _, task := range m.atOnce {
			require.Contains(m.t, m.flight.tasks, task, "it leaves with a checkpoint that does not cover it")
		}
	}
	m.completed, m.flight = a.ID, nil
	m.ended, m.end = true, m.now
	m.completes++
}

// judgeLeft: exactly those leave that have to, and the transaction has nothing of theirs that is not committed with its
// position. They are gone: a later Trigger must not name them.
func (m *model) judgeLeft(a Left) {
	require.NotEmpty(m.t, a.Tasks)
	require.Equal(m.t, m.atOnce, a.Tasks)
	for _, task := range a.Tasks {
		require.LessOrEqual(m.t, m.written[task], m.committed[task], "%v leaves with outputs that nobody commits", task)
		delete(m.tasks, task)
		delete(m.leaving, task)
		// Whoever owns it next starts where it is committed.
		m.read[task], m.written[task], m.holding[task] = m.committed[task], m.committed[task], false
	}
	m.atOnce = nil
	m.lefts++
}

func (m *model) judgeFailure(a FailAttempt) {
	t, f := m.t, m.flight
	require.NotEqual(t, NoFailure, m.cause, "no reason to fail: %v", a)
	require.Equal(t, m.cause, a.Reason, "%v", a)
	require.Error(t, a.Err)
	require.Equal(t, a.Class, fault.RecoveryOf(a.Err))
	require.NotNil(t, f, "only a checkpoint fails: %v", a)
	require.Equal(t, f.id, a.ID)
	require.Equal(t, !f.permit, f.cancelled, "workers are told to stop, unless the Permit is out: %v", a)
	require.Equal(t, f.permit, a.Reason == FailureCommit, "only the outcome of the commit ends it after the permit: %v", a)
	m.losses++
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
	require.Empty(t, m.atOnce, "not left")
	require.False(t, m.revoke, "no checkpoint for those who leave")
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
	require.Empty(t, m.leaving, "somebody waits to leave and nothing is in flight")
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
