package restart

import (
	"errors"
	"fmt"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/topology"
)

// Record names a record that an attempt failed at.
type Record struct {
	element.TopicPartition
	Offset int64
	// Step is the source, step or sink that failed.
	Step string
}

// String writes the record as topic-partition@offset.
func (r Record) String() string { return fmt.Sprintf("%s-%d@%d", r.Topic, r.Partition, r.Offset) }

// RecordOf finds the record that an error speaks of; ok is false when it speaks of none.
func RecordOf(err error) (r Record, ok bool) {
	var e *topology.RecordError
	if !errors.As(err, &e) || e.From.Topic == "" || e.Offset < 0 {
		return Record{}, false
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

// failed counts a failure at a record, whichever step it was.
func (g *guard) failed(r Record, cause error) suspect {
	i := slices.IndexFunc(g.suspects, func(s suspect) bool {
		return s.record.TopicPartition == r.TopicPartition && s.record.Offset == r.Offset
	})
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
