package engine

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/topology"
)

// feedbackRecords is how many records may wait on one channel of a feedback edge. There is no credit on it, so this is what
// keeps a loop that makes more than it consumes from taking all memory.
const feedbackRecords = 1 << 20

// outputs are the channels of one task to the subtasks of the exchanges behind it, by stage.
type outputs struct {
	byStage map[int][]*channel
	all     []*channel
}

func (o *outputs) none() bool { return len(o.all) == 0 }

func (o *outputs) add(stage int, cs []*channel) {
	if o.byStage == nil {
		o.byStage = map[int][]*channel{}
	}
	o.byStage[stage] = cs
	o.all = append(o.all, cs...)
}

// credit reports that a batch may be begun: every channel has room.
func (o *outputs) credit() bool {
	for _, c := range o.all {
		if !c.credit() {
			return false
		}
	}
	return true
}

func (o *outputs) send(stage, subtask int, p topology.Parcel) error {
	cs := o.byStage[stage]
	if subtask < 0 || subtask >= len(cs) {
		return fmt.Errorf("send to subtask %d of stage %d, which has %d", subtask, stage, len(cs))
	}
	c := cs[subtask]
	if c.feedback && c.waiting() > feedbackRecords {
		return fault.Restartf(fault.Failed, "more than %d records wait on a feedback edge: the loop makes records faster than it consumes them", feedbackRecords)
	}
	c.push(p)
	return nil
}

func (o *outputs) barrier(b gate.Barrier) {
	for _, c := range o.all {
		c.pushBarrier(b)
	}
}

func (o *outputs) cancel(id element.CheckpointID) {
	for _, c := range o.all {
		c.pushCancel(id)
	}
}

func (o *outputs) end() {
	for _, c := range o.all {
		c.pushEnd()
	}
}

// parallelism is how many subtasks the exchanges of an attempt have.
type parallelism struct {
	most    int
	byStage map[int]int
}

func (p parallelism) of(stage int) int { return p.byStage[stage] }

// brake stops the sources of an attempt while a task behind an exchange has too much uncommitted state.
type brake struct {
	n atomic.Int64

	mu      sync.Mutex
	sources []*doorbell // guarded by mu
}

func (b *brake) add(source *doorbell) {
	b.mu.Lock()
	b.sources = append(b.sources, source)
	b.mu.Unlock()
}

func (b *brake) held() bool { return b != nil && b.n.Load() > 0 }

func (b *brake) hold() { b.n.Add(1) }

func (b *brake) release() {
	if b.n.Add(-1) > 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sources {
		s.ring()
	}
}
