package topology

import (
	"fmt"
	"maps"
	"time"
)

// EndKind tells the kinds of End apart.
type EndKind uint8

// The kinds of end positions.
const (
	// EndNever reads for ever.
	EndNever EndKind = iota
	// EndAtLatest ends behind what a reader of committed records finds at the first start.
	EndAtLatest
	// EndByTime ends before the first record that is not older than an instant.
	EndByTime
	// EndByOffset ends before offsets that are named per partition.
	EndByOffset
)

// End says where a source ends, so that a run over it is bounded. Each partition has its own end; what lies at it or
// behind is not read. It is resolved at the run's first start and kept with the application in the cluster: a restart does
// not move it. When all partitions of all bounded sources have reached their ends and that is committed, the run is over,
// and the next start begins another one, with ends resolved anew.
//
// The zero value is Unbounded(). Two of them are compared with Equal.
type End struct {
	Kind EndKind

	at      int64 // EndByTime: Unix ms
	offsets *perPartition
}

// Unbounded reads for ever.
func Unbounded() End { return End{} }

// EndLatest ends behind the last committed record that is there at the first start of the run; a transaction that is open
// then comes after it.
func EndLatest() End { return End{Kind: EndAtLatest} }

// EndTimestamp ends each partition before the first record whose timestamp is t or later, also when older ones follow
// it: timestamps may run backwards. Where there is no such record at the first start, it ends behind what is there then.
// Milliseconds count.
func EndTimestamp(t time.Time) End { return End{Kind: EndByTime, at: t.UnixMilli()} }

// EndOffsets ends each partition before its offset. All partitions of the topic must be named; 0 leaves one out. An offset
// that is not in the log yet is waited for.
func EndOffsets(offsets map[int32]int64) End {
	return End{Kind: EndByOffset, offsets: &perPartition{offsets: maps.Clone(offsets)}}
}

// Bounded says that there is an end.
func (e End) Bounded() bool { return e.Kind != EndNever }

// Time gives the instant of EndByTime.
func (e End) Time() time.Time { return time.UnixMilli(e.at) }

// Offsets gives the offsets of EndByOffset, nil for other kinds. The map must not be changed.
func (e End) Offsets() map[int32]int64 {
	if e.offsets == nil {
		return nil
	}
	return e.offsets.offsets
}

// Equal says that two ends mean the same.
func (e End) Equal(o End) bool {
	return e.Kind == o.Kind && e.at == o.at && maps.Equal(e.Offsets(), o.Offsets())
}

// String names the end as configuration does.
func (e End) String() string {
	switch e.Kind {
	case EndNever:
		return "none"
	case EndAtLatest:
		return "latest"
	case EndByTime:
		return "timestamp " + formatInstant(e.at)
	case EndByOffset:
		return "offsets " + formatOffsets(e.Offsets())
	}
	return fmt.Sprintf("end(%d)", uint8(e.Kind))
}

// check gives what is wrong with an end, "" when nothing is.
func (e End) check() string {
	switch {
	case e.Kind > EndByOffset:
		return fmt.Sprintf("%s: allowed are none, latest, timestamp and offsets", e)
	case e.Kind == EndByTime && e.at < 0:
		return fmt.Sprintf("end at %s: records have no timestamps before 1970", e)
	case e.Kind == EndByOffset:
		return checkOffsets("end", e.Offsets())
	}
	return ""
}

// EndAt says where a source ends. The default is Unbounded().
func EndAt(e End) SourceOption { return func(c *sourceConfig) { c.end = e } }

// Bounded says that every source has an end: the application ends by itself when all of them are reached.
func (p *Plan) Bounded() bool {
	for _, s := range p.Sources {
		if !s.End.Bounded() {
			return false
		}
	}
	return true
}
