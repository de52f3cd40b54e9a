package kafkasrc

import (
	"maps"
	"slices"
	"sync"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Assignment is what this instance owns.
type Assignment struct {
	// Epoch grows at every change of ownership; 0 before the first assignment.
	Epoch uint64
	// Partitions are sorted. Slice and map are the receiver's own.
	Partitions []element.TopicPartition
	// Since is the epoch at which each of them was gained.
	Since map[element.TopicPartition]uint64
	// Member is false before the first assignment, and after a loss until the next one.
	Member bool
}

// Fence is what a transactional offset commit needs so that the broker refuses it once this member is gone.
type Fence struct {
	Group, Member string
	Generation    int32
	InstanceID    string
}

// ownership holds the partitions, their epoch and the member id they were given to. It knows no client: the callbacks
// put in what the group says, fence is told what the client's member is now.
type ownership struct {
	mu      sync.Mutex
	epoch   uint64
	owned   map[element.TopicPartition]uint64 // the epoch at which each was gained
	member  string                            // the member id at the last assignment; "" while none stands
	last    int32                             // the generation of the last round that the member took part in; -1 for none
	err     error                             // fatal, sticky
	changes chan struct{}
}

func newOwnership() *ownership {
	return &ownership{owned: make(map[element.TopicPartition]uint64), last: -1, changes: make(chan struct{}, 1)}
}

// round notes the generation of a round that the member took part in. It hears of each of them, and each has the number after that
// of the one before. Where one is left out the group had a round without it: a static member that does not join in time stays in
// the group as it was when it joined last, with what it was given since then free for others. So all that it has counts as lost
// and gained again.
func (o *ownership) round(generation int32) (missed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if missed = o.missed(generation) && o.member != ""; missed {
		o.member = ""
		o.bump()
		o.regain()
	}
	o.last = generation
	return missed
}

// missed says that there was a round without the member before that of a generation. It needs the lock.
func (o *ownership) missed(generation int32) bool {
	return o.last >= 0 && generation != o.last && generation != o.last+1
}

// regain has everything gained at the present epoch. It needs the lock.
func (o *ownership) regain() {
	for tp := range o.owned {
		o.owned[tp] = o.epoch
	}
}

// assigned adds partitions under a member id. The epoch grows when something was added, when the member id is another
// one than before, and at the first call; a call that brings nothing new leaves it.
func (o *ownership) assigned(added map[string][]int32, member string) (epoch uint64, grew bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	renamed := member != o.member
	grew = o.epoch == 0 || renamed
	eachPartition(added, func(tp element.TopicPartition) { grew = grew || o.owned[tp] == 0 })
	if !grew {
		return o.epoch, false
	}
	o.member = member
	o.bump()
	if renamed { // what the old member had counts as lost and gained again
		o.regain()
	}
	eachPartition(added, func(tp element.TopicPartition) {
		if o.owned[tp] == 0 {
			o.owned[tp] = o.epoch
		}
	})
	return o.epoch, true
}

// revoked takes partitions away, the membership stands.
func (o *ownership) revoked(gone map[string][]int32) (epoch uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	changed := false
	eachPartition(gone, func(tp element.TopicPartition) {
		changed = changed || o.owned[tp] != 0
		delete(o.owned, tp)
	})
	if changed {
		o.bump()
	}
	return o.epoch
}

// lost takes everything away: the group no longer knows this member.
func (o *ownership) lost() (epoch uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = -1
	if o.epoch == 0 { // never assigned: there is nothing that anyone could hold an epoch of
		return 0
	}
	if len(o.owned) > 0 || o.member != "" {
		clear(o.owned)
		o.member = ""
		o.bump()
	}
	return o.epoch
}

func (o *ownership) memberID() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.member
}

// isMember says whether what is owned was given to the member of this id.
func (o *ownership) isMember(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return id != "" && id == o.member
}

// fail records the error that ends the membership. The first one stays.
func (o *ownership) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
		o.signal()
	}
}

func (o *ownership) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

func (o *ownership) current() Assignment {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := Assignment{Epoch: o.epoch, Partitions: make([]element.TopicPartition, 0, len(o.owned)), Since: maps.Clone(o.owned), Member: o.member != ""}
	for tp := range o.owned {
		a.Partitions = append(a.Partitions, tp)
	}
	slices.SortFunc(a.Partitions, element.TopicPartition.Compare)
	return a
}

// fence checks that every claim still holds for the member that now gives, which is called under the lock. Partitions
// that come or go beside them, and a new generation alone, do not matter, unless a round before it went on without the member.
func (o *ownership) fence(claims []element.Claim, now func() (member string, generation int32)) (string, int32, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return "", 0, o.err
	}
	if len(claims) == 0 {
		return "", 0, fault.New(fault.Rejoin, fault.Failed, "nothing is claimed")
	}
	for _, c := range claims {
		if since := o.owned[c.TopicPartition]; since == 0 || since != c.Epoch {
			return "", 0, fault.New(fault.Rejoin, fault.Failed, "the claim to %s of ownership epoch %d no longer holds (owned since epoch %d, 0 = not at all; it is epoch %d now)", c.TopicPartition, c.Epoch, since, o.epoch)
		}
	}
	member, generation := now()
	if member == "" || generation < 0 || member != o.member {
		return "", 0, fault.New(fault.Rejoin, fault.Failed, "ownership epoch %d was taken as member %q, now the member is %q in generation %d", o.epoch, o.member, member, generation)
	}
	if o.missed(generation) {
		return "", 0, fault.New(fault.Rejoin, fault.Failed, "the group had rounds without this member between generations %d and %d, and may have given away what it has", o.last, generation)
	}
	return member, generation, nil
}

// bump and signal need the lock.
func (o *ownership) bump() {
	o.epoch++
	o.signal()
}

func (o *ownership) signal() {
	select {
	case o.changes <- struct{}{}:
	default:
	}
}

func eachPartition(m map[string][]int32, fn func(element.TopicPartition)) {
	for topic, ps := range m {
		for _, p := range ps {
			fn(element.TopicPartition{Topic: topic, Partition: p})
		}
	}
}

func sortedPartitions(m map[string][]int32) []element.TopicPartition {
	var tps []element.TopicPartition
	eachPartition(m, func(tp element.TopicPartition) { tps = append(tps, tp) })
	slices.SortFunc(tps, element.TopicPartition.Compare)
	return tps
}
