package engine

import "sync"

// states knows the states that are open, so that each is closed: when its task has left, when another one is read in its
// place, or when an attempt does not leave it to the next.
type states struct {
	mu   sync.Mutex
	open map[State]struct{} // under mu
}

func (s *states) add(st State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[State]struct{}{}
	}
	s.open[st] = struct{}{}
}

// close closes a state, once. Nothing uses it any more.
func (s *states) close(st State) {
	if st == nil {
		return
	}
	s.mu.Lock()
	_, ok := s.open[st]
	delete(s.open, st)
	s.mu.Unlock()
	if ok {
		st.Close()
	}
}

// closeOthers closes all states but some.
func (s *states) closeOthers(keep func(st State) bool) {
	s.mu.Lock()
	var gone []State
	for st := range s.open {
		if !keep(st) {
			gone = append(gone, st)
			delete(s.open, st)
		}
	}
	s.mu.Unlock()
	for _, st := range gone {
		st.Close()
	}
}

// closeUnkept closes the states that are not left to the next attempt.
func (r *Runner) closeUnkept() {
	kept := map[State]bool{}
	for _, k := range r.kept {
		kept[k.state] = true
	}
	r.states.closeOthers(func(st State) bool { return kept[st] })
}
