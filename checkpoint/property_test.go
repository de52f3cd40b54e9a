package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestRandomInterleavings drives a coordinator with a sloppy driver: reports come in any order and after any delay,
// fail, are lost, doubled, made up, come before their time. Up to four checkpoints are in flight, and some failures are
// tolerated. The model judges every action.
func TestRandomInterleavings(t *testing.T) {
	reached := map[string]int{}
	for range 25 { // times rapid's 100
		rapid.Check(t, func(t *rapid.T) {
			w := newWorld(t)
			for range rapid.IntRange(0, 3).Draw(t, "tasks at the start") {
				w.run("add")
			}
			for _, move := range rapid.SliceOfN(rapid.SampledFrom(w.moves()), 100, 200).Draw(t, "moves") {
				w.run(move)
			}
			w.settle()
			for _, s := range w.reached {
				reached[s]++
			}
		})
	}
	t.Log("reached:", reached)
	// A generator that never gets anywhere would prove nothing.
	for _, s := range []string{"complete", "drained", "timeout", "declined", "flush", "root", "commit", "protocol", "left at once", "left with a checkpoint", "left before drained", "revoke", "raised", "came back", "several", "abandon", "abandon of several", "abandon beside an older one", "left by an abandon", "end behind a commit", "unserved", "savepoint", "final again", "wait again"} {
		require.NotZero(t, reached[s], "no run reached %q: %v", s, reached)
	}
}

// work is something that the driver has begun and will report once.
type work struct {
	ev   event
	id   element.CheckpointID
	task element.TaskID
}

// world is the coordinator, the model and the driver's unfinished work.
type world struct {
	*model
	open    []work
	done    []work
	reached []string
	wishes  int
	long    bool
}

func newWorld(t *rapid.T) *world {
	ms := func(name string, lo, hi int) time.Duration {
		return time.Duration(rapid.IntRange(lo, hi).Draw(t, name)) * time.Millisecond
	}
	cfg := Config{Interval: ms("interval", 1, 50), Timeout: ms("timeout", 50, 2000), MinPause: ms("min-pause", 0, 80)}
	if cfg.MaxConcurrent = rapid.IntRange(0, 4).Draw(t, "max-concurrent"); cfg.MaxConcurrent > 1 {
		cfg.MinPause = 0
	}
	cfg.TolerableFailures = rapid.SampledFrom([]int{0, 0, 1, 2, 5, Unlimited, Unlimited}).Draw(t, "tolerable")
	if cfg.TransactionTimeout = 2 * ms("transaction", 0, 2000); cfg.TransactionTimeout > 0 {
		cfg.TransactionTimeout += cfg.Timeout
	}
	cfg.First = time.Duration(rapid.Int64Range(0, int64(cfg.Interval/time.Millisecond)).Draw(t, "first")) * time.Millisecond
	require.NoError(t, cfg.Validate())
	long := cfg.TolerableFailures != 0 && rapid.Bool().Draw(t, "long life")
	last := element.CheckpointID(rapid.IntRange(0, 5).Draw(t, "last"))
	return &world{
		long: long,
		model: &model{
			t: t, c: New(cfg, last), cfg: cfg, max: max(1, cfg.MaxConcurrent), last: last, tasks: map[element.TaskID]*person{},
			given: map[element.CheckpointID]bool{}, abandoned: map[element.CheckpointID]bool{}, served: map[string]bool{},
			gone: map[element.TaskID]int64{},
		},
	}
}

// moves lists what may happen. What is listed first and more often happens more often. In a long life nothing ends the
// attempt but what fails once too often, and tasks come and go.
func (w *world) moves() []string {
	m := []string{"finish", "moved", "finish", "add", "finish", "moved", "wake", "finish", "early", "repeat", "tick"}
	if w.long {
		for range 6 {
			m = append(m, "finish", "moved", "finish", "finish", "wake", "finish", "moved", "fail", "leave", "add")
		}
		return append(m, "manual", "savepoint", "raise", "repeat", "late failure", "deadline", "wake")
	}
	for range 12 {
		m = append(m, "finish", "finish", "finish", "moved", "finish", "finish", "wake")
	}
	return append(m, "fail", "leave", "leave", "raise", "invent", "manual", "savepoint", "savepoint", "fail", "late failure", "deadline", "premature", "lose", "final")
}

func (w *world) run(move string) {
	if move == "finish" && len(w.open) == 0 {
		return
	}
	// A driver whose goroutines take the time before they queue for the coordinator may be a little behind.
	now := w.now + time.Duration(rapid.SampledFrom([]int{0, 0, 0, 0, 1, 3, 10, 40, -5}).Draw(w.t, "delay"))*time.Millisecond
	switch move {
	case "add":
		w.add(now)
	case "leave":
		w.leave(now)
	case "raise":
		w.raise(now)
	case "moved":
		w.moved(now)
	case "tick":
		w.feed(now, func() []Action { return w.c.Tick(now) }, func() {})
	case "wake", "deadline":
		if d, ok := w.c.NextWake(w.now); ok && (len(w.flights) > 0 && w.expires(w.now+d)) == (move == "deadline") {
			now = w.now + d
			w.feed(now, func() []Action { return w.c.Tick(now) }, func() {})
		}
	case "early":
		w.request(now, Early)
	case "manual":
		w.request(now, Manual)
	case "savepoint":
		w.savepoint(now)
	case "final":
		w.request(now, Final)
	case "finish", "fail":
		w.finish(now, move == "fail")
	case "lose":
		// Of a commit the outcome is always reported (D5): no deadline would help. A task's barriers come in order or not at
		// all.
		if len(w.open) > 0 && w.open[0].ev != evCommitted {
			lost := w.open[0]
			w.open = slices.DeleteFunc(w.open, func(k work) bool {
				return k == lost || lost.ev == evBarrier && k.ev == evBarrier && k.task == lost.task
			})
		}
	case "repeat":
		if len(w.done) > 0 {
			w.report(now, rapid.SampledFrom(w.done).Draw(w.t, "report"))
		}
	case "invent":
		w.invent(now)
	case "premature":
		w.premature(now)
	case "late failure":
		ev := rapid.SampledFrom([]event{evDeclined, evFlushFailed, evRootFailed}).Draw(w.t, "event")
		w.report(now, work{ev: ev, id: w.last, task: w.anyTask()})
	}
}

// settle ends the run: all work is finished, a final checkpoint is asked for, and what was lost runs into its timeout.
// Whatever went before, the coordinator comes to an end, and every trigger has had its one end.
func (w *world) settle() {
	for range 50 {
		for !w.dead && len(w.open) > 0 {
			w.finish(w.now, false)
		}
		if w.request(w.now, Final); w.dead {
			break
		}
		if len(w.open) > 0 {
			continue
		}
		d, ok := w.c.NextWake(w.now) // something was lost, or failed twice
		require.True(w.t, ok, "all work is done, and still no end")
		now := w.now + d
		w.feed(now, func() []Action { return w.c.Tick(now) }, func() {})
	}
	require.True(w.t, w.dead, "all work is done, and still no end")
	require.Equal(w.t, w.triggers, w.completes+w.abandons+w.losses, "every trigger ends once")
	if len(w.c.Unserved()) > 0 {
		w.reached = append(w.reached, "unserved")
	}

	st := w.c.Stats()
	require.Nil(w.t, st.Current)
	require.EqualValues(w.t, w.triggers, st.Totals.Triggered)
	require.EqualValues(w.t, w.completes, st.Totals.Completed)
	var abandoned, failed uint64
	for f := range NumFailureReasons {
		abandoned += st.Totals.Abandoned[f]
		failed += st.Totals.Failed[f]
	}
	require.EqualValues(w.t, w.abandons, abandoned)
	require.EqualValues(w.t, w.losses, failed)
	require.Len(w.t, st.Recent, min(w.triggers, RecentCheckpoints))
	for i, r := range st.Recent {
		require.True(w.t, w.given[r.ID])
		again, ok := st.Of(r.ID)
		require.True(w.t, ok && again == r && (i == 0 || r.ID != st.Recent[i-1].ID))
		require.Equal(w.t, r.Failure == NoFailure, r.Phase == "completed")
		for _, d := range []time.Duration{r.StartDelay, r.Barriers, r.Waited, r.Flush, r.Persist, r.Root, r.Commit} {
			require.True(w.t, d >= 0 && d <= r.EndToEnd, "%+v", r)
		}
	}
	// The dead stay dead.
	for range 20 {
		w.run(rapid.SampledFrom(w.moves()).Draw(w.t, "afterwards"))
	}
}

// feed gives an input to coordinator and model and takes on the work that the actions ask for.
func (w *world) feed(now time.Duration, call func() []Action, note func()) {
	actions := w.input(now, call, note)
	for i, a := range actions {
		switch a := a.(type) {
		case Trigger:
			w.note3(a)
			for _, t := range a.Tasks {
				w.open = append(w.open, work{evBarrier, a.ID, t})
			}
		case Flush:
			w.open = append(w.open, work{ev: evFlushed, id: a.ID})
		case Persist:
			if rapid.Bool().Draw(w.t, "one pack file") {
				w.open = append(w.open, work{ev: evAcked, id: a.ID})
				continue
			}
			for _, t := range w.flight(a.ID).tasks {
				w.open = append(w.open, work{evAcked, a.ID, t})
			}
		case WriteRoot:
			w.open = append(w.open, work{ev: evRootWritten, id: a.ID})
		case CommitAction:
			w.open = append(w.open, work{ev: evCommitted, id: a.ID})
		case Left:
			with := "left at once"
			if i > 0 {
				switch actions[i-1].(type) {
				case Complete:
					with = "left with a checkpoint"
				case Abandon:
					with = "left by an abandon"
				}
			}
			w.reached = append(w.reached, with)
			if w.dead {
				w.reached = append(w.reached, "left before drained")
			}
		case Abandon:
			w.reached = append(w.reached, "abandon")
			if len(a.IDs) > 1 {
				w.reached = append(w.reached, "abandon of several")
			}
			if len(w.flights) > 0 && w.flights[0].id < a.IDs[0] {
				w.reached = append(w.reached, "abandon beside an older one")
			}
			if w.anyWaits() {
				w.reached = append(w.reached, "wait again")
			}
		case Complete:
			w.reached = append(w.reached, "complete")
		case Drained:
			w.reached = append(w.reached, "drained")
		case FailAttempt:
			w.reached = append(w.reached, a.Reason.Label())
		}
	}
}

// note3 notes what kind of trigger it was.
func (w *world) note3(a Trigger) {
	if a.Reason == Revoke {
		w.reached = append(w.reached, "revoke")
	}
	if len(w.flights) > 2 {
		w.reached = append(w.reached, "several")
	}
	if len(a.Savepoint) > 0 {
		w.reached = append(w.reached, "savepoint")
	}
	if a.Reason == Final && w.failures > 0 {
		w.reached = append(w.reached, "final again")
	}
}

// expires reports that a deadline has passed by then.
func (w *world) expires(then time.Duration) bool {
	return slices.ContainsFunc(w.flights, func(f *flight) bool { return !f.permit && then >= f.triggered+w.cfg.Timeout })
}

func (w *world) add(now time.Duration) {
	task := w.anyTask()
	w.feed(now, func() []Action { return w.c.AddTask(now, task) }, func() {
		if w.tasks[task] == nil {
			at := w.gone[task] // whoever owns it next starts where it is committed
			p := &person{read: at, committed: at, barrier: at}
			if f := w.newest(); f != nil {
				p.marks = []mark{{f.id, at}}
			}
			if w.tasks[task] = p; at > 0 {
				w.reached = append(w.reached, "came back")
			}
		}
		if !w.started {
			w.started, w.trigger = true, w.now
			if w.cfg.First > 0 {
				w.trigger = w.now + w.cfg.First - w.cfg.Interval
			}
		}
	})
}

// moved is a task that takes some records and says so. One that leaves has halted; its report is a late one, of what it
// took before.
func (w *world) moved(now time.Duration) {
	task := w.anyTask()
	w.feed(now, func() []Action { return w.c.Moved(now, task) }, func() {
		p := w.tasks[task]
		switch {
		case p == nil:
		case p.out():
			p.behind = true
		default:
			w.use()
			p.moved = true
			if !p.leaving {
				p.read += 3
			}
		}
	})
}

// leave takes one to three tasks out, some of which may be gone or leaving already.
func (w *world) leave(now time.Duration) {
	var tasks []element.TaskID
	for range rapid.IntRange(1, 3).Draw(w.t, "how many leave") {
		tasks = append(tasks, w.anyTask())
	}
	w.feed(now, func() []Action { return w.c.Leave(now, tasks) }, func() { w.leaves(tasks) })
}

// savepoint asks for one, sometimes for one that is wanted already.
func (w *world) savepoint(now time.Duration) {
	w.wishes += rapid.IntRange(0, 1).Draw(w.t, "another one")
	id := fmt.Sprintf("s%d", w.wishes)
	w.feed(now, func() []Action { return w.c.RequestSavepoint(now, id) }, func() {
		if !slices.Contains(w.unserved(), id) {
			w.waiting, w.hurry = append(w.waiting, id), true
		}
	})
}

// raise makes an id known, mostly a higher one.
func (w *world) raise(now time.Duration) {
	id := w.last + element.CheckpointID(rapid.IntRange(0, 9).Draw(w.t, "above")) - min(w.last, 2)
	w.feed(now, func() []Action { return w.c.Raise(now, id) }, func() {
		if id > w.last {
			w.last = id
			w.reached = append(w.reached, "raised")
		}
	})
}

func (w *world) request(now time.Duration, r Reason) {
	w.feed(now, func() []Action { return w.c.RequestCheckpoint(now, r) }, func() {
		switch {
		case r == Final:
			w.final = true
		case w.finalDone:
			w.refused = r // the final checkpoint covers the wish
		default:
			w.wanted = max(w.wanted, r)
		}
	})
}

// finish reports one piece of open work, any of them.
func (w *world) finish(now time.Duration, fails bool) {
	if len(w.open) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.open)-1).Draw(w.t, "work")
	k := w.open[i]
	if k.ev == evBarrier { // a task passes its barriers in order
		i = slices.IndexFunc(w.open, func(o work) bool { return o.ev == evBarrier && o.task == k.task })
		k = w.open[i]
	}
	w.open = slices.Delete(w.open, i, i+1)
	w.done = append(w.done, k)
	if fails {
		k.ev = map[event]event{evBarrier: evDeclined, evAcked: evDeclined, evFlushed: evFlushFailed, evRootWritten: evRootFailed, evCommitted: evCommitFailed}[k.ev]
		if k.ev == evDeclined && k.task == (element.TaskID{}) {
			k.task = w.anyTask() // of one that is not covered it is ignored: the report is lost
		}
	}
	w.report(now, k)
}

// invent reports about a checkpoint that was never triggered.
func (w *world) invent(now time.Duration) {
	ids := []element.CheckpointID{0, w.last + 1, w.last + 2, 1 << 63}
	for id := range w.last {
		if !w.given[id] {
			ids = append(ids, id) // somebody else's
		}
	}
	w.report(now, work{
		ev:   event(rapid.IntRange(0, int(numEvents)-1).Draw(w.t, "event")),
		id:   rapid.SampledFrom(ids).Draw(w.t, "id"),
		task: w.anyTask(),
	})
}

// premature reports something that the driver was not asked for yet.
func (w *world) premature(now time.Duration) {
	if len(w.flights) == 0 {
		return
	}
	f := rapid.SampledFrom(w.flights).Draw(w.t, "flight")
	if f.permit {
		return
	}
	evs := []event{evCommitted, evCommitFailed}
	if i := slices.Index(w.flights, f); i > 0 {
		evs = append(evs, evFlushed)
		for _, t := range f.tasks {
			if o := w.flights[i-1]; o.covers(t) && !o.barrier[t] {
				w.report(now, work{evBarrier, f.id, t})
				return
			}
		}
	}
	if !f.rootAsked {
		evs = append(evs, evRootWritten)
	}
	if !f.flushAsked {
		evs = append(evs, evFlushed, evAcked)
	}
	w.report(now, work{ev: rapid.SampledFrom(evs).Draw(w.t, "event"), id: f.id})
}

// report feeds one report and tells the model what it means.
func (w *world) report(now time.Duration, k work) {
	c, err := w.c, errors.New("injected")
	class := fault.Restart
	if isFailure(k.ev) {
		class = rapid.SampledFrom([]fault.Recovery{fault.Restart, fault.Restart, fault.Restart, fault.Restart, fault.Restart, fault.Restart, fault.Rejoin, fault.Unconfirmed, fault.Stop}).Draw(w.t, "class")
	}
	if class != fault.Restart {
		err = fault.New(class, fault.Failed, "injected")
	}
	var st PersistStats
	var offset int64
	moved := true
	if p := w.tasks[k.task]; p != nil {
		offset, moved = p.read, p.read > p.barrier
	}
	calls := map[event]func() []Action{
		evBarrier: func() []Action {
			p := element.Position{TopicPartition: element.TopicPartition{Topic: k.task.Source, Partition: k.task.Partition}, Offset: offset}
			return c.BarrierPassed(now, k.id, k.task, TaskAck{Positions: []element.Position{p}, Moved: moved})
		},
		evAcked: func() []Action {
			if k.task == (element.TaskID{}) {
				return c.Persisted(now, k.id, st)
			}
			return c.Acked(now, k.id, k.task, st)
		},
		evDeclined:    func() []Action { return c.Declined(now, k.id, k.task, err) },
		evFlushed:     func() []Action { return c.Flushed(now, k.id) },
		evFlushFailed: func() []Action { return c.FlushFailed(now, k.id, err) },
		evRootWritten: func() []Action { return c.RootWritten(now, k.id) },
		evRootFailed:  func() []Action { return c.RootFailed(now, k.id, err) },
		evCommitted:   func() []Action { return c.Committed(now, k.id) },
		evCommitFailed: func() []Action {
			return c.CommitFailed(now, k.id, err, class)
		},
	}
	before := c.Stats().Totals.Answers
	w.feed(now, calls[k.ev], func() { w.note(k, offset, moved, class) })
	var sum int
	for a, n := range c.Stats().Totals.Answers {
		sum += int(n - before[a])
	}
	require.LessOrEqual(w.t, sum, 1, "a report has one answer")
}

// note tells the model what a report means for a checkpoint in flight.
func (w *world) note(k work, offset int64, moved bool, class fault.Recovery) {
	f := w.flight(k.id)
	if f == nil || k.task != (element.TaskID{}) && !f.covers(k.task) && isTaskEvent(k.ev) {
		return
	}
	breach := func() { w.fails(f, FailureProtocol, fault.Stop) }
	unless := func(asked bool, then func()) { // what follows from a report that was asked for; one that was not is a breach
		if !asked {
			breach()
			return
		}
		then()
	}
	switch k.ev {
	case evBarrier:
		if f.barrier[k.task] {
			return
		}
		for _, o := range w.flights[:slices.Index(w.flights, f)] {
			if o.covers(k.task) && !o.barrier[k.task] {
				breach()
				return
			}
		}
		p := w.tasks[k.task]
		f.barrier[k.task], f.positions[k.task], f.moved[k.task] = true, offset, f.moved[k.task] || moved
		p.marks, p.barrier = append(p.marks, mark{f.id, offset}), offset
	case evAcked:
		switch {
		case k.task == (element.TaskID{}) && !f.all(f.barrier), k.task != (element.TaskID{}) && !f.barrier[k.task]:
			breach()
		case k.task == (element.TaskID{}):
			for _, t := range f.tasks {
				f.acked[t] = true
			}
		default:
			f.acked[k.task] = true
		}
	case evFlushed:
		unless(f.flushAsked, func() { f.flushed = true })
	case evRootWritten:
		unless(f.rootAsked, func() { f.rootWritten = true })
	case evCommitted:
		unless(f.permit, func() { f.committed = true })
	case evCommitFailed:
		unless(f.permit, func() { w.doom = nil; w.fails(f, FailureCommit, class) })
	default: // failures, which count until the permit
		if !f.permit {
			w.fails(f, map[event]FailureReason{evDeclined: FailureDeclined, evFlushFailed: FailureFlush, evRootFailed: FailureRoot}[k.ev], class)
		}
		if w.doom != nil {
			w.reached = append(w.reached, "end behind a commit")
		}
	}
}

func isFailure(ev event) bool {
	return ev == evDeclined || ev == evFlushFailed || ev == evRootFailed || ev == evCommitFailed
}

func isTaskEvent(ev event) bool { return ev == evBarrier || ev == evAcked || ev == evDeclined }

// anyTask draws from six tasks, so that a name often hits one that is there.
func (w *world) anyTask() element.TaskID {
	names := []element.TaskID{{Source: "a"}, {Source: "a", Partition: 1}, {Source: "b"}, {Source: "b", Partition: 1}}
	if here := slices.SortedFunc(maps.Keys(w.tasks), element.TaskID.Compare); len(here) > 0 && rapid.Bool().Draw(w.t, "here") {
		names = here
	}
	return rapid.SampledFrom(names).Draw(w.t, "task")
}
