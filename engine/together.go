package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// A recovery from the store goes back with all partitions together, or not at all. With instances that have a name of their
// own the group may go on naming some as those of members that have been stopped:
//
//	resolve: the store's word is needed, and partitions are missing -> the attempt ends, nothing is committed
//	wait for the assignment -- all are here      -> the next attempt, one commit for all of them
//	                        -- others are alive  -> refused
//
// The commit is fenced by the ownership of every partition in it, so one that goes after all makes it fail as a whole.

// Member is another member of the group.
type Member struct {
	ID   string // of the membership: another one when the process starts again
	Name string // for a person
}

// errParted ends an attempt that needs all partitions and has some.
var errParted = errors.New("not all partitions are here")

// othersPoll is how often the other members are looked at while all partitions are waited for.
const othersPoll = 500 * time.Millisecond

// Parted is what an instance waits for that needs all partitions.
type Parted struct {
	Missing []element.TopicPartition
	Others  []Member      // who is in the group besides this instance
	AtMost  time.Duration // how long they may stay members when they have been stopped
}

// together refuses to go on with a part of the partitions: the next attempt begins when all are here.
func (in *intake) together() error {
	if len(missing(in.since, in.topics)) == 0 {
		return nil
	}
	in.a.r.parted = true
	return errParted
}

// missing gives the partitions that are not among those of an assignment, sorted.
func missing(since map[element.TopicPartition]uint64, topics map[string]Topic) (out []element.TopicPartition) {
	for name, t := range topics {
		for p := range t.Partitions {
			if tp := (element.TopicPartition{Topic: name, Partition: p}); since[tp] == 0 {
				out = append(out, tp)
			}
		}
	}
	slices.SortFunc(out, element.TopicPartition.Compare)
	return out
}

// vigil is one wait for all partitions. Who was stopped is a member no longer than its session lasts: who still is one then
// is alive. Each time that others are there the time begins anew.
type vigil struct {
	others []Member
	since  time.Time
}

// look asks who else is in the group, tells of it when it has changed, and refuses when the same others are still there after
// their sessions. Whoever cannot be seen is waited for.
func (v *vigil) look(ctx context.Context, r *Runner, missing []element.TopicPartition) error {
	if r.ports.Others == nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, abortTimeout)
	defer cancel()
	others, err := r.ports.Others(bounded)
	if err != nil {
		return nil
	}
	slices.SortFunc(others, func(a, b Member) int { return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID)) })
	if now := time.Now(); v.since.IsZero() || !slices.Equal(v.others, others) {
		v.others, v.since = others, now
		if r.lis.Parted != nil {
			r.lis.Parted(Parted{Missing: missing, Others: others, AtMost: r.cfg.OthersLast})
		}
	}
	if len(others) == 0 || time.Since(v.since) < r.cfg.OthersLast {
		return nil
	}
	var names []string
	for _, m := range others {
		names = append(names, m.Name)
	}
	return fault.Stopf(fault.GroupActive, "nothing is changed: a recovery from the store goes back with all partitions together, and the group still gives %s to others after %s: stop %s, wait until the session timeout is over, and start one instance with --recover-from-store",
		listed(missing), r.cfg.OthersLast, strings.Join(names, ", "))
}

// listed names partitions, not too many.
func listed(tps []element.TopicPartition) string {
	const most = 5
	var names []string
	for _, tp := range tps[:min(len(tps), most)] {
		names = append(names, tp.String())
	}
	if more := len(tps) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}
