package topology_test

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/topology"
)

// graph runs all stages of a plan in one goroutine: tasks with queues between them, one per sender and receiver. Which
// queue is served next is the test's choice.
type graph struct {
	t      require.TestingT
	plan   *topology.Plan
	par    []int // by stage
	max    int
	clock  int64
	tasks  map[element.TaskID]*graphTask
	order  []*graphTask
	queues []*graphQueue
	out    map[string][]element.Record // by sink
}

// graphTask is a task with its environment.
type graphTask struct {
	*memEnv
	g    *graph
	task *topology.Task
	in   map[*graphTask]*graphQueue
}

// graphQueue is the channel from one task to another.
type graphQueue struct {
	to      *graphTask
	parcels []topology.Parcel
}

// newGraph builds the tasks: sources with the given number of partitions, exchanges with the parallelism of par by name,
// 2 where it says nothing. tables, which may be nil, gives the state of a task.
func newGraph(t require.TestingT, plan *topology.Plan, partitions, maxParallelism int, par map[string]int, tables func(stage topology.StagePlan, subtask, parallelism int) map[string]*memTable) *graph {
	g := &graph{t: t, plan: plan, max: maxParallelism, tasks: map[element.TaskID]*graphTask{}, out: map[string][]element.Record{}}
	for _, s := range plan.Stages {
		n, ok := par[s.Name]
		switch {
		case s.Kind == topology.SourceStage:
			n = partitions
		case !ok:
			n = 2
		}
		g.par = append(g.par, n)
	}
	for i, s := range plan.Stages {
		for sub := range g.par[i] {
			gt := &graphTask{memEnv: newMemEnv(), g: g, in: map[*graphTask]*graphQueue{}}
			if tables != nil {
				for id, table := range tables(s, sub, g.par[i]) {
					gt.Tables[id] = table
				}
			}
			task, err := plan.NewTask(s.Name, int32(sub), gt)
			require.NoError(t, err)
			gt.task = task
			g.tasks[task.ID()] = gt
			g.order = append(g.order, gt)
		}
	}
	return g
}

// Emit implements topology.Env.
func (e *graphTask) Emit(sink int, recs []element.Record) error {
	name := e.g.plan.Sinks[sink].Name
	for _, r := range recs {
		r.Headers = slices.Clone(r.Headers)
		e.g.out[name] = append(e.g.out[name], r)
	}
	return e.memEnv.Emit(sink, recs)
}

// Send implements topology.Env.
func (e *graphTask) Send(stage, subtask int, p topology.Parcel) error {
	to := e.g.tasks[element.TaskID{Source: e.g.plan.Stages[stage].Name, Partition: int32(subtask)}]
	if to == nil {
		return fmt.Errorf("no subtask %d of stage %d", subtask, stage)
	}
	q := to.in[e]
	if q == nil {
		q = &graphQueue{to: to}
		to.in[e] = q
		e.g.queues = append(e.g.queues, q)
	}
	q.parcels = append(q.parcels, p)
	return nil
}

// Parallelism implements topology.Env.
func (e *graphTask) Parallelism(stage int) int { return e.g.par[stage] }

// MaxParallelism implements topology.Env.
func (e *graphTask) MaxParallelism() int { return e.g.max }

// Now implements topology.Env.
func (e *graphTask) Now() int64 { return e.g.clock }

// process gives records to a source.
func (g *graph) process(source string, partition int32, recs ...element.Record) error {
	id := element.TaskID{Source: source, Partition: partition}
	for _, s := range g.plan.Sources {
		if s.Name == source {
			return g.tasks[id].task.Process(element.TopicPartition{Topic: s.Topic, Partition: partition}, recs)
		}
	}
	return fmt.Errorf("no source %s", source)
}

// busy gives the queues that hold parcels.
func (g *graph) busy() []*graphQueue {
	var out []*graphQueue
	for _, q := range g.queues {
		if len(q.parcels) > 0 {
			out = append(out, q)
		}
	}
	return out
}

// step lets the receiver of a queue take its first parcel.
func (q *graphQueue) step() error {
	p := q.parcels[0]
	q.parcels = q.parcels[1:]
	return q.to.task.Receive(p)
}

// settle serves queues until all are empty; pick chooses among n.
func (g *graph) settle(pick func(n int) int) error {
	for busy := g.busy(); len(busy) > 0; busy = g.busy() {
		if err := busy[pick(len(busy))].step(); err != nil {
			return err
		}
	}
	return nil
}

// first serves the oldest queue.
func first(int) int { return 0 }

// close ends the tasks and checks that nothing they gave away has changed.
func (g *graph) close() {
	for _, gt := range g.order {
		require.NoError(g.t, gt.task.Close())
		require.NoError(g.t, gt.Check())
	}
}

// skips gives all calls of Skipped as text, in the order of tasks.
func (g *graph) skips() []string {
	var out []string
	for _, gt := range g.order {
		for _, s := range gt.Skips {
			out = append(out, s.Step+": "+s.Reason.Error())
		}
	}
	return out
}

// flight is a record of a snapshot that was on its way to a stage.
type flight struct {
	stage string
	group int
	data  []byte
}

// snapshot encodes everything that is in queues and copies all state, by stage, state and key. The queues stay as they are.
func (g *graph) snapshot() (flights []flight, states map[string]map[string]map[string][]byte) {
	for _, gt := range g.order { // in the order of tasks, so that the same draws give the same run
		for _, from := range g.order {
			q := gt.in[from]
			if q == nil {
				continue
			}
			for _, p := range q.parcels {
				p.Keep()
				before := len(flights)
				require.NoError(g.t, p.Encode(func(group int, data []byte) error {
					flights = append(flights, flight{gt.task.ID().Source, group, bytes.Clone(data)})
					return nil
				}))
				require.Equal(g.t, p.Len(), len(flights)-before)
			}
		}
	}
	states = map[string]map[string]map[string][]byte{}
	for _, gt := range g.order {
		stage := gt.task.ID().Source
		for id, table := range gt.Tables {
			for k, v := range table.All() {
				if states[stage] == nil {
					states[stage] = map[string]map[string][]byte{}
				}
				if states[stage][id] == nil {
					states[stage][id] = map[string][]byte{}
				}
				require.NotContains(g.t, states[stage][id], string(k), "a key is in two subtasks")
				states[stage][id][string(k)] = v
			}
		}
	}
	return flights, states
}

// restore makes a graph of a snapshot, at another parallelism: state and keyed records go to the owners of their groups,
// other records to the subtask that pick chooses. What is restored is received first.
func restore(t require.TestingT, plan *topology.Plan, partitions, maxParallelism int, par map[string]int, flights []flight, states map[string]map[string]map[string][]byte, pick func(n int) int) *graph {
	g := newGraph(t, plan, partitions, maxParallelism, par, func(stage topology.StagePlan, subtask, parallelism int) map[string]*memTable {
		tables := map[string]*memTable{}
		for id, entries := range states[stage.Name] {
			tables[id] = newTable()
			for k, v := range entries {
				owner := element.SubtaskOf(element.KeyGroup([]byte(k), maxParallelism), parallelism, maxParallelism)
				if stage.Kind != topology.SourceStage && owner == subtask {
					tables[id].Put([]byte(k), v)
				}
			}
		}
		return tables
	})
	data := map[*graphTask][][]byte{}
	for _, f := range flights {
		i := slices.IndexFunc(plan.Stages, func(s topology.StagePlan) bool { return s.Name == f.stage })
		subtask := 0
		if f.group >= 0 {
			subtask = element.SubtaskOf(f.group, g.par[i], maxParallelism)
		} else {
			subtask = pick(g.par[i])
		}
		to := g.tasks[element.TaskID{Source: f.stage, Partition: int32(subtask)}]
		data[to] = append(data[to], f.data)
	}
	for _, gt := range g.order {
		if len(data[gt]) == 0 {
			continue
		}
		p, err := gt.task.Restore(data[gt])
		require.NoError(t, err)
		for _, d := range data[gt] {
			clear(d) // the parcel has bytes of its own
		}
		q := &graphQueue{to: gt, parcels: []topology.Parcel{p}}
		gt.in[gt] = q
		g.queues = append(g.queues, q)
	}
	return g
}
