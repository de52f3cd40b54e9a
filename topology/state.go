package topology

import (
	"iter"
	"reflect"

	"github.com/millweir/millweir/element"
)

// Env is what a task needs from the engine. All calls come from the goroutine that calls Task.Process.
type Env interface {
	// State gives the table of one state; codec is the id of its value codec, as in StatePlan.Codec. It is called by
	// NewTask, once per state of the task's source.
	State(step, name, codec string) (StateTable, error)
	// Emit takes output records for the sink with that index in Plan.Sinks. The slice and the headers are valid during
	// the call only. Key and value bytes never change and stay valid as long as they are referenced.
	Emit(sink int, recs []element.Record) error
	// Skipped is told of every record that a step left out: a *RecordError under the policy Skip, ErrTombstone for
	// a tombstone that an aggregate ignored.
	Skipped(step string, reason error)
	// Send takes a parcel over for a subtask of an exchange stage, by its index in Plan.Stages. Parcels of one task
	// for one subtask stay in order. It never blocks.
	Send(stage, subtask int, p Parcel) error
	// Parallelism is the number of subtasks of an exchange stage, between 1 and MaxParallelism. It does not change.
	Parallelism(stage int) int
	// MaxParallelism is the number of key groups. It does not change.
	MaxParallelism() int
	// Now is the processing time in milliseconds since the Unix epoch.
	Now() int64
}

// StateTable is the keyed state of one step in one task: byte strings by byte strings. Keys and values that are passed
// in are copied.
type StateTable interface {
	// Get gives the value of a key. The bytes are valid until the next call that writes and must not be changed.
	Get(key []byte) ([]byte, bool)
	Put(key, value []byte)
	Delete(key []byte)
	// Upsert gives the writable value of a key, exactly size bytes, valid until the next call that writes. existed says
	// that they hold the key's old value; otherwise the key is new, or its value had another length, and they must be
	// filled.
	Upsert(key []byte, size int) (value []byte, existed bool)
	// All gives every key with its value, in any order. The bytes are valid during the step only; the table must not be
	// written meanwhile.
	All() iter.Seq2[[]byte, []byte]
}

// isPlain reports that values of S hold no pointer, so that a decoded value cannot alias the bytes it came from.
func isPlain[S any]() bool { return plain(reflect.TypeFor[S]()) }

// plain reports that values of a type hold no pointer.
func plain(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return true
	case reflect.Array:
		return t.Len() == 0 || plain(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if !plain(t.Field(i).Type) {
				return false
			}
		}
		return true
	}
	return false
}
