package topology_test

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/topology"
)

// skip is one call of Env.Skipped.
type skip struct {
	Step   string
	Reason error
}

// memEnv is the environment of one task. It keeps key and value bytes of outputs as they were handed over, without a copy,
// and headers copied, as the interface allows; Check finds bytes that changed afterwards.
type memEnv struct {
	Tables  map[string]*memTable // by step/name
	Codecs  map[string]string
	Opened  []string // in the order of the calls
	Out     map[int][]element.Record
	Skips   []skip
	Emits   int
	EmitErr error // what Emit answers
	// Discard makes Emit only count, for benchmarks.
	Discard bool
	Clock   int64 // what Now answers
	Count   int

	copies []element.Record
	kept   []element.Record
}

// newMemEnv gives an empty environment.
func newMemEnv() *memEnv {
	return &memEnv{Tables: map[string]*memTable{}, Codecs: map[string]string{}, Out: map[int][]element.Record{}}
}

// State implements topology.Env. A table that is there already, say from an earlier task, is used again.
func (e *memEnv) State(step, name, codec string) (topology.StateTable, error) {
	id := step + "/" + name
	if was, ok := e.Codecs[id]; ok && was != codec {
		return nil, fmt.Errorf("state %s has codec %s, not %s", id, was, codec)
	}
	e.Opened = append(e.Opened, id)
	e.Codecs[id] = codec
	if e.Tables[id] == nil {
		e.Tables[id] = newTable()
	}
	return e.Tables[id], nil
}

// Emit implements topology.Env.
func (e *memEnv) Emit(sink int, recs []element.Record) error {
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
func (e *memEnv) Skipped(step string, reason error) {
	e.Skips = append(e.Skips, skip{Step: step, Reason: reason})
}

// Send implements topology.Env.
func (e *memEnv) Send(stage, subtask int, p topology.Parcel) error {
	return fmt.Errorf("a parcel for stage %d subtask %d", stage, subtask)
}

// Parallelism implements topology.Env.
func (e *memEnv) Parallelism(int) int { return 1 }

// MaxParallelism implements topology.Env.
func (e *memEnv) MaxParallelism() int { return element.DefaultMaxParallelism }

// Now implements topology.Env.
func (e *memEnv) Now() int64 { return e.Clock }

// Check fails when key or value bytes of an output have changed since they were emitted.
func (e *memEnv) Check() error {
	for i, r := range e.kept {
		if !bytes.Equal(r.Key, e.copies[i].Key) || !bytes.Equal(r.Value, e.copies[i].Value) {
			return fmt.Errorf("output of offset %d changed after it was emitted: %q=%q became %q=%q",
				r.Offset, e.copies[i].Key, e.copies[i].Value, r.Key, r.Value)
		}
	}
	return nil
}
