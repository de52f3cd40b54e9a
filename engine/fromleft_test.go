package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// TestASavepointHasReadMoreOfATopicThatIsOut: behind an exchange, the state of a savepoint has records of a topic which the group, at an
// older offset, has not read, and the topology does not either. A start from there is refused: the topic would come back at that offset.
// With its source it goes on where the savepoint stands, and without the offset it is no matter of this start.
func TestASavepointHasReadMoreOfATopicThatIsOut(t *testing.T) {
	w := newWorld(t, 2)
	w.more = 1
	w.assign(2)
	both, one := topicsPlan(t, true, "in", "more"), topicsPlan(t, true, "in")
	ref := w.cut(both, aligned, 50)
	out := element.TopicPartition{Topic: "more"}
	for _, way := range []string{"the source is back", "the offsets are deleted"} {
		t.Run(way, func(t *testing.T) {
			f := w.fork("other", 2)
			f.t, f.more = t, 1
			f.assign(2)
			f.endsEarly(both, f.configOf("other")) // it has start positions, and no checkpoint
			require.Contains(t, f.committed, out)
			cfg := f.configOf("other", ref.Path)
			cfg.From.AcceptDuplicates, cfg.AllowDropped = true, true
			f.assign(1)
			require.ErrorContains(t, f.refusedStart(one, cfg), "give the topology its source back for this start, or delete the group's offsets of this topic (more)")
			plan := one
			if way == "the source is back" {
				plan = both
				f.assign(2)
			} else {
				delete(f.committed, out)
			}
			stop := f.startPlan(plan, cfg, withFrom(f.ports()), nil)
			f.inputDone(0)
			if way == "the source is back" {
				f.inputDone(1)
			}
			require.NoError(t, stop())
			if way == "the source is back" {
				f.exactFrom(contents(t, ref.Path))
			}
		})
	}
}
