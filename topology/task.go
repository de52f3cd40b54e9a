package topology

import (
	"errors"
	"fmt"
	"math"

	"github.com/millweir/millweir/element"
)

// timersPerCall is how many timers one call of FireTimers fires.
const timersPerCall = 256

// Task runs the operators of one stage: for one partition of its source, or as one subtask behind its exchange. It is
// used by one goroutine at a time and starts none.
type Task struct {
	application string
	id          element.TaskID
	from        element.TopicPartition // of a source's task
	root        root
	senders     []sender
	timed       []timed
	// arena is shared by the operators: an encoding is begun and ended within one call.
	arena arena
	err   error
	done  bool
}

// NewTask builds the operators of one task of a stage: of one partition of a source, or of one subtask behind an
// exchange. It asks env for every state of the stage, in the order of Plan.States; they must hold what was restored, for
// pending timers are read from them. Close must be called when the task is no longer used.
func (p *Plan) NewTask(stage string, partition int32, env Env) (*Task, error) {
	for i, n := range p.roots {
		if n.name != stage {
			continue
		}
		t := &Task{application: p.Application, id: element.TaskID{Source: stage, Partition: partition}}
		c := &compiler{task: t, env: env, root: n, tables: map[string]StateTable{}, built: map[*node]any{}}
		if n.kind == kindSource {
			t.from = element.TopicPartition{Topic: n.topic, Partition: partition}
			c.policy = n.onError
		} else if err := p.behindExchange(c, i, partition); err != nil {
			return nil, fmt.Errorf("task %s: %w", t.id, err)
		}
		if err := p.openStates(c, stage); err != nil {
			return nil, fmt.Errorf("task %s: %w", t.id, err)
		}
		op, err := c.build(n)
		if err != nil {
			return nil, fmt.Errorf("task %s: %w", t.id, err)
		}
		t.root = op.(root)
		return t, nil
	}
	return nil, fmt.Errorf("topology %q has no stage %q", p.Application, stage)
}

// behindExchange checks the number of a subtask and sets the policies: a record has that of its source; one of a timer,
// which belongs to no source, the strictest of all.
func (p *Plan) behindExchange(c *compiler, stage int, subtask int32) error {
	if n := c.env.Parallelism(stage); subtask < 0 || int(subtask) >= n {
		return fmt.Errorf("there are %d subtasks", n)
	}
	c.policy, c.byTopic = Skip, map[string]Policy{}
	for _, s := range p.Sources {
		c.byTopic[s.Topic] = s.OnError
		c.policy = min(c.policy, s.OnError)
	}
	return nil
}

func (p *Plan) openStates(c *compiler, stage string) error {
	for _, s := range p.States {
		if s.Source != stage {
			continue
		}
		table, err := c.env.State(s.Step, s.Name, s.Codec)
		if err != nil {
			return fmt.Errorf("open state %s: %w", s, err)
		}
		c.tables[s.ID()] = table
	}
	return nil
}

// compiler is what compile functions need of the task that is being built.
type compiler struct {
	task    *Task
	env     Env
	root    *node
	rooted  bool // root was met: it is the receiving side of an exchange once, and the sending side of a loop then
	policy  Policy
	byTopic map[string]Policy
	tables  map[string]StateTable
	// built are the operators of merges: what stands behind one is there once in a task.
	built map[*node]any
}

// guard makes the guard of a step.
func (c *compiler) guard(n *node) guard {
	return guard{step: n.name, policy: c.policy, byTopic: c.byTopic, env: c.env}
}

// state gives the table of a state that the plan lists.
func (c *compiler) state(n *node, s state) (StateTable, error) {
	id := StatePlan{Step: n.name, Name: s.name}.ID()
	table, ok := c.tables[id]
	if !ok {
		return nil, fmt.Errorf("state %s is not in the plan", id)
	}
	return table, nil
}

// build makes the operators of a node's consumers, then its own. When one cannot be made, those made before are closed.
func (c *compiler) build(n *node) (any, error) {
	compile, kids := n.compile, n.kids
	switch {
	case n.kind == kindMerge:
		if op, ok := c.built[n]; ok {
			return op, nil
		}
	case n.kind.isExchange() && n == c.root && !c.rooted:
		c.rooted, compile = true, n.compileRoot
	case n.kind.isExchange():
		kids = nil
	}
	down := make([]any, 0, len(kids))
	op, err := any(nil), error(nil)
	for _, kid := range kids {
		if op, err = c.build(kid); err != nil {
			break
		}
		down = append(down, op)
	}
	if err == nil {
		op, err = compile(c, n, down)
	}
	if err == nil && n.kind == kindMerge {
		c.built[n] = op
	}
	if err == nil {
		return op, nil
	}
	for _, d := range down {
		err = errors.Join(err, d.(interface{ close() error }).close())
	}
	return nil, err
}

// ID names the task.
func (t *Task) ID() element.TaskID { return t.id }

// Process runs records of the task's partition, in offset order, through all operators. When it returns nil, all outputs
// have been handed to Env.Emit and all state is in the tables: nothing is kept back. The records' bytes must never
// change; the slice and the headers are used during the call only.
//
// An error ends the task: later calls give it again. With the policy Fail it is a *RecordError, classed to end the
// process; errors of Env come as they are.
func (t *Task) Process(from element.TopicPartition, recs []element.Record) error {
	if t.err != nil {
		return t.err
	}
	if from != t.from {
		t.err = fmt.Errorf("task %s was given records of %s", t.id, from)
		return t.err
	}
	src, ok := t.root.(source)
	if !ok {
		t.err = fmt.Errorf("task %s has no source to read from", t.id)
		return t.err
	}
	return t.finish(src.process(from, recs))
}

// finish ends a call that has run records: what exchanges have gathered is sent.
func (t *Task) finish(err error) error {
	if t.err = err; t.err == nil {
		t.err = t.send()
	}
	if t.err == nil {
		t.root.release()
	}
	return t.err
}

func (t *Task) send() error {
	for _, s := range t.senders {
		if err := s.flush(); err != nil {
			return err
		}
	}
	return nil
}

// Receive runs the records of a parcel that was sent to this subtask through all operators. It takes the parcel over and
// recycles it, unless it is kept. For outputs, state and errors what is said of Process holds.
func (t *Task) Receive(p Parcel) error {
	if t.err != nil {
		return t.err
	}
	r, ok := t.root.(receiver)
	if !ok {
		t.err = fmt.Errorf("task %s has no exchange to receive from", t.id)
		return t.err
	}
	return t.finish(r.receive(p))
}

// Restore makes a parcel for this subtask of records that Parcel.Encode gave, in their order. It may hold any number of
// them, and is given to Receive like others. The bytes are copied.
func (t *Task) Restore(data [][]byte) (Parcel, error) {
	r, ok := t.root.(receiver)
	if !ok {
		return nil, fmt.Errorf("task %s has no exchange to receive from", t.id)
	}
	p, err := r.restore(data)
	if err != nil {
		return nil, fmt.Errorf("task %s: %w", t.id, err)
	}
	return p, nil
}

// Flush is called before a barrier: everything that the records so far owe must be out and in state. Operators owe
// nothing after Process, Receive and FireTimers, so there is nothing to hand on; a task that has failed says so again,
// for no barrier may pass it.
func (t *Task) Flush() error {
	if t.err == nil {
		t.err = t.send()
	}
	return t.err
}

// NextTimer gives the time of the first pending timer in milliseconds since the Unix epoch; ok is false when there is
// none.
func (t *Task) NextTimer() (ms int64, ok bool) {
	first, _ := t.firstTimers()
	if first == nil {
		return 0, false
	}
	at, _ := first.nextTimer()
	return at, true
}

// firstTimers gives the operator whose timer is the first one, nil when there is no timer, and the time of the first one
// of the others.
func (t *Task) firstTimers() (first timed, others int64) {
	best := int64(math.MaxInt64)
	others = best
	for _, op := range t.timed {
		at, ok := op.nextTimer()
		switch {
		case !ok:
		case first == nil || at < best:
			first, best, others = op, at, best
		case at < others:
			others = at
		}
	}
	return first, others
}

// FireTimers fires the timers that are due at now, in the order of their times, at most 256 in one call; more says that
// others are due. For outputs, state and errors what is said of Process holds.
func (t *Task) FireTimers(now int64) (more bool, err error) {
	if t.err != nil {
		return false, t.err
	}
	for left := timersPerCall; ; {
		first, others := t.firstTimers()
		if more = first != nil && due(first, now); !more || left == 0 {
			break
		}
		fired, err := first.fire(now, others, left)
		if err != nil {
			return false, t.finish(err)
		}
		left -= fired
	}
	if err := t.finish(nil); err != nil {
		return false, err
	}
	return more, nil
}

// due says that the first timer of an operator is due.
func due(op timed, now int64) bool {
	at, ok := op.nextTimer()
	return ok && at <= now
}

// Close closes the Processors that are closers and ends the task. A second call does nothing.
func (t *Task) Close() error {
	if t.done {
		return nil
	}
	t.done = true
	if t.err == nil {
		t.err = fmt.Errorf("task %s is closed", t.id)
	}
	return t.root.close()
}
