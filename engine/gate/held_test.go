package gate

import "github.com/millweir/millweir/element"

// holds says that a timer emits what comes of a record: of some keys of layer A, of all their records, so that they stay in
// order.
func (t *task) holds(id int32) bool {
	return t.w.Timers && t.layer == 0 && t.w.recs[id].groupA%2 == 0
}

// fire is a timer that comes due, at any moment, also when all inputs have ended.
func (t *task) fire() bool {
	if len(t.held) == 0 || len(t.out) >= mostGathered || !t.credit() {
		return false
	}
	if t.d.g.AllEnded() {
		t.w.seen["fired behind the end"]++
	}
	t.out = append(t.out, t.held[0])
	t.held = t.held[1:]
	return true
}

// restoreHeld gives timers to the subtasks that own their keys now.
func (w *world) restoreHeld(held []int32) {
	for _, id := range held {
		t := w.a[element.SubtaskOf(w.recs[id].groupA, len(w.a), groups)]
		t.held = append(t.held, id)
	}
}
