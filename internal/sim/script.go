package sim

// script makes a run without chance: everything takes equally long, and crashes come at given steps. An exhaustive run
// goes through all of them.
type script struct {
	records int // of each partition
	first   int // of them are there at the start, the rest comes when those are committed
	crashes []scriptedCrash
	next    int

	from, to int // the steps of the window, noted by a run without a crash
}

// scriptedCrash is a crash before the given step.
type scriptedCrash struct {
	step int
	keep float64
	// silent: the requests that are on their way are lost with the process; else they arrive all the same.
	silent bool
}

// scriptedCrash kills the only process before a step of the script.
func (w *world) scriptedCrash(it *work, before bool) bool {
	s := w.cfg.script
	if !before || s.next >= len(s.crashes) || w.steps < s.crashes[s.next].step {
		return false
	}
	c := s.crashes[s.next]
	s.next++
	w.counts.Faults++
	for len(w.procs) > 0 {
		w.procs[0].silent = c.silent
		w.procs[0].die(true, c.keep)
	}
	return it.bound || (c.silent && it.kind >= kApplyInit)
}

// committed lets the second half of the records arrive once the first is committed everywhere.
func (s *script) committed(w *world, offsets []committed) {
	for _, o := range offsets {
		if o.offset < int64(s.first) {
			return
		}
	}
	for i := range w.broker.in {
		w.broker.append(i, s.records)
	}
}
