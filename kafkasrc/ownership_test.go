package kafkasrc

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
)

func as(member string, generation int32) func() (string, int32) {
	return func() (string, int32) { return member, generation }
}

func TestAMemberThatJoinedAnewDoesNotVouchForTheOldEpoch(t *testing.T) {
	o := newOwnership()
	one := map[string][]int32{"in": {0}}
	epoch, grew := o.assigned(one, "m1")
	require.True(t, grew)
	held := claimsOf(o.current())
	require.Equal(t, []element.Claim{{TopicPartition: element.TopicPartition{Topic: "in"}, Epoch: epoch}}, held)
	_, _, err := o.fence(held, as("m1", 1))
	require.NoError(t, err)
	_, _, err = o.fence(held, as("m1", 2))
	require.NoError(t, err, "the same member in the next generation still owns what it did")
	// The group expelled m1 and let it in again as m2; no callback has run yet, others may have owned the partition.
	_, _, err = o.fence(held, as("m2", 5))
	requireRejoin(t, err)
	// The assignment is the same as before, so the client says that nothing was added.
	next, grew := o.assigned(nil, "m2")
	require.True(t, grew)
	require.Greater(t, next, epoch)
	_, _, err = o.fence(held, as("m2", 5))
	requireRejoin(t, err)
	_, _, err = o.fence(claimsOf(o.current()), as("m2", 5))
	require.NoError(t, err)
}

// The group keeps a static member that does not join in time, with what it said when it joined last: what it was given since
// is free for others. It has the same id when it comes back, and hears of the round that it has missed by the generation alone.
func TestAMemberThatMissedARoundDoesNotVouchForWhatItHad(t *testing.T) {
	of := func() (*ownership, []element.Claim) {
		o := newOwnership()
		o.round(4) // and joins
		require.False(t, o.round(5), "the answer")
		o.assigned(in(0, 1), "m1")
		return o, claimsOf(o.current())
	}
	o, held := of()
	for _, generation := range []int32{5, 6} {
		_, _, err := o.fence(held, as("m1", generation))
		require.NoError(t, err, "generation %d: it is in this round, and in the one that follows", generation)
	}
	_, _, err := o.fence(held, as("m1", 7))
	requireRejoin(t, err)
	require.False(t, o.round(5), "it joins")
	require.True(t, o.round(7), "the answer")
	require.False(t, o.isMember("m1"), "it is not asked for a last checkpoint")
	o.revoked(in(1))
	_, grew := o.assigned(nil, "m1")
	require.True(t, grew)
	_, _, err = o.fence(held[:1], as("m1", 7))
	requireRejoin(t, err)
	_, _, err = o.fence(claimsOf(o.current()), as("m1", 7))
	require.NoError(t, err)

	o, held = of()
	require.False(t, o.round(6), "a round")
	require.False(t, o.round(6), "which another one has cut short")
	require.False(t, o.round(7))
	o.assigned(nil, "m1")
	_, _, err = o.fence(held, as("m1", 7))
	require.NoError(t, err)

	o, _ = of()
	o.lost()
	require.False(t, o.round(9), "there is nothing to be lost")
	o.assigned(in(0), "m1")
	_, _, err = o.fence(claimsOf(o.current()), as("m1", 9))
	require.NoError(t, err)
}

func TestFenceIsNeverEmpty(t *testing.T) {
	o := newOwnership()
	_, _, err := o.fence(nil, as("m1", 1))
	requireRejoin(t, err)
	one := map[string][]int32{"in": {0}}
	o.assigned(one, "")
	_, _, err = o.fence(claimsOf(o.current()), as("", 1))
	requireRejoin(t, err)
	o.assigned(one, "m1")
	_, _, err = o.fence(claimsOf(o.current()), as("m1", -1))
	requireRejoin(t, err)
}

func TestFirstAssignmentMayBeEmpty(t *testing.T) {
	o := newOwnership()
	epoch, grew := o.assigned(nil, "m1")
	require.True(t, grew, "more members than partitions: this one stands by and knows it")
	require.EqualValues(t, 1, epoch)
	_, grew = o.assigned(nil, "m1")
	require.False(t, grew)
	require.EqualValues(t, 1, o.revoked(map[string][]int32{"in": {3}}), "what is not owned cannot be revoked")
}

// The epoch changes exactly when the set or the member does, only upwards, and a claim holds exactly as long as its
// partition has not been taken away since, and the member is the same.
func TestOwnershipModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := newOwnership()
		owned, member, last := map[int32]uint64{}, "", uint64(0)
		given := map[element.Claim]bool{}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			ps := rapid.SliceOfNDistinct(rapid.Int32Range(0, 5), 0, 4, rapid.ID[int32]).Draw(rt, "partitions")
			m := map[string][]int32{"in": ps}
			changed := false
			switch rapid.IntRange(0, 3).Draw(rt, "step") {
			case 0:
				name := rapid.SampledFrom([]string{"m1", "m2"}).Draw(rt, "member")
				changed = last == 0 || name != member
				for p := range owned {
					if name != member {
						owned[p] = last + 1
					}
				}
				member = name
				for _, p := range ps {
					if owned[p] == 0 {
						changed, owned[p] = true, last+1
					}
				}
				o.assigned(m, name)
			case 1:
				for _, p := range ps {
					changed = changed || owned[p] != 0
					delete(owned, p)
				}
				o.revoked(m)
			case 2:
				changed = last > 0 && (len(owned) > 0 || member != "")
				clear(owned)
				member = ""
				o.lost()
			}
			now := o.current()
			if changed {
				require.Equal(rt, last+1, now.Epoch)
			} else {
				require.Equal(rt, last, now.Epoch)
			}
			require.Len(rt, now.Partitions, len(owned))
			for _, p := range now.Partitions {
				require.Equal(rt, owned[p.Partition], now.Since[p])
				require.Equal(rt, element.TopicPartition{Topic: "in", Partition: p.Partition}, p)
			}
			for _, c := range claimsOf(now) {
				given[c] = true
			}
			for c := range given { // all that were ever given, also those that are over
				_, _, err := o.fence([]element.Claim{c}, as("m1", 3))
				require.Equal(rt, owned[c.Partition] == c.Epoch && member == "m1", err == nil, "%v", c)
			}
			if len(owned) > 0 {
				_, _, err := o.fence(claimsOf(now), as(member, 3))
				require.Equal(rt, member != "", err == nil)
			}
			last = now.Epoch
		}
	})
}

func claim(p int32, epoch uint64) element.Claim {
	return element.Claim{TopicPartition: tp("in", p), Epoch: epoch}
}

func in(ps ...int32) map[string][]int32 { return map[string][]int32{"in": ps} }

// Each case is a way in which claims taken at one moment meet a fence at a later one.
func TestClaimsAndWhatHappensMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name      string
		meanwhile func(o *ownership)
		now       func() (string, int32)
		holds     []int32 // of the claims to 0 and 1
	}{
		{"nothing", func(*ownership) {}, as("m1", 3), []int32{0, 1}},
		{"a new generation alone", func(*ownership) {}, as("m1", 9), []int32{0, 1}},
		{"a round without a change", func(o *ownership) { o.assigned(nil, "m1") }, as("m1", 4), []int32{0, 1}},
		{"another partition comes", func(o *ownership) { o.assigned(in(5), "m1") }, as("m1", 4), []int32{0, 1}},
		{"another partition goes", func(o *ownership) { o.revoked(in(2)) }, as("m1", 4), []int32{0, 1}},
		{"others come and go", func(o *ownership) { o.assigned(in(5), "m1"); o.revoked(in(5, 2)); o.assigned(in(2), "m1") }, as("m1", 6), []int32{0, 1}},
		{"one is assigned again without a revoke", func(o *ownership) { o.assigned(in(0), "m1") }, as("m1", 4), []int32{0, 1}},
		{"one is revoked", func(o *ownership) { o.revoked(in(1)) }, as("m1", 4), []int32{0}},
		{"one is revoked and regained", func(o *ownership) { o.revoked(in(1)); o.assigned(in(1), "m1") }, as("m1", 5), []int32{0}},
		{"all are lost", func(o *ownership) { o.lost() }, as("m1", 4), nil},
		{"all are lost and regained", func(o *ownership) { o.lost(); o.assigned(in(0, 1, 2), "m1") }, as("m1", 5), nil},
		{"all are lost and regained as another member", func(o *ownership) { o.lost(); o.assigned(in(0, 1, 2), "m2") }, as("m2", 5), nil},
		{"another member id, before any callback", func(*ownership) {}, as("m2", 5), nil},
		{"another member id, with the same partitions", func(o *ownership) { o.assigned(nil, "m2") }, as("m2", 5), nil},
		{"another member id, with one partition less", func(o *ownership) { o.revoked(in(1)); o.assigned(nil, "m2") }, as("m2", 5), nil},
		{"no member id", func(*ownership) {}, as("", 3), nil},
		{"no generation", func(*ownership) {}, as("m1", -1), nil},
		{"a fatal error", func(o *ownership) { o.fail(errFull) }, as("m1", 3), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOwnership()
			o.assigned(in(0, 2), "m1")
			o.assigned(in(1), "m1")
			held := []element.Claim{claim(0, 1), claim(1, 2)}
			c.meanwhile(o)
			for _, h := range held {
				member, generation, err := o.fence([]element.Claim{h}, c.now)
				if slices.Contains(c.holds, h.Partition) {
					require.NoError(t, err)
					wantMember, wantGeneration := c.now()
					require.Equal(t, wantMember, member)
					require.Equal(t, wantGeneration, generation, "it is read anew")
					continue
				}
				require.Error(t, err)
				require.Empty(t, member)
			}
			_, _, err := o.fence(held, c.now)
			require.Equal(t, len(c.holds) == len(held), err == nil, "one that is broken breaks all: %v", err)
			_, _, err = o.fence(nil, c.now)
			require.Error(t, err, "nothing is claimed")
			_, _, err = o.fence([]element.Claim{claim(0, 0)}, c.now)
			require.Error(t, err, "epoch 0 is none")
			_, _, err = o.fence([]element.Claim{claim(7, 0)}, c.now)
			require.Error(t, err, "what was never owned is not owned since 0")
		})
	}
}

func TestClaimsAreReadUnderTheLock(t *testing.T) {
	o := newOwnership()
	o.assigned(in(0), "m1")
	revoked := make(chan struct{})
	_, _, err := o.fence([]element.Claim{claim(0, 1)}, func() (string, int32) {
		go func() { o.revoked(in(0)); close(revoked) }()
		select {
		case <-revoked:
			t.Error("a partition was taken away between the check and the reading of the generation")
		case <-time.After(50 * time.Millisecond):
		}
		return "m1", 1
	})
	require.NoError(t, err)
	<-revoked
	_, _, err = o.fence([]element.Claim{claim(0, 1)}, as("m1", 1))
	requireRejoin(t, err)
}
