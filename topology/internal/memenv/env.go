package memenv

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/topology"
)

// Skip is one call of Env.Skipped.
type Skip struct {
	Step   string
	Reason error
}

// Env is the environment of one task. It keeps key and value bytes of outputs as they were handed over, without a copy,
// and headers copied, as the interface allows; Check finds bytes that changed afterwards.
type Env struct {
	Tables  map[string]*Table // by step/name
	Codecs  map[string]string
	Opened  []string // in the order of the calls
	Out     map[int][]element.Record
	Skips   []Skip
	Emits   int
	EmitErr error // what Emit answers
	// Discard makes Emit only count, for benchmarks.
	Discard bool
	Count   int

	copies []element.Record
	kept   []element.Record
}

// New gives an empty environment.
func New() *Env {
	return &Env{Tables: map[string]*Table{}, Codecs: map[string]string{}, Out: map[int][]element.Record{}}
}

// State implements topology.Env. A table that is there already, say from an earlier task, is used again.
func (e *Env) State(step, name, codec string) (topology.StateTable, error) {
	id := step + "/" + name
	if was, ok := e.Codecs[id]; ok && was != codec {
		return nil, fmt.Errorf("state %s has codec %s, not %s", id, was, codec)
	}
	e.Opened = append(e.Opened, id)
	e.Codecs[id] = codec
	if e.Tables[id] == nil {
		e.Tables[id] = NewTable()
	}
	return e.Tables[id], nil
}

// Emit implements topology.Env.
func (e *Env) Emit(sink int, recs []element.Record) error {
	e.Emits++
	e.Count += len(recs)
	if e.EmitErr != nil || e.Discard {
		return e.EmitErr
	}
	for _, r := range recs {
		r.Headers = slices.Clone(r.Headers)
		e.Out[sink] = append(e.Out[sink], r)
		e.kept = append(e.kept, r)
		r.Key, r.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
		e.copies = append(e.copies, r)
	}
	return nil
}

// Skipped implements topology.Env.
func (e *Env) Skipped(step string, reason error) {
	e.Skips = append(e.Skips, Skip{Step: step, Reason: reason})
}

// Check fails when key or value bytes of an output have changed since they were emitted.
func (e *Env) Check() error {
	for i, r := range e.kept {
		if !bytes.Equal(r.Key, e.copies[i].Key) || !bytes.Equal(r.Value, e.copies[i].Value) {
			return fmt.Errorf("output of offset %d changed after it was emitted: %q=%q became %q=%q",
				r.Offset, e.copies[i].Key, e.copies[i].Value, r.Key, r.Value)
		}
	}
	return nil
}
