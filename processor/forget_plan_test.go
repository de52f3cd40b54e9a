package processor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/snapshot"
)

// groupPlay plays with what a group has committed.
type groupPlay struct {
	t  require.TestingT
	at map[element.TopicPartition]kafka.Committed
}

func inputOf(p int32) element.TopicPartition {
	return element.TopicPartition{Topic: "in", Partition: p}
}

func (g groupPlay) put(h snapshot.Handle) {
	text, err := h.Encode()
	require.NoError(g.t, err)
	g.at[inputOf(h.Partition)] = kafka.Committed{Found: true, Offset: h.Offset, LeaderEpoch: h.LeaderEpoch, Metadata: text}
}

func (g groupPlay) handle(p int32) snapshot.Handle {
	h, err := snapshot.ParseHandle(g.at[inputOf(p)].Metadata)
	require.NoError(g.t, err)
	return h
}

// checkpoint is what an instance commits that began in a life.
func (g groupPlay) checkpoint(life uint64, id element.CheckpointID, p int32, offset int64) {
	name := element.CheckpointName{ID: id, Incarnation: 7}
	h := snapshot.Handle{Kind: snapshot.HandleCheckpoint, Root: snapshot.RootRef{Name: name, Path: "app/i/chk-" + name.String() + ".root"}, Partition: p, Offset: offset, LeaderEpoch: 3, ClusterID: "c", StoreID: "s", PartitionCount: 4, Life: life}
	g.put(h)
}

func (g groupPlay) forget(of uint64) forgetting {
	f, err := planForget(g.at, 99, of)
	require.NoError(g.t, err)
	for tp, h := range f.Handles {
		require.Equal(g.t, g.at[tp].Offset, h.Offset, "positions stay")
		require.Equal(g.t, g.at[tp].LeaderEpoch, h.LeaderEpoch)
		g.put(h)
	}
	return f
}

// What instances, cancels and reruns of them do one after the other: after a cancel no state belongs to any position, whoever
// began before it can tell, whoever begins after it cannot be taken for one of before, and a rerun changes nothing.
func TestACancelThatDeletesEndsALife(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := groupPlay{rt, map[element.TopicPartition]kafka.Committed{}}
		began := []uint64{LifeOf(g.at)} // the lives in which processes began
		id := element.CheckpointID(0)
		rt.Repeat(map[string]func(*rapid.T){
			"checkpoint": func(rt *rapid.T) {
				id++
				g.checkpoint(LifeOf(g.at), id, rapid.Int32Range(0, 3).Draw(rt, "p"), int64(id))
			},
			"start": func(*rapid.T) { began = append(began, LifeOf(g.at)) },
			"cancel": func(rt *rapid.T) {
				if len(g.at) == 0 {
					require.Empty(rt, g.forget(LifeOf(g.at)).Handles)
					return
				}
				before := LifeOf(g.at)
				require.Len(rt, g.forget(LifeOf(g.at)).Handles, len(g.at))
				for p := range int32(4) {
					if _, ok := g.at[inputOf(p)]; !ok {
						continue
					}
					h := g.handle(p)
					require.Equal(rt, snapshot.HandleEmpty, h.Kind)
					require.Equal(rt, before+1, h.Life)
					require.Greater(rt, h.Root.Name.ID, id, "no commit that is known is newer")
				}
				id = g.maxID()
				for _, life := range began {
					require.Less(rt, life, LifeOf(g.at))
					_, err := planForget(g.at, 99, life)
					require.ErrorIs(rt, err, errOtherLife, "who is late deletes nothing of the next life")
				}
				began = []uint64{LifeOf(g.at)}
				require.Empty(rt, g.forget(anyLife).Handles, "a rerun")
			},
		})
	})
}

func (g groupPlay) maxID() (id element.CheckpointID) {
	for tp := range g.at {
		id = max(id, g.handle(tp.Partition).Root.Name.ID)
	}
	return id
}

// A rerun goes on where there is anything to forget: a life that has begun has a state.
func TestACancelAgainForgetsWhatHasState(t *testing.T) {
	g := groupPlay{t, map[element.TopicPartition]kafka.Committed{}}
	g.checkpoint(0, 5, 0, 50)
	g.checkpoint(0, 6, 1, 60)
	require.EqualValues(t, 1, g.forget(anyLife).Life)
	require.EqualValues(t, 1, LifeOf(g.at))
	g.checkpoint(1, 8, 1, 70)
	f := g.forget(anyLife)
	require.EqualValues(t, 2, f.Life)
	require.Len(t, f.Handles, 2)
	require.EqualValues(t, 9, g.handle(0).Root.Name.ID)
}

// Offsets that no checkpoint has committed are nobody's to decide on.
func TestACancelDoesNotForgetWhatItCannotRead(t *testing.T) {
	for what, c := range map[string]func(kafka.Committed) kafka.Committed{
		"foreign": func(c kafka.Committed) kafka.Committed { c.Metadata = ""; return c },
		"moved":   func(c kafka.Committed) kafka.Committed { c.Offset++; return c },
	} {
		g := groupPlay{t, map[element.TopicPartition]kafka.Committed{}}
		g.checkpoint(0, 5, 0, 50)
		g.checkpoint(0, 5, 1, 60)
		g.at[inputOf(1)] = c(g.at[inputOf(1)])
		_, err := planForget(g.at, 99, anyLife)
		require.Equal(t, fault.HandleMismatch, fault.CodeOf(err), what)
	}
}

// A cancel that was interrupted between two requests has ended the life with the first: whoever starts then begins without
// state everywhere, and another cancel does the rest.
func TestACancelInterruptedBetweenItsRequestsHasEndedTheLife(t *testing.T) {
	g := groupPlay{t, map[element.TopicPartition]kafka.Committed{}}
	g.checkpoint(0, 5, 0, 50)
	g.checkpoint(0, 5, 1, 60)
	plan, err := planForget(g.at, 99, anyLife)
	require.NoError(t, err)
	g.put(plan.Handles[inputOf(1)])
	require.EqualValues(t, 1, LifeOf(g.at))
	h, err := snapshot.ParseHandle(ofThisLife(g.at[inputOf(0)].Metadata, LifeOf(g.at)))
	require.NoError(t, err)
	require.Equal(t, snapshot.HandleEmpty, h.Kind)
	require.EqualValues(t, 50, h.Offset, "positions stay")
	require.EqualValues(t, 1, h.Life)
	require.Len(t, g.forget(anyLife).Handles, 2)
	require.Empty(t, g.forget(anyLife).Handles)
	own := g.at[inputOf(1)].Metadata
	require.Equal(t, own, ofThisLife(own, LifeOf(g.at)))
}

// After a reset a life begins that is later than all before, and who is of one of those can tell, whether the mark of the
// reset is still there or only what was committed since.
func TestAResetBeginsALaterLife(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	for _, before := range []uint64{0, 1, 7, 1_800_000_000_000} {
		after := lifeAfter(before, 0, now)
		require.Greater(t, after, before)
		require.True(t, lifeFacts{life: after}.over(before))
		require.True(t, lifeFacts{life: after, begun: true}.over(before))
		require.False(t, lifeFacts{life: after, begun: true}.over(after), "the live one goes on")
		require.Greater(t, lifeAfter(0, after, now), after, "reset again before anything was committed")
	}
	require.True(t, lifeFacts{begun: true}.over(1), "the mark was forgotten, others have begun anew")
	require.False(t, lifeFacts{}.over(1), "nothing is committed, and nothing says that it was reset")
}
