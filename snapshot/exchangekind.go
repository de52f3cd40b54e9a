package snapshot

import "fmt"

// ExchangeKind tells how an exchange spreads records over its subtasks. The numbers stand in roots.
type ExchangeKind uint8

// The kinds.
const (
	// UnknownExchange: it was not written down, or nothing is said of it.
	UnknownExchange ExchangeKind = iota
	// GroupByExchange leads every record to the subtask of its key, so each has a key group.
	GroupByExchange
	// RebalanceExchange leads records to any subtask. They have no key group.
	RebalanceExchange
	// BroadcastExchange leads every record to every subtask. No checkpoint has records in flight over it.
	BroadcastExchange
	// FeedbackExchange leads records back by key. No checkpoint has records in flight over it.
	FeedbackExchange

	exchangeKinds
)

// String gives the word for the exchange that topologies use.
func (k ExchangeKind) String() string {
	switch k {
	case UnknownExchange:
		return "unknown"
	case GroupByExchange:
		return "group-by"
	case RebalanceExchange:
		return "rebalance"
	case BroadcastExchange:
		return "broadcast"
	case FeedbackExchange:
		return "feedback"
	}
	return fmt.Sprintf("exchange(%d)", uint8(k))
}

// other names the kind in words, beside another one.
func (k ExchangeKind) other() string {
	if k == UnknownExchange {
		return "another kind of exchange"
	}
	return "a " + k.String()
}

// strays reports that the records in flight of an old subtask were led by other rules than those of the stage now, as far as
// the root tells: a root of version 2 does not say over what kind they came. See Decision.Fits.
func (s *StageFacts) strays(e *TaskEntry) bool {
	switch {
	case len(e.InFlight) == 0 || s.Exchange == UnknownExchange:
		return false
	case e.Exchange == UnknownExchange:
		return s.Exchange == BroadcastExchange || s.Exchange == FeedbackExchange
	}
	return e.Exchange != s.Exchange
}

// Fits reports that a record in flight of a key group can have come over an exchange of the kind that the stage has now. Where
// the root says the kind, Resolve has compared it. Where it does not, the key group tells a group-by from a rebalance.
func (d *Decision) Fits(source *TaskEntry, group int) bool {
	if d.Stage == nil || source.Exchange != UnknownExchange {
		return true
	}
	switch d.Stage.Exchange {
	case GroupByExchange:
		return group >= 0
	case RebalanceExchange:
		return group < 0
	}
	return true
}
