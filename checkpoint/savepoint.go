package checkpoint

import (
	"slices"
	"time"
)

// MaxSavepoints is how many requests for a savepoint may wait.
const MaxSavepoints = 64

// RequestSavepoint asks for a savepoint under a name that the driver chooses; to ask twice for one changes nothing. The
// next checkpoint that is triggered serves all requests that wait, whatever its reason, and one is triggered for them as
// for a Manual request, also when nothing has moved. If it is abandoned they wait for the next one, which the interval
// brings. The final checkpoint serves those that came before it; one that comes later is served only if that one has to
// be repeated. Who is not served by the end finds himself in Unserved; a dead coordinator takes no request.
func (c *Coordinator) RequestSavepoint(now time.Duration, id string) []Action {
	c.enter(now)
	switch {
	case c.dead || slices.Contains(c.Unserved(), id):
	case len(c.savepoints) >= MaxSavepoints:
		c.emit(Refused{Savepoint: id})
	default:
		c.savepoints, c.hurry = append(c.savepoints, id), true
	}
	return c.leave()
}

// RequestFinal is RequestCheckpoint for Final, with savepoints that are to be cut there and not before: nothing lies between
// them and the end. A final checkpoint is taken for them also when nothing has moved.
func (c *Coordinator) RequestFinal(now time.Duration, ids ...string) []Action {
	c.enter(now)
	for _, id := range ids {
		switch {
		case c.dead || slices.Contains(c.Unserved(), id):
		case len(c.savepoints) >= MaxSavepoints:
			c.emit(Refused{Savepoint: id})
		default:
			c.savepoints = append(c.savepoints, id)
		}
	}
	if !c.dead {
		c.draining = true
	}
	return c.leave()
}

// Unserved gives the requests for a savepoint that no completed checkpoint has served, in the order of the requests. After
// the end of the coordinator nobody will: the driver reports them as failed.
func (c *Coordinator) Unserved() []string {
	var ids []string
	for _, p := range c.flights {
		ids = append(ids, p.savepoints...)
	}
	return append(ids, c.savepoints...)
}
