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

// same says whether both name one record, whichever step failed, or one timer of a key at a step and time.
func (r Record) same(o Record) bool {
	return r.alike(o) && (r.Timer == nil || r.Timer.At.Equal(o.Timer.At))
}

// alike is same but for the time of timers: one that is set at the time of the attempt, or whose record has that time, has
// another one in each attempt. It fires again with all that it emits, so the first that fails has the same step and key.
func (r Record) alike(o Record) bool {
	if r.Timer == nil || o.Timer == nil {
		return r.Timer == o.Timer && r.TopicPartition == o.TopicPartition && r.Offset == o.Offset
	}
	return r.Emitted == o.Emitted && r.Step == o.Step && string(r.Timer.Key) == string(o.Timer.Key)
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

// anewWithin is how long attempts may run, together, between two failures at a timer that has another time each time. A key
// may have timers for ever: after as long as this the first one has been got past.
const anewWithin = 10 * time.Minute

// suspect is a record at which attempts failed. Other failures in between do not count against it, nor for it: what
// was processed and committed does not come again, so a record that fails again has not been got past.
type suspect struct {
	record   Record
	failures int
	first    error
	ran      time.Duration // since the last of them, all attempts together
}

// guard counts failures per record.
type guard struct {
	limit    int // 0 = it only counts
	suspects []suspect
}

// passed counts the time that an attempt has run.
func (g *guard) passed(d time.Duration) {
	for i := range g.suspects {
		g.suspects[i].ran += d
	}
}

// failed counts a failure.
func (g *guard) failed(r Record, cause error) suspect {
	i := slices.IndexFunc(g.suspects, func(s suspect) bool { return s.record.same(r) })
	if i < 0 {
		i = slices.IndexFunc(g.suspects, func(s suspect) bool { return s.record.alike(r) && s.ran < anewWithin })
	}
	s := suspect{first: cause}
	if i >= 0 {
		s = g.suspects[i]
		g.suspects = slices.Delete(g.suspects, i, i+1)
	} else if len(g.suspects) == guardRecords {
		g.suspects = slices.Delete(g.suspects, 0, 1)
	}
	s.record, s.ran = r, 0
	s.failures++
	g.suspects = append(g.suspects, s)
	return s
}

func (g *guard) condemns(s suspect) bool { return g.limit > 0 && s.failures >= g.limit }
