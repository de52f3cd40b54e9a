package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// StartKind tells the kinds of Start apart.
type StartKind uint8

// The kinds of start positions.
const (
	// StartCommitted starts where the application's last checkpoint committed, at the first record when there is none.
	StartCommitted StartKind = iota
	// StartEarliest starts at the first record in the topic.
	StartEarliest
	// StartLatest starts behind the last record in the topic.
	StartLatest
	// StartByTime starts at the first record that is not older than an instant.
	StartByTime
	// StartByAge is StartByTime with an instant that lies a duration before the start.
	StartByAge
	// StartByOffset starts at offsets that are named per partition.
	StartByOffset
)

// Start says where a source begins in partitions which the application has no checkpoint of. A checkpoint always wins: the
// position is resolved once per partition and committed before its first record. The zero value is Committed(). Two of
// them are compared with Equal.
//
// An offset that another program has committed for the group is no checkpoint and no start position either: with every Start
// it is refused, since it may be one of the application's own that a tool has moved, and its state would be lost without a
// word. To go on where another program is, take an application name that is not its group, and StartOffsets.
//
// It is for the partitions that the topic has when the application begins with it. One that is added later starts at
// its first record, or what was written before anybody noticed it would be lost.
type Start struct {
	Kind StartKind

	at      int64 // StartByTime: Unix ms; StartByAge: ns
	offsets *perPartition
}

// perPartition is a map behind a pointer, so that what holds it can be compared.
type perPartition struct {
	offsets map[int32]int64
	others  StartKind
}

// Committed starts where the application's last checkpoint committed, and at the first record when there is none. As a
// checkpoint always wins, that is what Earliest does; it says that nothing else was chosen.
func Committed() Start { return Start{Kind: StartCommitted} }

// Earliest starts at the first record in the topic.
func Earliest() Start { return Start{Kind: StartEarliest} }

// Latest starts behind the last record in the topic that a read_committed reader can see: at its last stable offset.
func Latest() Start { return Start{Kind: StartLatest} }

// StartTimestamp starts, in each partition, at the first record whose timestamp is t or later, and at the end where there
// is none. All records behind it are read, older ones too: timestamps may run backwards. Milliseconds count.
func StartTimestamp(t time.Time) Start { return Start{Kind: StartByTime, at: t.UnixMilli()} }

// StartAgo is StartTimestamp with the time at which the partition is started for the first time, less d.
func StartAgo(d time.Duration) Start { return Start{Kind: StartByAge, at: int64(d)} }

// StartOffsets starts each partition at its offset, which must be in the log; partitions that are not named start at
// their first record. See Otherwise.
func StartOffsets(offsets map[int32]int64) Start {
	return Start{Kind: StartByOffset, offsets: &perPartition{offsets: maps.Clone(offsets), others: StartEarliest}}
}

// Otherwise gives a start by offsets in which the other partitions start at o, which is Earliest or Latest.
func (s Start) Otherwise(o Start) Start {
	p := &perPartition{others: o.Kind}
	if s.offsets != nil {
		p.offsets = s.offsets.offsets
	}
	s.offsets = p
	return s
}

// Time gives the instant of StartByTime, and that of StartByAge at now.
func (s Start) Time(now time.Time) time.Time {
	if s.Kind == StartByAge {
		return now.Add(-time.Duration(s.at))
	}
	return time.UnixMilli(s.at)
}

// Offsets gives the offsets of StartByOffset, nil for other kinds. The map must not be changed.
func (s Start) Offsets() map[int32]int64 {
	if s.offsets == nil {
		return nil
	}
	return s.offsets.offsets
}

// Others is how partitions start that Offsets does not name.
func (s Start) Others() Start {
	if s.offsets == nil {
		return s
	}
	return Start{Kind: s.offsets.others}
}

// Equal says that two starts mean the same.
func (s Start) Equal(o Start) bool {
	return s.Kind == o.Kind && s.at == o.at && s.Others().Kind == o.Others().Kind && maps.Equal(s.Offsets(), o.Offsets())
}

// String names the start as configuration does.
func (s Start) String() string {
	switch s.Kind {
	case StartCommitted:
		return "committed"
	case StartEarliest:
		return "earliest"
	case StartLatest:
		return "latest"
	case StartByTime:
		return "timestamp " + formatInstant(s.at)
	case StartByAge:
		return "ago " + time.Duration(s.at).String()
	case StartByOffset:
		return "offsets " + formatOffsets(s.Offsets()) + ", others " + s.Others().String()
	}
	return fmt.Sprintf("start(%d)", uint8(s.Kind))
}

func formatInstant(ms int64) string {
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.999Z07:00")
}

// offsetsShown is how many offsets of a map are printed.
const offsetsShown = 8

func formatOffsets(offsets map[int32]int64) string {
	parts := make([]string, 0, offsetsShown+1)
	for _, p := range slices.Sorted(maps.Keys(offsets)) {
		if len(parts) == offsetsShown {
			parts = append(parts, fmt.Sprintf("… (%d)", len(offsets)))
			break
		}
		parts = append(parts, fmt.Sprintf("%d:%d", p, offsets[p]))
	}
	return strings.Join(parts, " ")
}

// check gives what is wrong with a start, "" when nothing is.
func (s Start) check() string {
	switch {
	case s.Kind > StartByOffset:
		return fmt.Sprintf("%s: allowed are committed, earliest, latest, timestamp, ago and offsets", s)
	case s.Kind == StartByTime && s.at < 0:
		return fmt.Sprintf("start at %s: records have no timestamps before 1970", s)
	case s.Kind == StartByAge && s.at < 0:
		return fmt.Sprintf("start %s: it lies in the future", s)
	case s.Kind != StartByOffset && s.offsets != nil:
		return fmt.Sprintf("start %s: only a start by offsets says something else of other partitions", s.Kind.name())
	case s.Kind == StartByOffset:
		if s.Others().Kind != StartEarliest && s.Others().Kind != StartLatest {
			return fmt.Sprintf("start by offsets: partitions that are not named start at %s; allowed are earliest and latest", s.Others())
		}
		return checkOffsets("start", s.Offsets())
	}
	return ""
}

func (k StartKind) name() string { return Start{Kind: k}.String() }

// checkOffsets gives what is wrong with offsets per partition.
func checkOffsets(what string, offsets map[int32]int64) string {
	if len(offsets) == 0 {
		return what + " by offsets: no partition is named"
	}
	for _, p := range slices.Sorted(maps.Keys(offsets)) {
		if p < 0 || offsets[p] < 0 {
			return fmt.Sprintf("%s by offsets: partition %d, offset %d: neither may be negative", what, p, offsets[p])
		}
	}
	return ""
}

// Missing says what a source does where its position is no longer in the log: retention, or somebody, has deleted the
// records from there on before they were read.
type Missing uint8

// The ways. MissingFail is the default.
const (
	// MissingFail ends the process before anything is written: records are lost, and somebody should know.
	MissingFail Missing = iota
	// MissingEarliest goes on with the first record that is there. What was lost is counted and logged.
	MissingEarliest
	// MissingLatest goes on behind the last record. What was passed over is counted and logged.
	MissingLatest
)

// String names it as configuration does.
func (m Missing) String() string {
	switch m {
	case MissingFail:
		return "fail"
	case MissingEarliest:
		return "earliest"
	case MissingLatest:
		return "latest"
	}
	return fmt.Sprintf("missing(%d)", uint8(m))
}

// StartAt says where a partition without a checkpoint begins. The default is Committed().
func StartAt(s Start) SourceOption { return func(c *sourceConfig) { c.start = s } }

// OnMissing says what happens where the source's position is no longer in the log. The default is MissingFail.
func OnMissing(m Missing) SourceOption { return func(c *sourceConfig) { c.onMissing = m } }
