package pipeline

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/topology"
)

var (
	starts = map[string]topology.Start{"committed": topology.Committed(), "earliest": topology.Earliest(), "latest": topology.Latest()}
	missed = map[string]topology.Missing{"fail": topology.MissingFail, "earliest": topology.MissingEarliest, "latest": topology.MissingLatest}
)

// startForms are those of start that need a value.
var startForms = []string{"timestamp", "ago", "offsets"}

// readStart reads where a partition begins that there is no checkpoint of.
func readStart(n *yamlx.Node) []topology.SourceOption {
	if n == nil {
		return nil
	}
	if n.IsMapping() {
		return readStartForm(n)
	}
	for _, form := range startForms {
		if n.Is(form) {
			n.Errorf("%s needs a value; write start: {%s: …}", form, form)
			return nil
		}
	}
	if v, ok := n.Enum("committed", "earliest", "latest"); ok {
		return []topology.SourceOption{topology.StartAt(starts[v])}
	}
	return nil
}

func readStartForm(n *yamlx.Node) []topology.SourceOption {
	o := n.Object(nil, append([]string{"others"}, startForms...)...)
	form := oneForm(n, o, "start", startForms)
	if form == "" {
		return nil
	}
	if others := o.Get("others"); others != nil && form != "offsets" {
		others.Errorf("belongs to offsets: it says where partitions begin that are not named there")
	}
	var s topology.Start
	ok := false
	switch v := o.Get(form); form {
	case "timestamp":
		var at time.Time
		if at, ok = readInstant(v); ok {
			s = topology.StartTimestamp(at)
		}
	case "ago":
		var d time.Duration
		if d, ok = v.Duration(0, 0); ok {
			s = topology.StartAgo(d)
		}
	case "offsets":
		s, ok = readOffsets(v, o.Get("others"))
	}
	if !ok {
		return nil
	}
	return []topology.SourceOption{topology.StartAt(s)}
}

// oneForm gives the only one of the forms that is there, "" when there are none or several.
func oneForm(n *yamlx.Node, o *yamlx.Object, what string, forms []string) string {
	switch have := o.Has(forms...); len(have) {
	case 1:
		return have[0]
	case 0:
		n.Errorf("has none of: %s", strings.Join(forms, ", "))
	default:
		n.Errorf("has %s; %s has one of: %s", strings.Join(have, " and "), what, strings.Join(forms, ", "))
	}
	return ""
}

// endForms are those of end that need a value.
var endForms = []string{"timestamp", "offsets"}

// readEnd reads where a source ends; none is the default.
func readEnd(n *yamlx.Node) []topology.SourceOption {
	if n == nil {
		return nil
	}
	for _, form := range endForms {
		if n.Is(form) {
			n.Errorf("%s needs a value; write end: {%s: …}", form, form)
			return nil
		}
	}
	var e topology.End
	ok := false
	if n.IsMapping() {
		o := n.Object(nil, endForms...)
		switch form := oneForm(n, o, "end", endForms); form {
		case "timestamp":
			var at time.Time
			at, ok = readInstant(o.Get(form))
			e = topology.EndTimestamp(at)
		case "offsets":
			var offsets map[int32]int64
			offsets, ok = offsetsOf(o.Get(form))
			e = topology.EndOffsets(offsets)
		}
	} else {
		var v string
		if v, ok = n.Enum("none", "latest"); v == "latest" {
			e = topology.EndLatest()
		}
	}
	if !ok {
		return nil
	}
	return []topology.SourceOption{topology.EndAt(e)}
}

// readInstant reads a point in time: with its zone, since a file is read on many machines, or in milliseconds.
func readInstant(n *yamlx.Node) (time.Time, bool) {
	text, ok := n.Text()
	if !ok {
		return time.Time{}, false
	}
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil && ms >= 0 {
		return time.UnixMilli(ms), true
	}
	at, err := time.Parse(time.RFC3339, text)
	switch {
	case err != nil:
		n.Errorf("%s is not a time; write it as 2026-01-31T12:00:00Z, with the zone, or as milliseconds since 1970", n.Shown())
		return at, false
	case at.UnixMilli() < 0:
		n.Errorf("%s: records have no timestamps before 1970", n.Shown())
		return at, false
	}
	return at, true
}

// readOffsets reads offsets by partition, and how the other partitions begin.
func readOffsets(n, others *yamlx.Node) (topology.Start, bool) {
	offsets, ok := offsetsOf(n)
	s := topology.StartOffsets(offsets)
	if others != nil {
		v, known := others.Enum("earliest", "latest")
		s, ok = s.Otherwise(starts[v]), ok && known
	}
	return s, ok
}

// offsetsOf reads offsets by partition, one at least.
func offsetsOf(n *yamlx.Node) (map[int32]int64, bool) {
	offsets, good := map[int32]int64{}, true
	for _, e := range n.Entries() {
		p, err := strconv.ParseInt(e.Name, 10, 32)
		if err != nil || p < 0 || strconv.FormatInt(p, 10) != e.Name { // +1 and 01 would be partition 1 once more
			e.Key.Errorf("not a partition: a number from 0")
			good = false
			continue
		}
		at, ok := e.Value.Int(0, math.MaxInt64)
		good = good && ok
		offsets[int32(p)] = at
	}
	if n.IsMapping() && len(n.Entries()) == 0 {
		n.Errorf("names no partition; write for example offsets: {0: 1200, 1: 350}")
	}
	return offsets, good && len(offsets) > 0
}

// readOnMissing reads what happens where the position is gone from the log.
func readOnMissing(n *yamlx.Node) []topology.SourceOption {
	if n == nil {
		return nil
	}
	if v, ok := n.Enum("fail", "earliest", "latest"); ok {
		return []topology.SourceOption{topology.OnMissing(missed[v])}
	}
	return nil
}
