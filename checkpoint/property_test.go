package checkpoint

import (
	"errors"
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
// fail, are lost, doubled, made up, come before their time. The model judges every action.
func TestRandomInterleavings(t *testing.T) {
	reached := map[string]int{}
	for range 15 { // times rapid's 100
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
	for _, s := range []string{"complete", "drained", "timeout", "declined", "flush", "root", "commit", "protocol", "left at once", "left with a checkpoint", "left before drained", "revoke", "raised", "came back"} {
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
}

func newWorld(t *rapid.T) *world {
	ms := func(name string, lo, hi int) time.Duration {
		return time.Duration(rapid.IntRange(lo, hi).Draw(t, name)) * time.Millisecond
	}
	cfg := Config{Interval: ms("interval", 1, 50), Timeout: ms("timeout", 50, 2000), MinPause: ms("min-pause", 0, 80)}
	cfg.First = time.Duration(rapid.Int64Range(0, int64(cfg.Interval/time.Millisecond)).Draw(t, "first")) * time.Millisecond
	require.NoError(t, cfg.Validate())
	last := element.CheckpointID(rapid.IntRange(0, 5).Draw(t, "last"))
	return &world{
		model: &model{
			t: t, c: New(cfg, last), cfg: cfg, last: last, tasks: map[element.TaskID]bool{}, leaving: map[element.TaskID]bool{},
			given: map[element.CheckpointID]bool{}, read: map[element.TaskID]int64{}, written: map[element.TaskID]int64{},
			committed: map[element.TaskID]int64{}, holding: map[element.TaskID]bool{},
		},
	}
}

// moves lists what may happen. What is listed first and more often happens more often.
func (w *world) moves() []string {
	m := []string{"finish", "moved", "finish", "add", "finish", "moved", "wake", "finish", "early", "repeat", "tick"}
	for range 12 {
		m = append(m, "finish", "finish", "finish", "moved", "finish", "finish", "wake")
	}
	return append(m, "fail", "leave", "leave", "raise", "invent", "manual", "late failure", "deadline", "premature", "lose", "final")
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
		if d, ok := w.c.NextWake(w.now); ok && (w.flight != nil) == (move == "deadline") {
			now = w.now + d
			w.feed(now, func() []Action { return w.c.Tick(now) }, func() {})
		}
	case "early":
		w.request(now, Early)
	case "manual":
		w.request(now, Manual)
	case "final":
		w.request(now, Final)
	case "finish", "fail":
		w.finish(now, move == "fail")
	case "lose":
		// Of a commit the outcome is always reported (D5): no deadline would help.
		if len(w.open) > 0 && w.open[0].ev != evCommitted {
			w.open = w.open[1:]
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
	for range 2 {
		for !w.dead && len(w.open) > 0 {
			w.finish(w.now, false)
		}
		w.request(w.now, Final)
	}
	for !w.dead && len(w.open) > 0 {
		w.finish(w.now, false)
	}
	w.run("deadline")
	require.True(w.t, w.dead, "all work is done, and still no end")
	require.Equal(w.t, w.triggers, w.completes+w.losses, "every trigger ends once")

	st := w.c.Stats()
	require.Nil(w.t, st.Current)
	require.EqualValues(w.t, w.triggers, st.Totals.Triggered)
	require.EqualValues(w.t, w.completes, st.Totals.Completed)
	require.Len(w.t, st.Recent, min(w.triggers, RecentCheckpoints))
	for i, r := range st.Recent {
		require.True(w.t, w.given[r.ID])
		require.True(w.t, i == 0 || r.ID > st.Recent[i-1].ID)
		require.Equal(w.t, r.Failure == NoFailure, r.Phase == "completed")
		for _, d := range []time.Duration{r.StartDelay, r.Barriers, r.Flush, r.Persist, r.Root, r.Commit} {
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
	for i, a := range w.input(now, call, note) {
		switch a := a.(type) {
		case Trigger:
			if a.Reason == Revoke {
				w.reached = append(w.reached, "revoke")
			}
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
			for _, t := range w.flight.tasks {
				w.open = append(w.open, work{evAcked, a.ID, t})
			}
		case WriteRoot:
			w.open = append(w.open, work{ev: evRootWritten, id: a.ID})
		case CommitAction:
			w.open = append(w.open, work{ev: evCommitted, id: a.ID})
		case Left:
			with := map[bool]string{true: "left with a checkpoint", false: "left at once"}
			w.reached = append(w.reached, with[i > 0])
			if w.dead {
				w.reached = append(w.reached, "left before drained")
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

func (w *world) add(now time.Duration) {
	task := w.anyTask()
	w.feed(now, func() []Action { return w.c.AddTask(now, task) }, func() {
		if _, ok := w.tasks[task]; !ok {
			w.tasks[task] = false
			w.holding[task] = w.flight != nil
			if w.committed[task] > 0 {
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

// moved is a task that takes some records and says so. One that leaves has halted; its report is a late one.
func (w *world) moved(now time.Duration) {
	task := w.anyTask()
	w.feed(now, func() []Action { return w.c.Moved(now, task) }, func() {
		if _, ok := w.tasks[task]; !ok || w.leaving[task] {
			return
		}
		w.tasks[task] = true
		if w.read[task] += 3; !w.holding[task] {
			w.written[task] = w.read[task]
		}
	})
}

// leave takes one to three tasks out, some of which may be gone or leaving already.
func (w *world) leave(now time.Duration) {
	var tasks []element.TaskID
	for range rapid.IntRange(1, 3).Draw(w.t, "how many leave") {
		tasks = append(tasks, w.anyTask())
	}
	w.feed(now, func() []Action { return w.c.Leave(now, tasks) }, func() {
		f := w.flight
		var going []element.TaskID
		for _, task := range tasks {
			moved, ok := w.tasks[task]
			if !ok || w.leaving[task] || slices.Contains(going, task) {
				continue
			}
			going = append(going, task)
			w.revoke = w.revoke || f == nil && moved
		}
		for _, task := range going {
			if f == nil && !w.revoke || f != nil && !slices.Contains(f.tasks, task) {
				w.atOnce = append(w.atOnce, task)
				continue
			}
			w.leaving[task] = true
			if f != nil {
				w.tasks[task] = false
			}
		}
		slices.SortFunc(w.atOnce, element.TaskID.Compare)
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
	f := w.flight
	if f == nil || f.permit {
		return
	}
	evs := []event{evCommitted, evCommitFailed}
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
	var st PersistStats
	offset := w.read[k.task]
	calls := map[event]func() []Action{
		evBarrier: func() []Action {
			p := element.Position{TopicPartition: element.TopicPartition{Topic: k.task.Source, Partition: k.task.Partition}, Offset: offset}
			return c.BarrierPassed(now, k.id, k.task, TaskAck{Positions: []element.Position{p}, Moved: true})
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
			return c.CommitFailed(now, k.id, err, rapid.SampledFrom([]fault.Recovery{fault.Restart, fault.Rejoin, fault.Unconfirmed, fault.Stop}).Draw(w.t, "class"))
		},
	}
	before := c.Stats().Totals.Answers
	w.feed(now, calls[k.ev], func() { w.note(k, offset) })
	var sum int
	for a, n := range c.Stats().Totals.Answers {
		sum += int(n - before[a])
	}
	require.LessOrEqual(w.t, sum, 1, "a report has one answer")
}

// note tells the model what a report means for the checkpoint in flight.
func (w *world) note(k work, offset int64) {
	f := w.flight
	if f == nil || f.id != k.id || k.task != (element.TaskID{}) && !slices.Contains(f.tasks, k.task) && isTaskEvent(k.ev) {
		return
	}
	switch k.ev {
	case evBarrier:
		if !f.barrier[k.task] {
			f.barrier[k.task], f.positions[k.task], w.holding[k.task] = true, offset, true
		}
	case evAcked:
		switch {
		case k.task == (element.TaskID{}) && !f.all(f.barrier), k.task != (element.TaskID{}) && !f.barrier[k.task]:
			w.cause = FailureProtocol
		case k.task == (element.TaskID{}):
			for _, t := range f.tasks {
				f.acked[t] = true
			}
		default:
			f.acked[k.task] = true
		}
	case evFlushed:
		w.unless(f.flushAsked, func() { f.flushed = true })
	case evRootWritten:
		w.unless(f.rootAsked, func() { f.rootWritten = true })
	case evCommitted:
		w.unless(f.permit, func() { f.committed = true })
	case evCommitFailed:
		w.unless(f.permit, func() { w.cause = FailureCommit })
	default: // failures, which count until the permit
		if !f.permit {
			w.cause = map[event]FailureReason{evDeclined: FailureDeclined, evFlushFailed: FailureFlush, evRootFailed: FailureRoot}[k.ev]
		}
	}
}

// unless does what follows from a report that was asked for; one that was not breaks the protocol.
func (w *world) unless(asked bool, then func()) {
	if !asked {
		w.cause = FailureProtocol
		return
	}
	then()
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
