package kafkasrc

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
)

// protocolName is what the members of a group agree on. It changes when members of different versions could not balance
// a group together.
const protocolName = "millweir-copartitioned"

const (
	metadataVersion  = 3 // of kmsg.ConsumerMemberMetadata: owned partitions, and the generation they are of
	noteVersion      = 1
	maxNote          = 1 << 20 // of what a member or the leader adds to the protocol's own fields
	maxForcedRejoins = 3
	maxPartitions    = 1 << 20 // of a topic, that a member's word is taken for
)

// copartitioned is the balancer of the group: sticky, cooperative, and with units of several topics. A unit is partition
// p of all topics of a co-partition group that have a partition p; a topic that is in no group is one of its own.
//
// It guarantees, for an assignment without moves that are still under way:
//
//   - Every partition of a topic that some member is interested in has exactly one owner, who is interested in all topics
//     of its unit, and has the whole unit.
//   - The members' totals of units are as even as the interests allow: no chain of moves leads from a member to one with
//     at least two fewer. When all members have the same interests they differ by one at most.
//   - Among such assignments, the sum over groups and members of the squares of what a member has of a group is least.
//     With equal interests a member's units of one group differ from another's by one at most.
//   - Among such assignments, as many units as possible stay where they are. So a member that joins only gets units, and
//     no unit moves between the others; one that leaves only gives units up.
//
// A unit that moves is given to nobody until every other member that names a part of it as its own has given that up,
// which it does with the answer to the round; then it joins again, and the unit moves. Without further changes the second
// round is the last one. Who has a partition when several name it is decided by the highest generation, that in which it
// was given, so a member that slept through some rounds cannot take back what it had. Members of a rolling upgrade may differ in their topics and
// co-partition groups: those that share a topic count as one group, and one that no member is interested in as a whole
// falls apart into its topics until there is one.
//
// The leader tells each member which of its interests, and how many partitions of each topic, the assignment is made
// for. A static member that restarts gets the assignment of before without a round; it sees then whether the group must
// be balanced anew. It must be also when the assignment takes something away from the member: what moves goes to its new
// owner in the round that follows when this member joins again, and the process that was to do so is gone.
//
// With whole, all of this is about one unit, which has all partitions of all topics: see planWhole. A member that needs it
// so takes nothing of an assignment that was made for sharing, as a static member is given one whose topology has changed
// while it restarted.
type copartitioned struct {
	together [][]string
	whole    bool
	joins    func(last int32)                         // told the generation of the last round before each join; nil for nobody
	vanished func(topic string, partition int32) bool // a partition that the client counts is not in its metadata any more; nil for none
	refresh  func()                                   // asks for new metadata

	mu        sync.Mutex
	interests []string       // of the last join
	round     int32          // the generation that the last assignment was made in; -1 before the first
	holder    string         // who has everything by the last assignment; "" in a group that shares
	made      map[string]int // partition counts that the last assignment was made for; nil when it does not say
	known     map[string]int // partition counts that the cluster has told since; see Group.Know
	told      map[string]int // partition counts that the leader was told at the last join
	anew      map[string]int // those of topics that were made anew with fewer than an assignment was made for; see Group.KnowFewer
	said      int32          // the round after which this member has asked for another one because of them
	owes      string         // the member id that was to join again after that assignment; "" for none
	outdated  string         // why that does not fit; "" when it does
	forced    int            // rejoins since it did
}

// memberNote is what a member adds to its metadata, leaderNote what the leader adds to an assignment: its generation
// first of all. The client knows only the generation of the last join. Where the answer to the sync is that a further
// round has begun, as happens to one that slept and is back, it would claim what it had before in a generation in which
// it was given something else, or nothing: its claim would be as good as that of the owner.
type memberNote struct {
	V        int        `json:"v"`
	Together [][]string `json:"together,omitempty"`
	Whole    bool       `json:"whole,omitempty"`
	// Partitions are the counts of the last assignment, or what the member knows since: the leader may have older metadata.
	Partitions map[string]int `json:"partitions,omitempty"`
	// Anew are the counts of topics that were made anew with fewer partitions than the last assignment was made for.
	Anew map[string]int `json:"anew,omitempty"`
	// Asks makes a join that is to have the group balanced anew another one than that before: to the same one of a member that does
	// not lead, the broker answers with the assignment that it has.
	Asks int `json:"asks,omitempty"`
	// Holder is that of the last assignment: it may have restarted in place, and knows nothing of it.
	Holder string `json:"holder,omitempty"`
}

type leaderNote struct {
	V          int            `json:"v"`
	Generation int32          `json:"generation"`
	Interests  string         `json:"interests"`
	Partitions map[string]int `json:"partitions"`
	// Whole: one member has everything, the one that Holder names.
	Whole  bool   `json:"whole,omitempty"`
	Holder string `json:"holder,omitempty"`
	// GivesUp is the member's id when the assignment takes something away from it, so that it has to join again.
	GivesUp string `json:"gives_up,omitempty"`
}

// newCopartitioned checks the groups: their topics are among those to consume, and each is in one group at most.
func newCopartitioned(topics []string, together [][]string, whole bool) (*copartitioned, error) {
	b := &copartitioned{whole: whole, round: -1, said: -1}
	seen := map[string]bool{}
	for _, g := range together {
		g = slices.Clone(g)
		slices.Sort(g)
		for _, t := range g {
			if !slices.Contains(topics, t) {
				return nil, fmt.Errorf("topic %s is to be co-partitioned and is not consumed", t)
			}
			if seen[t] {
				return nil, fmt.Errorf("topic %s is named twice among the co-partitioned ones", t)
			}
			seen[t] = true
		}
		if len(g) > 1 {
			b.together = append(b.together, g)
		}
	}
	slices.SortFunc(b.together, func(x, y []string) int { return strings.Compare(x[0], y[0]) })
	return b, nil
}

func (*copartitioned) ProtocolName() string { return protocolName }
func (*copartitioned) IsCooperative() bool  { return true }

// JoinGroupMetadata gives what the leader will know of this member. The same input gives the same bytes: the broker
// takes other bytes for a reason to balance. The generation is that of the last assignment, not that of the last join.
func (b *copartitioned) JoinGroupMetadata(interests []string, owned map[string][]int32, last int32) []byte {
	if b.joins != nil {
		b.joins(last)
	}
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Version, meta.Topics = metadataVersion, interests
	b.mu.Lock()
	b.interests, meta.Generation = slices.Clone(interests), b.round
	b.told = b.noted()
	meta.UserData = mustJSON(memberNote{V: noteVersion, Together: b.together, Whole: b.whole, Partitions: b.told, Anew: maps.Clone(b.anew), Asks: b.forced, Holder: b.holder})
	b.mu.Unlock()
	for _, topic := range slices.Sorted(maps.Keys(owned)) {
		part := kmsg.NewConsumerMemberMetadataOwnedPartition()
		part.Topic, part.Partitions = topic, owned[topic]
		meta.OwnedPartitions = append(meta.OwnedPartitions, part)
	}
	return meta.AppendTo(nil)
}

// MemberBalancer is called at the leader.
func (b *copartitioned) MemberBalancer(members []kmsg.JoinGroupResponseMember) (kgo.GroupMemberBalancer, map[string]struct{}, error) {
	cb, err := kgo.NewConsumerBalancer(b, members)
	if err != nil {
		return nil, nil, err
	}
	return cb, cb.MemberTopics(), nil
}

// Balance makes the plan of one round.
func (b *copartitioned) Balance(cb *kgo.ConsumerBalancer, counts map[string]int32) kgo.IntoSyncAssignment {
	var members []candidate
	cb.EachMember(func(m *kmsg.JoinGroupResponseMember, meta *kmsg.ConsumerMemberMetadata) {
		c := candidate{id: m.MemberID, name: m.MemberID, topics: meta.Topics, generation: meta.Generation}
		if m.InstanceID != nil {
			c.name = *m.InstanceID
		}
		var note memberNote
		if err := readJSON(meta.UserData, &note); err != nil {
			cb.SetError(fmt.Errorf("member %s: %w", c.name, err))
			return
		}
		c.together, c.whole, c.made, c.anew, c.noted = note.Together, note.Whole, note.Partitions, note.Anew, note.Holder
		for _, o := range meta.OwnedPartitions {
			for _, p := range o.Partitions {
				c.owned = append(c.owned, element.TopicPartition{Topic: o.Topic, Partition: p})
			}
		}
		members = append(members, c)
	})
	note := leaderNote{V: noteVersion, Generation: cb.Info().Generation, Partitions: make(map[string]int, len(counts)), Whole: wholly(members)}
	counts = raised(members, b.listed(counts))
	if b.refresh != nil && slices.ContainsFunc(members, func(m candidate) bool { return len(m.anew) > 0 }) {
		b.refresh() // or this member would take its old ones for partitions that were added
	}
	for t, n := range counts {
		note.Partitions[t] = int(n)
	}
	out := &assignments{note: note, to: plan(members, counts), interests: map[string]string{}, givesUp: map[string]bool{}}
	out.note.Holder = holderNow(members, out.to)
	for _, m := range members {
		out.interests[m.id] = fingerprint(m.topics, m.together, m.whole)
		out.givesUp[m.id] = slices.ContainsFunc(m.owned, func(tp element.TopicPartition) bool { return !slices.Contains(out.to[m.id], tp) })
	}
	return out
}

// listed leaves out what the client counts although its topic, made anew with fewer partitions, has it no more.
func (b *copartitioned) listed(counts map[string]int32) map[string]int32 {
	if b.vanished == nil {
		return counts
	}
	out := maps.Clone(counts)
	for topic, n := range counts {
		for ; n > 0 && b.vanished(topic, n-1); n-- {
		}
		out[topic] = n
	}
	return out
}

// assignments is a plan on its way to the members.
type assignments struct {
	note      leaderNote
	to        map[string][]element.TopicPartition
	interests map[string]string
	givesUp   map[string]bool // members that something is taken away from
}

// IntoSyncAssignment encodes it, ordered by member, topic and partition.
func (a *assignments) IntoSyncAssignment() []kmsg.SyncGroupRequestGroupAssignment {
	var all []kmsg.SyncGroupRequestGroupAssignment
	for _, id := range slices.Sorted(maps.Keys(a.to)) {
		var one kmsg.ConsumerMemberAssignment
		for _, tp := range a.to[id] { // sorted
			if n := len(one.Topics); n == 0 || one.Topics[n-1].Topic != tp.Topic {
				t := kmsg.NewConsumerMemberAssignmentTopic()
				t.Topic = tp.Topic
				one.Topics = append(one.Topics, t)
			}
			t := &one.Topics[len(one.Topics)-1]
			t.Partitions = append(t.Partitions, tp.Partition)
		}
		note := a.note
		note.Interests = a.interests[id]
		if a.givesUp[id] {
			note.GivesUp = id
		}
		one.UserData = mustJSON(note)
		sa := kmsg.NewSyncGroupRequestGroupAssignment()
		sa.MemberID, sa.MemberAssignment = id, one.AppendTo(nil)
		all = append(all, sa)
	}
	return all
}

// ParseSyncAssignment gives what this member gets. Units with a topic that it is not interested in are left out: it has
// restarted with other topics than the assignment was made for.
func (b *copartitioned) ParseSyncAssignment(assignment []byte) (map[string][]int32, error) {
	var in kmsg.ConsumerMemberAssignment
	note := leaderNote{Generation: -1}
	if len(assignment) > 0 { // a member that the leader did not know gets none
		if err := in.ReadFrom(assignment); err != nil {
			return nil, fmt.Errorf("assignment: %w", err)
		}
		if err := readJSON(in.UserData, &note); err != nil {
			return nil, fmt.Errorf("assignment: %w", err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.round, b.made, b.holder, b.owes, b.outdated = note.Generation, note.Partitions, note.Holder, note.GivesUp, ""
	maps.DeleteFunc(b.anew, func(t string, n int) bool { // what it was made for counts from now on
		now, ok := note.Partitions[t]
		return ok && now <= n
	})
	maps.DeleteFunc(b.known, func(t string, n int) bool { // the leader goes below what it is told only where another member knows that it was made anew
		now, ok := note.Partitions[t]
		return ok && now < n && n <= b.told[t]
	})
	if len(assignment) == 0 {
		b.outdated = "the assignment was made without this instance"
	}
	if note.V != 0 && note.Interests != fingerprint(b.interests, b.together, b.whole) {
		b.outdated = "the assignment was made for other topics of this instance"
		if b.whole && !note.Whole {
			b.outdated = "the assignment gives a part of the partitions to an instance that needs all or none"
		}
	}
	out := make(map[string][]int32, len(in.Topics))
	if b.whole && !note.Whole {
		return out, nil
	}
	for _, t := range in.Topics {
		if b.consumes(t.Topic) {
			out[t.Topic] = append(out[t.Topic], t.Partitions...)
		}
	}
	return out, nil
}

// consumes says whether this member is interested in a topic and all that go with it. It needs mu.
func (b *copartitioned) consumes(topic string) bool {
	wanted := []string{topic}
	for _, g := range b.together {
		if slices.Contains(g, topic) {
			wanted = g
		}
	}
	return interested(candidate{topics: b.interests}, wanted)
}

// rejoin says why the group must be balanced anew although nobody has come or gone, "" when it need not; member is the
// member id now, exists tells whether a topic has a partition. It gives up when the leader does not take it in.
func (b *copartitioned) rejoin(member string, exists func(topic string, partition int32) bool) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	why := b.outdated
	if why == "" && b.owes != "" && b.owes != member {
		why = "this instance restarted while it gave partitions up"
	}
	if why == "" {
		why = b.fewer(func(t string, n int) bool { return b.known[t] > n || exists(t, int32(n)) })
	}
	if why == "" {
		b.forced = 0
		return ""
	}
	if b.forced++; b.forced > maxForcedRejoins {
		return ""
	}
	return why
}

// fewer says for which topic the assignment was made for fewer partitions than there are, "" when it was for none. It needs mu.
func (b *copartitioned) fewer(than func(topic string, partitions int) bool) string {
	for _, t := range b.interests {
		if n, ok := b.made[t]; ok && than(t, n) {
			return fmt.Sprintf("topic %s has more than the %d partitions that the assignment was made for", t, n)
		}
	}
	return ""
}

// fingerprint stands for a member's interests.
func fingerprint(topics []string, together [][]string, whole bool) string {
	topics = slices.Clone(topics)
	slices.Sort(topics)
	of := []any{topics, together}
	if whole {
		of = append(of, "whole")
	}
	sum := sha256.Sum256(mustJSON(of))
	return hex.EncodeToString(sum[:8])
}

// mustJSON encodes what always can be.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// readJSON decodes a note; none is one without content, as a member of another make has it.
func readJSON(b []byte, into any) error {
	if len(b) == 0 {
		return nil
	}
	if len(b) > maxNote {
		return fmt.Errorf("a note of %d bytes", len(b))
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("note: %w", err)
	}
	return nil
}
