package restart

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/topology"
)

// Record names what an attempt failed at: a record of a topic, a timer, or a record that a timer has emitted.
type Record struct {
	element.TopicPartition // zero for a timer
	Offset                 int64
	// Step is the source, step or sink that failed.
	Step string
	// Timer is set for a timer, and for a record of one; TopicPartition and Offset mean nothing then.
	Timer *topology.TimerRef
	// Emitted says that it is a record of a timer, with the key that it has at Step.
	Emitted bool
}

// String writes a record as topic-partition@offset, and a timer or a record of one with step, key (cut to 64 bytes) and time.
func (r Record) String() string {
	if r.Timer != nil && r.Emitted {
		return fmt.Sprintf("record of a timer at step %s, key %.64q, at %s", r.Step, r.Timer.Key, r.Timer.At.UTC().Format(time.RFC3339Nano))
	}
	if r.Timer != nil {
		return fmt.Sprintf("timer of step %s, key %.64q, at %s", r.Step, r.Timer.Key, r.Timer.At.UTC().Format(time.RFC3339Nano))
	}
	return fmt.Sprintf("record %s-%d@%d", r.Topic, r.Partition, r.Offset)
}

// same says whether both name one record, whichever step failed, or one timer. Records of timers are one when they have one
// key and time at one step: a timer fires again with all that it emits, so the first that fails is the same every time.
func (r Record) same(o Record) bool {
	if r.Timer == nil || o.Timer == nil {
		return r.Timer == o.Timer && r.TopicPartition == o.TopicPartition && r.Offset == o.Offset
	}
	return r.Emitted == o.Emitted && r.Step == o.Step && string(r.Timer.Key) == string(o.Timer.Key) && r.Timer.At.Equal(o.Timer.At)
}

// RecordOf finds the record or timer that an error speaks of; ok is false when it speaks of none.
func RecordOf(err error) (r Record, ok bool) {
	var e *topology.RecordError
	if !errors.As(err, &e) || e.Timer == nil && (e.From.Topic == "" || e.Offset < 0) {
		return Record{}, false
	}
	if e.Timer != nil {
		return Record{Step: e.Step, Timer: e.Timer, Emitted: e.Emitted}, true
	}
	return Record{TopicPartition: e.From, Offset: e.Offset, Step: e.Step}, true
}

// guardRecords bounds the records that the guard remembers: those of the newest failures. Several tasks may each have a
// poison record, and whichever fails first ends the attempt.
const guardRecords = 64

// suspect is a record at which attempts failed. Other failures in between do not count against it, nor for it: what
// was processed and committed does not come again, so a record that fails again has not been got past.
type suspect struct {
	record   Record
	failures int
	first    error
}

// guard counts failures per record.
type guard struct {
	limit    int // 0 = it only counts
	suspects []suspect
}

// failed counts a failure.
func (g *guard) failed(r Record, cause error) suspect {
	i := slices.IndexFunc(g.suspects, func(s suspect) bool { return s.record.same(r) })
	s := suspect{record: r, first: cause}
	if i >= 0 {
		s = g.suspects[i]
		g.suspects = slices.Delete(g.suspects, i, i+1)
	} else if len(g.suspects) == guardRecords {
		g.suspects = slices.Delete(g.suspects, 0, 1)
	}
	s.failures++
	g.suspects = append(g.suspects, s)
	return s
}

func (g *guard) condemns(s suspect) bool { return g.limit > 0 && s.failures >= g.limit }
