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
// It judges each action by the rules of doc.go (rules_test.go), and after each input it asks whether an action is missing.
type model struct {
	t   *rapid.T
	c   *Coordinator
	cfg Config
	max int // in flight
	now time.Duration

	tasks     map[element.TaskID]*person
	given     map[element.CheckpointID]bool // ids that were triggered
	abandoned map[element.CheckpointID]bool
	last      element.CheckpointID // the last id seen or known
	completed element.CheckpointID
	flights   []*flight
	begun     bool
	opened    time.Duration // the open transaction is not older
	idle      bool          // nothing is in it
	started   bool
	trigger   time.Duration // the last one, or the first task
	ended     bool
	end       time.Duration
	failures  int // in a row
	repeats   int // of these while somebody waited
	wanted    Reason
	waiting   []string // savepoints that no flight has
	hurry     bool
	served    map[string]bool
	final     bool // requested
	finalDone bool // triggered
	dead      bool
	doom      *expected // the attempt ends with that once the commit has its outcome

	// What the input at hand must lead to.
	must    *expected
	abandon []element.CheckpointID
	cancel  []element.CheckpointID
	lefts   [][]element.TaskID // each in one action
	revoke  bool               // a checkpoint for those who leave, in the same call
	refused Reason             // a request that comes after the final trigger

	triggers, completes, abandons, losses int
	gone                                  map[element.TaskID]int64 // where those who have left were committed
}

// expected is an end of the attempt that has to come.
type expected struct {
	id     element.CheckpointID
	reason FailureReason
	class  fault.Recovery
}

// person is a task. What its outputs come to: read says how far it has read; marks are the barriers behind which it holds
// back; committed is the S of the last completed checkpoint that covered it.
type person struct {
	moved, behind   bool
	leaving         bool
	with            element.CheckpointID
	read, committed int64
	barrier         int64 // where the last barrier stood
	marks           []mark
}

type mark struct {
	id element.CheckpointID
	at int64
}

// written is up to where its outputs are in the open transaction.
func (p *person) written() int64 {
	if len(p.marks) > 0 {
		return p.marks[0].at
	}
	return p.read
}

func (p *person) out() bool { return p.leaving && p.with != 0 }

// flight is the observer's view of a checkpoint in flight.
type flight struct {
	id                                      element.CheckpointID
	reason                                  Reason
	triggered                               time.Duration
	tasks                                   []element.TaskID
	moved                                   map[element.TaskID]bool
	positions                               map[element.TaskID]int64
	barrier, acked                          map[element.TaskID]bool
	savepoints                              []string
	flushAsked, persistAsked, rootAsked     bool
	flushed, rootWritten, permit, committed bool
}

func (f *flight) all(m map[element.TaskID]bool) bool { return len(m) == len(f.tasks) }

func (f *flight) covers(t element.TaskID) bool { return f != nil && slices.Contains(f.tasks, t) }

func (m *model) flight(id element.CheckpointID) *flight {
	for _, f := range m.flights {
		if f.id == id {
			return f
		}
	}
	return nil
}

func (m *model) newest() *flight {
	if len(m.flights) == 0 {
		return nil
	}
	return m.flights[len(m.flights)-1]
}

// input runs one input and judges what it gives. note tells the model what the input means, with the clock advanced
// and the deadlines checked.
func (m *model) input(now time.Duration, call func() []Action, note func()) []Action {
	m.now = max(m.now, now)
	if !m.begun {
		m.begun, m.opened, m.idle = true, m.now, true
	}
	wasDead := m.dead
	if !wasDead {
		m.expire()
		if m.must == nil {
			note()
		}
	}
	actions := call()
	if wasDead {
		require.Empty(m.t, actions, "a dead coordinator acts")
		return nil
	}
	for i, a := range actions {
		require.False(m.t, m.dead, "an action after the end: %v", actions)
		m.judge(a, actions[i+1:])
	}
	m.missing()
	return actions
}

// expire lets a deadline that has passed take effect. The oldest one decides.
func (m *model) expire() {
	for _, f := range m.flights {
		if !f.permit && m.now >= f.triggered+m.cfg.Timeout {
			m.fails(f, FailureTimeout, fault.Restart)
			return
		}
	}
}

func (m *model) judge(a Action, rest []Action) {
	t := m.t
	ours := func(id element.CheckpointID) *flight {
		f := m.flight(id)
		require.NotNil(t, f, "%v is not in flight", a)
		return f
	}
	oldest := func(id element.CheckpointID) *flight {
		f := ours(id)
		require.Same(t, m.flights[0], f, "%v, and an older one is in flight", a)
		return f
	}
	switch a := a.(type) {
	case Trigger:
		m.judgeTrigger(a)
	case Flush:
		f := oldest(a.ID)
		require.True(t, f.all(f.barrier) && !f.flushAsked, "%v", a)
		f.flushAsked = true
	case Persist:
		f := ours(a.ID)
		require.True(t, f.all(f.barrier) && !f.persistAsked, "%v", a)
		f.persistAsked = true
	case WriteRoot:
		f := oldest(a.ID)
		require.True(t, f.flushed && f.all(f.acked) && !f.rootAsked, "%v", a)
		require.Len(t, a.Tasks, len(f.tasks))
		for i, tp := range a.Tasks {
			require.Equal(t, f.tasks[i], tp.Task)
			require.Equal(t, f.positions[tp.Task], tp.Positions[0].Offset, "%v", a)
		}
		f.rootAsked = true
	case CommitAction:
		m.judgePermit(a, oldest(a.ID))
	case Complete:
		f := oldest(a.ID)
		require.True(t, f.permit && f.committed, "%v", a)
		require.Greater(t, a.ID, m.completed, "commits out of order")
		m.complete(f, rest)
	case Left:
		m.judgeLeft(a)
	case Abandon:
		m.judgeAbandon(a)
	case Cancel:
		require.NotEmpty(t, m.cancel, "%v for nothing", a)
		require.Equal(t, m.cancel[0], a.ID)
		m.cancel = m.cancel[1:]
	case FailAttempt:
		m.judgeFailure(a)
	case Drained:
		m.judgeDrained(a)
	case Skipped:
		if m.refused == a.Reason {
			m.refused = Periodic
			return
		}
		require.Empty(t, m.flights, "%v with one in flight", a)
		require.True(t, a.Reason == m.wanted && (m.finalDone || !m.work()), "%v", a)
		m.wanted = Periodic
	case Ignored:
		require.Nil(t, m.must, "%v was to count", a)
		require.NotEqual(t, Success, a.Answer)
		if !m.given[a.ID] {
			require.Equal(t, Unknown, a.Answer, "%v", a)
		}
		if m.abandoned[a.ID] {
			require.Equal(t, Discarded, a.Answer, "%v", a)
		}
	default:
		t.Fatalf("unknown action %v", a)
	}
}

func (m *model) judgeTrigger(a Trigger) {
	t := m.t
	require.Less(t, len(m.flights), m.max, "too many in flight: %v", a)
	require.Nil(t, m.doom, "%v before the end", a)
	require.True(t, m.work(), "nothing to do: %v", a)
	require.False(t, m.finalDone, "a trigger after the final one: %v", a)
	require.Equal(t, m.last+1, a.ID, "ids grow by one")
	switch {
	case m.revoke:
		require.Equal(t, Revoke, a.Reason, "%v", a)
	default:
		require.GreaterOrEqual(t, m.now, m.due(), "%v", a)
		want := m.wanted
		if len(m.waiting) > 0 {
			want = max(want, Manual)
		}
		if m.anyWaits() {
			want = Revoke
		}
		if m.final {
			want = Final
		}
		require.Equal(t, want, a.Reason)
	}
	f := &flight{
		id: a.ID, reason: a.Reason, triggered: m.now, tasks: a.Tasks, moved: map[element.TaskID]bool{}, positions: map[element.TaskID]int64{},
		barrier: map[element.TaskID]bool{}, acked: map[element.TaskID]bool{}, savepoints: m.waiting,
	}
	require.Equal(t, m.waiting, a.Savepoint, "%v", a)
	require.True(t, slices.IsSortedFunc(a.Tasks, element.TaskID.Compare))
	for _, task := range a.Tasks {
		p := m.tasks[task]
		require.NotNil(t, p, "%v names a task that is not here", a)
		require.False(t, p.out(), "%v names a task that leaves with %d", a, p.with)
		f.moved[task] = p.moved
		if p.moved = false; p.leaving {
			p.with = a.ID
		}
	}
	for task, p := range m.tasks {
		require.True(t, p.out() || f.covers(task), "%v misses %v", a, task)
	}
	m.use()
	m.flights = append(m.flights, f)
	m.last, m.trigger, m.wanted, m.waiting, m.hurry, m.revoke = a.ID, m.now, Periodic, nil, false, false
	m.given[a.ID] = true
	m.finalDone = a.Reason == Final
	m.triggers++
}

// judgePermit: everything is there, in time, the predecessor is complete, and what the transaction holds of each task ends
// at the position that is committed with it.
func (m *model) judgePermit(a CommitAction, f *flight) {
	t := m.t
	require.True(t, f.all(f.barrier) && f.all(f.acked) && f.flushed && f.rootWritten && !f.permit, "%v", a)
	require.True(t, a.Permit.Allows(a.ID) && a.Permit.ID() == a.ID)
	require.Less(t, m.now, f.triggered+m.cfg.Timeout, "a permit after the deadline")
	f.permit = true
	for task, p := range m.tasks {
		covered := p.committed
		if f.covers(task) {
			covered = f.positions[task]
		}
		require.LessOrEqual(t, p.written(), covered, "%v would commit outputs of %v without their position", a, task)
	}
}

// complete takes the oldest checkpoint for committed: those who stay go on, those who leave with it must follow at once.
func (m *model) complete(f *flight, rest []Action) {
	var leave []element.TaskID
	for task, p := range m.tasks {
		if f.covers(task) {
			p.committed = f.positions[task]
		}
		if p.out() && p.with == f.id {
			leave = append(leave, task)
			continue
		}
		if len(p.marks) > 0 && p.marks[0].id == f.id {
			p.marks = p.marks[1:]
		}
	}
	if m.leftAtOnce(leave); len(leave) > 0 {
		require.NotEmpty(m.t, rest, "nobody has left")
		require.IsType(m.t, Left{}, rest[0], "Left follows directly behind Complete")
	}
	for _, s := range f.savepoints {
		m.served[s] = true
	}
	m.flights = m.flights[1:]
	m.completed, m.opened, m.failures, m.repeats = f.id, m.now, 0, 0
	m.idle = len(m.flights) == 0
	for _, p := range m.tasks {
		m.idle = m.idle && !p.moved
	}
	m.ended, m.end = true, m.now
	m.completes++
	if m.doom != nil {
		m.must, m.doom = m.doom, nil
	}
}

// judgeLeft: exactly those leave that have to. They are gone: nothing that is in flight names them.
func (m *model) judgeLeft(a Left) {
	require.NotEmpty(m.t, m.lefts, "%v: nobody was to leave", a)
	require.Equal(m.t, m.lefts[0], a.Tasks)
	m.lefts = m.lefts[1:]
	for _, task := range a.Tasks {
		for _, f := range m.flights {
			require.False(m.t, f.covers(task), "%v has left, and %d would commit its position", task, f.id)
		}
	}
}

func (m *model) judgeAbandon(a Abandon) {
	require.Equal(m.t, m.abandon, a.IDs)
	require.Equal(m.t, m.failures, a.Failures)
	require.Error(m.t, a.Err)
	m.abandon = nil
}

func (m *model) judgeFailure(a FailAttempt) {
	t := m.t
	require.NotNil(t, m.must, "no reason to fail: %v", a)
	require.Equal(t, m.must.reason, a.Reason, "%v", a)
	require.Equal(t, m.must.id, a.ID, "%v", a)
	require.Equal(t, m.must.class, a.Class, "%v", a)
	require.Error(t, a.Err)
	require.Equal(t, a.Class, fault.RecoveryOf(a.Err))
	require.Empty(t, m.cancel, "workers were not told to stop")
	require.Empty(t, m.flights, "the end, and a commit is under way")
	m.must, m.dead = nil, true
}

// judgeDrained: all that was reported is committed, unless it was done after the final barrier.
func (m *model) judgeDrained(a Drained) {
	require.Empty(m.t, m.flights, "drained with one in flight")
	require.True(m.t, m.final && (m.finalDone || !m.work()), "%v", a)
	require.Equal(m.t, Periodic, m.wanted, "a request was not answered before the end")
	for task, p := range m.tasks {
		require.False(m.t, p.leaving, "drained before %v has left", task)
		require.True(m.t, p.moved || p.read == p.committed, "a move of %v is forgotten: %d is read, %d committed", task, p.read, p.committed)
	}
	m.dead = true
}

// missing asks for what the input should have led to.
func (m *model) missing() {
	t := m.t
	require.Equal(t, m.dead, m.c.Dead())
	require.Equal(t, m.last, m.c.LastID())
	require.Equal(t, m.unserved(), m.c.Unserved())
	wake, ok := m.c.NextWake(m.now)
	require.Empty(t, m.cancel, "a worker was not told to stop")
	if m.dead {
		require.False(t, ok)
		return
	}
	require.Nil(t, m.must, "the failure did not end the attempt")
	require.Empty(t, m.abandon, "the failure was passed over")
	require.Equal(t, Periodic, m.refused, "a request was not answered")
	require.Empty(t, m.lefts, "not left")
	require.False(t, m.revoke, "no checkpoint for those who leave")
	var ids []element.CheckpointID
	var alarm *time.Duration
	at := func(d time.Duration) {
		if alarm == nil || d < *alarm {
			alarm = &d
		}
	}
	for i, f := range m.flights {
		ids = append(ids, f.id)
		require.Equal(t, i == 0 && f.all(f.barrier), f.flushAsked, "flush of %d", f.id)
		require.Equal(t, f.all(f.barrier), f.persistAsked)
		require.Equal(t, f.flushed && f.all(f.acked), f.rootAsked)
		require.Equal(t, f.rootWritten, f.permit)
		require.False(t, f.committed)
		if !f.permit {
			at(f.triggered + m.cfg.Timeout)
		}
	}
	require.ElementsMatch(t, ids, m.c.Flights())
	id, permitted, flying := m.c.InFlight()
	require.True(t, flying == (len(ids) > 0) && (!flying || id == ids[0] && permitted == m.flights[0].permit))
	for task, p := range m.tasks {
		require.True(t, !p.out() || m.doom != nil || m.flight(p.with).covers(task), "%v leaves with nothing in flight", task)
		require.True(t, !p.leaving || p.out() || len(m.flights) == 0, "%v waits, and something is in flight", task)
	}
	if m.doom == nil && m.work() && len(m.flights) < m.max && !m.finalDone {
		require.Less(t, m.now, m.due(), "a checkpoint is due and was not triggered")
		at(m.due())
	}
	require.Equal(t, alarm != nil, ok, "wake")
	if ok {
		require.Equal(t, max(0, *alarm-m.now), wake)
	}
	if len(m.flights) == 0 && !m.work() {
		require.Equal(t, Periodic, m.wanted, "a request was not answered")
		require.False(t, m.final, "the final checkpoint has neither begun nor ended")
	}
}
