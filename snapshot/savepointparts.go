package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Coverage says which partitions of a topic the parts of a savepoint hold together. Several instances write one part each; a
// part knows how many partitions there were, but not who wrote the others.
type Coverage struct {
	Source, Topic string
	// Count is the number of partitions that the topic had at the savepoint. When partitions were added while it was cut, it is
	// the lowest: an instance need not have taken the new ones yet.
	Count int32
	// Held of these are in the parts.
	Held int32
	// Missing are the others, as ranges of first and last, in order.
	Missing [][2]int32
}

// CoverageOf gives the coverage of all topics that the parts hold, by source and topic.
func CoverageOf(parts ...*Root) []Coverage {
	type input struct{ source, topic string }
	found := map[input][]element.Position{}
	for _, root := range parts {
		for i := range root.Tasks {
			for _, p := range root.Tasks[i].Positions {
				at := input{root.Tasks[i].Task.Source, p.Topic}
				found[at] = append(found[at], p)
			}
		}
	}
	var out []Coverage
	for at, positions := range found {
		out = append(out, coverage(at.source, at.topic, positions))
	}
	slices.SortFunc(out, func(a, b Coverage) int {
		return cmp.Or(strings.Compare(a.Source, b.Source), strings.Compare(a.Topic, b.Topic))
	})
	return out
}

// coverage works with gaps, since the number of partitions is only what a file says.
func coverage(source, topic string, positions []element.Position) Coverage {
	c := Coverage{Source: source, Topic: topic, Count: positions[0].PartitionCount}
	held := map[int32]bool{}
	for _, p := range positions {
		held[p.Partition], c.Count = true, min(c.Count, p.PartitionCount)
	}
	next := int32(0)
	for _, p := range slices.Sorted(maps.Keys(held)) {
		if p >= c.Count {
			break
		}
		if p > next {
			c.Missing = append(c.Missing, [2]int32{next, p - 1})
		}
		c.Held, next = c.Held+1, p+1
	}
	if next < c.Count {
		c.Missing = append(c.Missing, [2]int32{next, c.Count - 1})
	}
	return c
}

// String says how much it is: "holds 2 of 4 partitions of in".
func (c Coverage) String() string {
	return fmt.Sprintf("holds %d of %d partitions of %s", c.Held, c.Count, c.Topic)
}

// missing names the partitions that are missing, some of them when they are many.
func (c Coverage) missing() string {
	const most = 8
	var words []string
	for _, r := range c.Missing[:min(len(c.Missing), most)] {
		if r[0] == r[1] {
			words = append(words, fmt.Sprint(r[0]))
		} else {
			words = append(words, fmt.Sprintf("%d-%d", r[0], r[1]))
		}
	}
	if len(c.Missing) > most {
		words = append(words, "…")
	}
	if c.Count-c.Held == 1 {
		return fmt.Sprintf("partition %s of topic %s", words[0], c.Topic)
	}
	return fmt.Sprintf("partitions %s of topic %s", strings.Join(words, ", "), c.Topic)
}

// SameRequest refuses parts that are not of one savepoint: there is no request that all of them serve. Parts of older versions
// carry none, and of them alone nothing is known. It also refuses a part that is given twice, under whatever path.
func SameRequest(from ...*Savepoint) error {
	if len(from) < 2 {
		return nil
	}
	for i, s := range from {
		for _, o := range from[:i] {
			if o.Ref.Digest == s.Ref.Digest {
				return fault.Stopf(fault.Usage, "savepoints %s and %s are the same: give each part once", o.Ref.Path, s.Ref.Path)
			}
		}
	}
	shared := from[0].Requests
	for _, s := range from[1:] {
		both := slices.DeleteFunc(slices.Clone(shared), func(id string) bool { return !slices.Contains(s.Requests, id) })
		if len(both) > 0 || len(shared)+len(s.Requests) == 0 {
			shared = both
			continue
		}
		other := from[0]
		for _, o := range from { // the one that has nothing in common with it, when there is one
			if !slices.ContainsFunc(o.Requests, func(id string) bool { return slices.Contains(s.Requests, id) }) {
				other = o
				break
			}
		}
		return fault.Stopf(fault.Usage, "savepoints %s (%s) and %s (%s) are not parts of one savepoint: give the parts of one request, see `processor savepoint list --dir %s`",
			other.Ref.Path, other.requested(), s.Ref.Path, s.requested(), path.Dir(s.Ref.Path))
	}
	return nil
}

// requested says what a savepoint is of.
func (s *Savepoint) requested() string {
	if len(s.Requests) == 0 {
		return "of no known request"
	}
	return "request " + strings.Join(s.Requests, ", ")
}

// complete refuses a savepoint of which a part was left out. The tasks of the missing partitions would start without state
// wherever their source begins, and commit that. A partition that was added since is in no part and starts Fresh. Sources that
// the plan does not have do not count, unless one of the tasks reads their topic under another name.
func complete(from []*Savepoint, sources map[string]string, tasks []TaskFacts) error {
	var roots []*Root
	for _, s := range from {
		roots = append(roots, s.Root)
	}
	var lacks []string
	for _, c := range CoverageOf(roots...) {
		_, named := sources[c.Source]
		read := named || slices.ContainsFunc(tasks, func(t TaskFacts) bool {
			return slices.ContainsFunc(t.Inputs, func(f InputFacts) bool { return f.Topic == c.Topic })
		})
		if len(c.Missing) > 0 && read {
			lacks = append(lacks, fmt.Sprintf("%s (%d of %d)", c.missing(), c.Count-c.Held, c.Count))
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	what, more := lacks[0], ""
	if n := len(lacks) - 1; n > 0 {
		more = fmt.Sprintf(" (and of %d more topics)", n)
	}
	one, dir := from[0], path.Dir(from[0].Ref.Path)
	if len(one.Requests) > 0 {
		more += fmt.Sprintf(" (request %s)", strings.Join(one.Requests, ", "))
	}
	return fault.Stopf(fault.Usage, "savepoint %s is not complete: of the parts given, %d in number, none holds %s%s, which would start without state; several instances wrote one part each: "+
		"give all of them, each with --from; the others are likely in the same directory, of application %s and about the same time, %s: see `processor savepoint list --dir %s`",
		one.Ref.Path, len(from), what, more, one.Root.Application, time.UnixMilli(one.Root.CreatedUnixMilli).UTC().Format(time.RFC3339), dir)
}
