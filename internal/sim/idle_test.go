package sim

import "testing"

// An instance stands still for longer than its session; another one takes its partition over and commits on. When it wakes up it
// has none, and cleans up what it left there, in single accesses, while the new owner goes on, dies and comes back.
func TestScenarioAnInstanceThatStandsByCleansUp(t *testing.T) {
	fine := directive{kind: kStart, number: 1, before: true, do: func(w *world, _ *work) bool {
		w.fine, w.grace = true, cleanGrace
		return false
	}}
	frozen := directive{kind: kCommit, number: 1, nth: 2, do: func(w *world, it *work) bool {
		again := freezeHere(2*sessionTimeout, false)(w, it)
		w.wait = it.p.pausedUntil + 5*idleEvery // time to stand by
		return again
	}}
	cleaning := func(w *world, _ *work) bool {
		for _, p := range w.procs {
			if p.idling {
				return true
			}
		}
		return false
	}
	var all []scenario
	for _, more := range [][]directive{nil, {{kind: kSyncDir, number: 2, do: once(cleaning, killHere(true))}}, {{kind: kDelete, number: 1, do: once(cleaning, killHere(true))}}} {
		all = append(all, scenario{instances: 2, partitions: 1, directives: append([]directive{fine, frozen}, more...),
			reached: func(c Counts) bool { return c.IdleCleaned > 0 }})
	}
	mustReach(t, all...)
}
