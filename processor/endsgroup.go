package processor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/snapshot"
)

// endsSuffix makes the name of the group of an application's ends. An application may be called like that itself.
const endsSuffix = ".ends"

// endsGroup is the consumer group that keeps the ends of bounded runs, as committed offsets: with the application, for all
// its instances, and over restarts. Nobody joins it, and nothing is removed from it (runs.go).
func endsGroup(application string) string { return application + endsSuffix }

// isEnd reports that a committed offset is the end of a run.
func isEnd(c kafka.Committed) bool {
	return c.Found && (strings.HasPrefix(c.Metadata, runNote) || strings.HasPrefix(c.Metadata, endNote))
}

// allEnds reports that a group holds ends of runs and nothing else. It may be that of an application of this name.
func allEnds(offsets map[element.TopicPartition]kafka.Committed) bool {
	for _, c := range offsets {
		if c.Found && !isEnd(c) {
			return false
		}
	}
	return true
}

// ownsEnds refuses to keep ends in a group that is in use by anybody else. Who joins it right behind the look keeps them out
// himself: the broker takes nothing from outside for a group with members.
func (r reads) ownsEnds(ctx context.Context) error {
	group := endsGroup(r.group)
	offsets, err := kafka.GroupOffsets(ctx, r.cl, group, false)
	if err != nil {
		return err
	}
	members, _, err := describeMembers(ctx, r.cl, group)
	if err != nil {
		return err
	}
	var why string
	switch {
	case hasHandles(offsets):
		why = "is the application " + group + "'s"
	case !allEnds(offsets):
		why = "is somebody else's: it has offsets that are no ends of runs"
	case len(members) > 0:
		why = "has members: " + memberNames(members)
	default:
		return nil
	}
	return fault.Stopf(fault.BadFile, "application %s keeps the ends of its bounded runs in the group %s, which %s: give one of the two another name, or delete that group when nobody uses it any more", r.group, group, why)
}

// hasHandles reports that an application has committed to a group, of whatever version, damaged or not.
func hasHandles(offsets map[element.TopicPartition]kafka.Committed) bool {
	for _, c := range offsets {
		if _, err := snapshot.ParseHandle(c.Metadata); !errors.Is(err, snapshot.ErrHandleForeign) {
			return true
		}
	}
	return false
}

// refuseEnds refuses a group of an application's own that has the ends of another one's runs.
func refuseEnds(group string, offsets map[element.TopicPartition]kafka.Committed) error {
	other, ok := strings.CutSuffix(group, endsSuffix)
	if !ok || !slices.ContainsFunc(slices.Collect(maps.Values(offsets)), isEnd) {
		return nil
	}
	cure := "choose another application name, or reset " + other + " when it is not run any more"
	if !allEnds(offsets) { // by an earlier version; a reset of the other one leaves the group alone
		cure = "they are in place of some of its own: give one of the two another name, and reset " + group
	}
	return fault.Stopf(fault.BadFile, "the group %s has the ends of bounded runs of the application %s: %s", group, other, cure)
}

// memberNames names members in a message.
func memberNames(members []groupMember) string {
	var names []string
	for _, m := range members {
		names = append(names, fmt.Sprintf("%s (%s)", m.instance, m.host))
	}
	return strings.Join(names, ", ")
}
