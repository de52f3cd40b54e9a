package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// parallelismOf gives the number of subtasks of every exchange of a plan.
func parallelismOf(plan *topology.Plan, cfg Config) parallelism {
	par := parallelism{most: cfg.MaxParallelism, byStage: map[int]int{}}
	for _, s := range plan.Stages {
		if s.Kind == topology.SourceStage {
			continue
		}
		n := s.Parallelism
		if n == 0 {
			n = cfg.Parallelism
		}
		par.byStage[s.Index] = min(n, cfg.MaxParallelism)
	}
	return par
}

// stageFacts gives what the resolution needs to know of the exchanges.
func (a *attempt) stageFacts() []snapshot.StageFacts {
	var out []snapshot.StageFacts
	for _, s := range a.r.plan.Stages {
		if s.Kind != topology.SourceStage {
			out = append(out, snapshot.StageFacts{Name: s.Name, Parallelism: a.par.of(s.Index), MaxParallelism: a.par.most, Exchange: exchangeKind(s.Kind)})
		}
	}
	return out
}

// exchangeKind gives the word of checkpoints for a kind of stage.
func exchangeKind(k topology.StageKind) snapshot.ExchangeKind {
	switch k {
	case topology.HashStage:
		return snapshot.GroupByExchange
	case topology.RebalanceStage:
		return snapshot.RebalanceExchange
	case topology.BroadcastStage:
		return snapshot.BroadcastExchange
	case topology.FeedbackStage:
		return snapshot.FeedbackExchange
	}
	return snapshot.UnknownExchange
}

// stageOf finds the stage of a task.
func (a *attempt) stageOf(id element.TaskID) topology.StagePlan {
	i := slices.IndexFunc(a.r.plan.Stages, func(s topology.StagePlan) bool { return s.Name == id.Source })
	return a.r.plan.Stages[i]
}

// asSubtask makes a task that of an exchange, when it is one.
func (a *attempt) asSubtask(t *task) {
	s := a.stageOf(t.id)
	t.stage, t.hasTimers, t.brake, t.wholes, t.flow = s.Index, s.Timers, a.brake, a.wholes, a.flow
	if s.Kind == topology.SourceStage {
		return
	}
	t.exchange, t.parallelism, t.feedbackOnly = true, a.par.of(s.Index), s.Kind == topology.FeedbackStage
}

// replayParcels is how many records of those in flight make one parcel.
const replayParcels = 256

// replay reads what was on the way to a subtask when the checkpoint was taken.
func (in *intake) replay(ctx context.Context, t *owned, d snapshot.Decision) error {
	r := &replaying{t: t, d: d, drop: in.a.r.cfg.AllowDropped}
	for i := range d.Sources {
		src := &d.Sources[i]
		_, err := in.reads(d).RestoreInFlight(ctx, *src, d.KeepInFlight(src), func(group int, data []byte) error { return r.add(src, group, data) })
		if err != nil {
			return fmt.Errorf("restore task %s from checkpoint %s: %w", t.id, d.Root.Name, err)
		}
		if err := r.flush(); err != nil {
			return err
		}
	}
	if r.dropped > 0 {
		in.a.r.lis.dropped(snapshot.DroppedStage{Stage: t.id.Source, Root: d.Root, Subtasks: 1, InFlight: r.dropped})
	}
	return nil
}

// replaying makes parcels of the records in flight of one subtask.
type replaying struct {
	t       *owned
	d       snapshot.Decision
	drop    bool // what the exchange cannot take now is let go
	some    [][]byte
	dropped int64
}

func (r *replaying) add(src *snapshot.TaskEntry, group int, data []byte) error {
	if !r.d.Fits(src, group) {
		if r.drop {
			r.dropped++
			return nil
		}
		return r.refuse("they came over another kind of exchange of this name, which is now a %s and leads them elsewhere", r.d.Stage.Exchange)
	}
	if r.some = append(r.some, slices.Clone(data)); len(r.some) < replayParcels {
		return nil
	}
	return r.flush()
}

func (r *replaying) flush() error {
	if len(r.some) == 0 {
		return nil
	}
	p, err := r.t.chain.Restore(r.some)
	switch {
	case err == nil:
		r.t.in.replay = append(r.t.in.replay, p)
	case errors.Is(err, topology.ErrInFlightCodecs) && r.drop: // all of them: one program wrote them
		r.dropped += int64(len(r.some))
	case errors.Is(err, topology.ErrInFlightCodecs):
		return r.refuse("%w", err)
	case errors.Is(err, topology.ErrInFlightVersion), errors.Is(err, topology.ErrInFlightDamaged):
		return fault.Stopf(fault.Corrupt, "task %s: records in flight of checkpoint %s: %w", r.t.id, r.d.Root.Name, err)
	default:
		return fmt.Errorf("task %s: records in flight of checkpoint %s: %w", r.t.id, r.d.Root.Name, err)
	}
	r.some = r.some[:0]
	return nil
}

// refuse says that the exchange has become one that cannot take what is on the way.
func (r *replaying) refuse(why string, args ...any) error {
	return fault.Stopf(fault.StateMismatch, "stage %s: task %s: records in flight of checkpoint %s cannot be taken: %w; "+
		"go back to what the exchange was and stop gracefully, so that nothing is in flight, and change it then, or let them go with --allow-dropped-state",
		r.t.id.Source, r.t.id, r.d.Root.Name, fmt.Errorf(why, args...))
}

// replayAll reads what was on the way to the subtasks.
func (in *intake) replayAll(decisions map[element.TaskID]snapshot.Decision) error {
	for _, t := range in.tasks {
		if d := decisions[t.id]; t.exchange && len(d.Sources) > 0 {
			if err := in.replay(in.ctx, t, d); err != nil {
				return err
			}
			t.in.fallBehind()
			t.flow.add(len(t.in.replay))
		}
	}
	return nil
}

// wire puts channels between the tasks and gates before those behind an exchange. All tasks are there, none runs.
func (a *attempt) wire() {
	cfg := a.r.cfg
	for _, s := range a.r.plan.Stages {
		if s.Kind == topology.SourceStage {
			continue
		}
		var receivers []*task
		for i := range a.par.of(s.Index) {
			receivers = append(receivers, a.tasks[element.TaskID{Source: s.Name, Partition: int32(i)}].task)
		}
		for _, id := range a.order {
			if !slices.Contains(s.From, id.Source) {
				continue
			}
			sender := a.tasks[id]
			cs := make([]*channel, len(receivers))
			for i, r := range receivers {
				cs[i] = &channel{limit: cfg.ChannelRecords, receiver: r.bell, sender: sender.bell, news: &r.in.news, newest: &r.in.newest, behind: &r.in.behind, feedback: r.feedbackOnly}
				r.in.channels = append(r.in.channels, cs[i])
			}
			sender.outs.add(s.Index, cs)
		}
		for _, r := range receivers {
			opts := []gate.Option{gate.After(a.lastID)}
			if r.feedbackOnly {
				for i := range r.in.channels {
					opts = append(opts, gate.Feedback(i))
				}
			}
			r.in.gate = gate.New(len(r.in.channels), cfg.gateMode(), opts...)
		}
	}
	for _, id := range a.order {
		if t := a.tasks[id]; !t.exchange {
			a.brake.add(t.bell)
		}
	}
}

// onEnded notes that no record comes to a task any more. From now on the coordinator brings it the barriers; that of a
// checkpoint which was triggered before this was known may have been missed:
//
//	the loop                       a source                the task behind it
//	                               sends its end
//	trigger 7 -> the source        passes barrier 7 to nobody
//	                                                       takes the end: over
//	is told, brings 7
//
// The task ignores a barrier that it has passed.
func (a *attempt) onEnded(id element.TaskID) []checkpoint.Action {
	t := a.tasks[id]
	if t == nil || t.over {
		return nil
	}
	t.over = true
	if t.exchange {
		for _, p := range a.pending {
			if _, passed := p.acks[id]; !passed {
				t.inbox.barrier(p.barrier)
			}
		}
	}
	return a.onEmpty()
}

// onEmpty looks whether a bounded run is over: all sources have ended, and nothing is on its way. Tasks may hold timers that
// are not due; those stay in the state, and the last checkpoint goes through them as any other does. Nor is it waited for the
// ends to come through: round a feedback edge none does. When the last checkpoint has been asked for already, for a stop that may
// not come about, an end may lie behind its barriers: whether all is over is seen in the next attempt.
func (a *attempt) onEmpty() []checkpoint.Action {
	if a.finished || a.lasting || len(a.tasks) == 0 {
		return nil
	}
	if a.draining {
		return a.drainedLoop(a.flow.close())
	}
	for _, o := range a.tasks {
		if !o.exchange && !o.over {
			return nil
		}
	}
	empty := a.flow.watch()
	if empty && a.r.plan.HasFeedback() {
		empty = a.flow.close() // a timer that comes due now would send something around
	}
	if empty { // else evEmpty comes again
		a.finished = true
		a.stopIn() // evDrained, and with it the final checkpoint, follows
	}
	return nil
}

// onDrained: the source has stopped, and the last checkpoint follows. Round a feedback edge it does not have what is on its
// way, so that is let come to its end first: sources' tasks take nothing of what is fetched, no timer fires, and the
// checkpoint comes when nothing is left, or when a part of the shutdown timeout is over.
func (a *attempt) onDrained() []checkpoint.Action {
	if !a.r.plan.HasFeedback() || a.finished {
		return a.final()
	}
	a.draining = true
	if a.flow.close() {
		return a.drainedLoop(true)
	}
	for _, t := range a.tasks {
		t.bell.ring() // for those whose timers wait for room
	}
	wait := a.r.cfg.ShutdownTimeout / 2
	if a.redrawn {
		wait = min(wait, redrawPatience)
	}
	a.patience = time.After(wait)
	return nil
}

// redrawPatience bounds that wait when the partitions change: the group gives half a minute for it, unless told otherwise,
// and the last checkpoint has to come within that, too.
const redrawPatience = 10 * time.Second

// drainedLoop takes the last checkpoint when nothing is on its way any more, or when nobody waits for that any longer.
func (a *attempt) drainedLoop(now bool) []checkpoint.Action {
	if !now || !a.draining {
		return nil
	}
	a.draining, a.patience = false, nil
	return a.final()
}
