package topology

import (
	"errors"
	"fmt"

	"github.com/millweir/millweir/element"
)

// Task runs the operators of one stage: for one partition of its source, or as one subtask behind its exchange. It is
// used by one goroutine at a time and starts none.
type Task struct {
	application string
	id          element.TaskID
	from        element.TopicPartition // of a source's task
	root        root
	round       uint64 // of releases, see mergeOp
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
