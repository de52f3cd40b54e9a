package sabotage

import (
	"context"
	"fmt"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/snapshot"
)

// Fault is one planted fault.
type Fault struct {
	Name string
	Help string // one line

	decorate func(*engine.Ports)
}

// Faults are all there are, in the order of the help text.
var Faults = []Fault{
	{"lose-delta", "restore forgets the newest changes of the state: counts start again after a kill", loseDelta},
	{"skip-input", "now and then a record is passed over although its position is committed", skipInput},
	{"late-output", "the last output before a barrier is written behind it: a kill in between loses it", lateOutput},
}

// Names lists the faults for messages.
func Names() string {
	var names []string
	for _, f := range Faults {
		names = append(names, f.Name)
	}
	return strings.Join(names, ", ")
}

// Decorate gives the function that plants the fault of that name into the engine's ports; for "" it does nothing.
func Decorate(name string) (func(*engine.Ports), error) {
	if name == "" {
		return func(*engine.Ports) {}, nil
	}
	for _, f := range Faults {
		if f.Name == name {
			return f.decorate, nil
		}
	}
	return nil, fmt.Errorf("unknown sabotage %q: one of %s", name, Names())
}

// forgetful drops the newest run of every restore.
type forgetful struct{ engine.Checkpoints }

func loseDelta(p *engine.Ports) { p.Checkpoints = forgetful{p.Checkpoints} }

func (f forgetful) Restore(ctx context.Context, entry snapshot.TaskEntry, keep func(state int, key []byte) bool, apply func(snapshot.Entry) error) (snapshot.Stats, error) {
	if n := len(entry.Runs); n > 0 {
		entry.Runs = entry.Runs[:n-1]
	}
	return f.Checkpoints.Restore(ctx, entry, keep, apply)
}

// skipEvery is how many deliveries pass untouched between two that lose a record.
const skipEvery = 50

// lossy takes the last record out of some deliveries.
type lossy struct{ engine.Source }

func skipInput(p *engine.Ports) {
	open := p.NewSource
	p.NewSource = func(positions []element.Position) (engine.Source, error) {
		src, err := open(positions)
		if err != nil {
			return nil, err
		}
		return lossy{src}, nil
	}
}

func (l lossy) Run(ctx context.Context, deliver func(context.Context, element.Delivery) error) error {
	n := 0
	return l.Source.Run(ctx, func(ctx context.Context, d element.Delivery) error {
		if n++; n%skipEvery == 0 && len(d.Records) > 0 {
			d.Records = d.Records[:len(d.Records)-1]
		}
		return deliver(ctx, d)
	})
}

// tardy makes writers that are one write behind.
type tardy struct{ engine.Sink }

func lateOutput(p *engine.Ports) {
	open := p.NewSink
	p.NewSink = func() (engine.Sink, error) {
		sink, err := open()
		if err != nil {
			return nil, err
		}
		return tardy{sink}, nil
	}
}

func (t tardy) Writer(task element.TaskID, behind ...element.CheckpointID) engine.SinkWriter {
	return &tardyWriter{SinkWriter: t.Sink.Writer(task, behind...)}
}

type tardyWriter struct {
	engine.SinkWriter
	sink int
	late []element.Record
}

func (w *tardyWriter) Write(ctx context.Context, sink int, recs []element.Record) error {
	if len(w.late) > 0 {
		if err := w.SinkWriter.Write(ctx, w.sink, w.late); err != nil {
			return err
		}
	}
	n := max(0, len(recs)-1)
	w.sink, w.late = sink, append([]element.Record(nil), recs[n:]...)
	return w.SinkWriter.Write(ctx, sink, recs[:n])
}
