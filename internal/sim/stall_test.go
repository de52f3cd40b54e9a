package sim

import (
	"slices"
	"testing"
	"time"
)

// 53: a process was frozen while it listed the directory, behind the names of the instances. The one that had taken a
// partition over from it, whose state lay in its files still, died for good; another one came under a new name, took
// everything, committed, and removed what the dead one had left. When the first woke up it saw its own files and nothing else.
func TestScenarioACleanerListsWhileInstancesComeAndGo(t *testing.T) {
	mustReach(t, scenario{instances: 2, partitions: 4, directives: []directive{
		{kind: kStart, number: 1, before: true, do: func(w *world, _ *work) bool {
			w.fine, w.grace = true, time.Millisecond
			for p := 1; p < 4; p += 2 {
				log := &w.broker.in[p]
				log.recs = log.recs[:max(log.avail, 4)] // no more comes
			}
			return false
		}},
		// i1 comes when i0 has committed all. Its runs lie in its roots, so that none of its files is in use for long.
		{kind: kStart, number: 2, before: true, do: once(func(*world, *work) bool { return true }, func(w *world, it *work) bool {
			w.away, w.small = 25*time.Millisecond, 20<<10
			it.p.die(false, 1)
			return true
		})},
		{kind: kList, number: 1, before: true, do: once(lends, freezeWhileReplaced)},
	}, reached: func(c Counts) bool { return c.StallsOutlasted > 0 }})
}

// lends waits for a Clean that has the names of the directories and is about to read the first of them, while another
// instance uses files in the directory of its own.
func lends(w *world, it *work) bool {
	return w.check.borrower[it.p.dir()] != "" && slices.ContainsFunc(w.fibers, func(f *fiber) bool {
		return f.p == it.p && f.cleaner == "Clean" && f.lists == 1
	})
}

// freezeWhileReplaced freezes a process until the others have been replaced by a new one, and nothing is left of them.
func freezeWhileReplaced(w *world, it *work) bool {
	p := it.p
	for _, o := range slices.Clone(w.procs) {
		if o.name != p.name {
			w.names = slices.DeleteFunc(w.names, func(name string) bool { return name == o.name })
			o.die(false, 1)
		}
	}
	w.small, w.names = 0, append(w.names, instanceName(9))
	w.start(instanceName(9), time.Millisecond)
	w.standStill(p, true, 400*time.Millisecond, w.emptied(p), func() {})
	it.at = p.pausedUntil
	w.push(*it)
	return true
}
