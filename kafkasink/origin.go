package kafkasink

import (
	"context"
	"fmt"
	"reflect"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
)

// origin is the Context of the records of one Write. The client hands it back with a record that failed, and so it can be
// told which input that came from; the client changes every field of a record that would be free for it. No record has to
// be kept for that, as records lie one after the other and do not move.
type origin struct {
	context.Context
	task    element.TaskID
	first   uintptr // where the first record lies
	offsets []int64 // of the inputs, record by record
}

var recordSize = reflect.TypeFor[kgo.Record]().Size()

// Origin says which task and input made a record, "" when it is not one of this Write's.
func (o *origin) Origin(r *kgo.Record) string {
	at := reflect.ValueOf(r).Pointer()
	if at < o.first || (at-o.first)%recordSize != 0 || (at-o.first)/recordSize >= uintptr(len(o.offsets)) {
		return ""
	}
	return fmt.Sprintf("task %s, offset %d", o.task, o.offsets[(at-o.first)/recordSize])
}

// origins makes them for a writer, several per allocation. What is made together stays as long as any of it is in use.
type origins struct {
	free    []origin
	offsets []int64
}

const (
	originsAtOnce = 32
	offsetsAtOnce = 1024
)

// mark makes the origin of out, which was converted from recs.
func (s *origins) mark(task element.TaskID, recs []element.Record, out []kgo.Record) {
	n := len(recs)
	if len(s.free) == 0 {
		s.free = make([]origin, originsAtOnce)
	}
	if len(s.offsets) < n {
		s.offsets = make([]int64, max(n, offsetsAtOnce))
	}
	o := &s.free[0]
	*o = origin{Context: context.Background(), task: task, first: reflect.ValueOf(&out[0]).Pointer(), offsets: s.offsets[:n:n]}
	s.free, s.offsets = s.free[1:], s.offsets[n:]
	for i := range recs {
		o.offsets[i] = recs[i].Offset
		out[i].Context = o
	}
}
