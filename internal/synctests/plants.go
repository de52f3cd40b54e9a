//go:build synctests

package synctests

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/sabotage"
)

// plants are mistakes of the protocol, beside those of package sabotage.
var plants = []struct {
	name     string
	most     int // the processes that are needed to see it
	decorate func(*engine.Ports)
}{
	// A commit whose answer was lost is taken for done.
	{"believe", 1, func(p *engine.Ports) { p.Committer = believer{p.Committer} }},
	// What an attempt that failed has changed in the state stays there.
	{"no-rollback", 1, func(p *engine.Ports) {
		open := p.NewState
		p.NewState = func(task element.TaskID) engine.State { return sticky{open(task)} }
	}},
	// Files are not synced, which only a loss of power shows.
	{noSync, 1, func(*engine.Ports) {}},
	// What a task that leaves has put out behind its last checkpoint goes into the next transaction.
	{"no-drop", 3, func(p *engine.Ports) {
		open := p.NewSink
		p.NewSink = func() (engine.Sink, error) {
			s, err := open()
			return &leaky{Sink: s}, err
		}
	}},
}

// noSync is planted in the Disk.
const noSync = "no-sync"

// planted gives what builds a mistake into the service; "" builds none.
func planted(name string) (func(*engine.Ports), error) {
	for _, p := range plants {
		if p.name == name {
			return p.decorate, nil
		}
	}
	f, err := sabotage.Decorate(name)
	if err != nil {
		return nil, fmt.Errorf("not a plant of these tests, and %w", err)
	}
	return f, nil
}

type believer struct{ engine.Committer }

func (b believer) Commit(ctx context.Context, c checkpoint.Commit) error {
	err := b.Committer.Commit(ctx, c)
	if err != nil && fault.RecoveryOf(err) == fault.Unconfirmed {
		return nil
	}
	return err
}

type sticky struct{ engine.State }

func (sticky) Rollback() {}

type leaky struct {
	engine.Sink
	sealed atomic.Uint64
}

func (l *leaky) Seal(ctx context.Context, id element.CheckpointID) error {
	l.sealed.Store(uint64(id))
	return l.Sink.Seal(ctx, id)
}

// Drop lets go what it should drop.
func (l *leaky) Drop(task element.TaskID) {
	_ = l.Sink.Release(element.CheckpointID(l.sealed.Load()))
	l.Sink.Drop(task)
}
