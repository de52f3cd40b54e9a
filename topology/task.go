package topology

import (
	"errors"
	"fmt"

	"github.com/millweir/millweir/element"
)

// Task is one source partition with the operators of all steps and sinks behind its source. It is used by one goroutine
// at a time and starts none.
type Task struct {
	application string
	id          element.TaskID
	from        element.TopicPartition
	root        root
	// arena is shared by the operators: an encoding is begun and ended within one call.
	arena arena
	err   error
	done  bool
}

// NewTask builds the operators of one partition of a source. It asks env for every state of the source, in the order of
// Plan.States. Close must be called when the task is no longer used.
func (p *Plan) NewTask(source string, partition int32, env Env) (*Task, error) {
	for i, n := range p.sources {
		if n.name != source {
			continue
		}
		t := &Task{
			application: p.Application,
			id:          element.TaskID{Source: source, Partition: partition},
			from:        element.TopicPartition{Topic: p.Sources[i].Topic, Partition: partition},
		}
		c := &compiler{task: t, env: env, tables: map[string]StateTable{}}
		if err := p.openStates(c, source); err != nil {
			return nil, fmt.Errorf("task %s: %w", t.id, err)
		}
		op, err := c.build(n)
		if err != nil {
			return nil, fmt.Errorf("task %s: %w", t.id, err)
		}
		t.root = op.(root)
		return t, nil
	}
	return nil, fmt.Errorf("topology %q has no source %q", p.Application, source)
}

func (p *Plan) openStates(c *compiler, source string) error {
	for _, s := range p.States {
		if s.Source != source {
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
	task   *Task
	env    Env
	tables map[string]StateTable
}

// guard makes the guard of a step, with the policy of its source.
func (c *compiler) guard(n *node) guard {
	return guard{step: n.name, policy: n.source.onError, env: c.env}
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
	down := make([]any, 0, len(n.kids))
	op, err := any(nil), error(nil)
	for _, kid := range n.kids {
		if op, err = c.build(kid); err != nil {
			break
		}
		down = append(down, op)
	}
	if err == nil {
		op, err = n.compile(c, n, down)
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
	if t.err = t.root.process(from, recs); t.err == nil {
		t.root.release()
	}
	return t.err
}

// Flush is called before a barrier: everything that the records so far owe must be out and in state. Operators owe
// nothing after Process, so there is nothing to hand on; a task that has failed says so again, for no barrier may pass it.
func (t *Task) Flush() error { return t.err }

// Receive runs the records of a parcel that was sent to the task through all operators. It takes the parcel over and
// recycles it, unless it is kept. For outputs, state and errors what is said of Process holds.
func (t *Task) Receive(Parcel) error {
	if t.err == nil {
		t.err = fmt.Errorf("task %s has no exchange to receive from", t.id)
	}
	return t.err
}

// Restore makes a parcel for this task of records that Parcel.Encode gave. The bytes are copied.
func (t *Task) Restore([][]byte) (Parcel, error) {
	return nil, fmt.Errorf("task %s has no exchange to receive from", t.id)
}

// NextTimer gives the time of the first pending timer in milliseconds since the Unix epoch; ok is false when there is
// none.
func (t *Task) NextTimer() (ms int64, ok bool) { return 0, false }

// FireTimers fires the timers that are due at now, in the order of their times, at most 256 in one call; more says that
// others are due. For outputs, state and errors what is said of Process holds.
func (t *Task) FireTimers(int64) (more bool, err error) { return false, t.err }

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
