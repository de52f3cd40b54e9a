package processor

import (
	"context"
	"iter"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/kafkasink"
	"github.com/millweir/millweir/kafkasrc"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
	"github.com/millweir/millweir/topology"
)

// The types in this file let packages that do not know each other meet; none of them decides anything.

// group is the membership as the engine sees it.
type group struct{ *kafkasrc.Group }

var _ engine.Group = group{}

// Current gives the assignment.
func (g group) Current() engine.Assignment {
	a := g.Group.Current()
	return engine.Assignment{Epoch: a.Epoch, Partitions: a.Partitions, Since: a.Since, Member: a.Member}
}

// source is a fetcher as the engine sees it.
type source struct{ *kafkasrc.Fetcher }

var _ engine.Source = source{}

// Run delivers until ctx ends.
func (s source) Run(ctx context.Context, deliver func(context.Context, element.Delivery) error) error {
	return s.Fetcher.Run(ctx, deliver)
}

// sink is the sink as the engine sees it.
type sink struct{ *kafkasink.Sink }

var _ engine.Sink = sink{}

// Writer gives the writer of a task.
func (s sink) Writer(task element.TaskID, behind ...element.CheckpointID) engine.SinkWriter {
	return s.WriterBehind(task, behind...)
}

// state is a store as the engine sees it.
type state struct{ *store.Store }

var _ engine.State = state{}

// Table registers or finds a state table.
func (s state) Table(name, codec string) (topology.StateTable, error) {
	return s.Store.Table(name, codec)
}

// Freeze ends the active epoch.
func (s state) Freeze(id element.CheckpointID) engine.Frozen { return frozen{s.Store.Freeze(id)} }

// FreezeFull ends the active epoch for a checkpoint that has the whole state.
func (s state) FreezeFull(id element.CheckpointID) engine.Frozen {
	return frozen{s.Store.FreezeFull(id)}
}

// Load sets or deletes a committed value.
func (s state) Load(e snapshot.Entry) error {
	table := s.Tables()[e.State].Name
	if e.Deleted {
		return s.LoadDelete(table, e.Key)
	}
	return s.Store.Load(table, e.Key, e.Value)
}

// Entries gives the whole state.
func (s state) Entries() iter.Seq[snapshot.Entry] { return entries(s.Store.Entries()) }

// frozen is a change set as the engine sees it.
type frozen struct{ *store.Frozen }

// Sorted gives the changes in the order of a run.
func (f frozen) Sorted() iter.Seq[snapshot.Entry] { return entries(f.Frozen.Sorted()) }

// Full gives the whole state.
func (f frozen) Full() iter.Seq[snapshot.Entry] { return entries(f.Frozen.Full()) }

func entries(in iter.Seq[store.Entry]) iter.Seq[snapshot.Entry] {
	return func(yield func(snapshot.Entry) bool) {
		for e := range in {
			if !yield(snapshot.Entry{State: e.Table, Key: e.Key, Value: e.Value, Deleted: e.Deleted}) {
				return
			}
		}
	}
}
