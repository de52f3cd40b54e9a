package snapshot

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

var (
	kindsNow = []ExchangeKind{GroupByExchange, RebalanceExchange, BroadcastExchange, FeedbackExchange}
	kindsOld = []ExchangeKind{UnknownExchange, GroupByExchange, RebalanceExchange}
)

// over makes the stage of the checkpoint one of a kind, with its records in flight or without.
func (s *staged) over(kind ExchangeKind, inFlight bool) {
	tasks := s.in.Roots[s.ref].Root.Tasks
	for i := range 2 {
		if tasks[i].Exchange = kind; !inFlight {
			tasks[i].InFlight, tasks[i].Exchange = nil, UnknownExchange
		}
	}
}

// TestRecordsInFlightStayWithTheirKindOfExchange goes through all pairs, at the same and at another parallelism.
func TestRecordsInFlightStayWithTheirKindOfExchange(t *testing.T) {
	for _, old := range kindsOld {
		for _, now := range kindsNow {
			for _, parallelism := range []int{1, 2, 3} {
				t.Run(fmt.Sprintf("%s/%s/%d", old, now, parallelism), func(t *testing.T) {
					s := newStaged(t)
					s.over(old, true)
					s.in.Stages[0].Exchange, s.in.Stages[0].Parallelism = now, parallelism
					told := old == now || old == UnknownExchange && (now == GroupByExchange || now == RebalanceExchange)
					if told {
						s.requireInFlight(s.resolve(), parallelism, 4)
						require.Empty(t, s.in.DroppedStages(s.resolve()))
						return
					}
					words := []string{"stage by-user", "4 records in flight over a " + old.String(), "now a " + now.String(), "stop gracefully", "--allow-dropped-state"}
					if old == UnknownExchange {
						words[1] = "4 records in flight over another kind of exchange"
					}
					s.refused(ReasonInFlight, fault.StateMismatch, words...)
					s.in.DropStates = true
					d := s.resolve()
					s.requireInFlight(d, parallelism, 0)
					require.Equal(t, []DroppedStage{{Stage: stageName, Root: s.ref, Subtasks: 2, InFlight: 4}}, s.in.DroppedStages(d))
					require.Len(t, s.in.Roots[s.ref].Root.Tasks[0].InFlight, 1, "the root is as it was")

					s.in.DropStates = false
					s.over(old, false)
					require.Len(t, s.resolve()[subtask(0)].Sources[0].Runs, 1, "state goes on where nothing is in flight")
				})
			}
		}
	}
}

// requireInFlight counts what all subtasks take, each record once.
func (s *staged) requireInFlight(d map[element.TaskID]Decision, parallelism, want int) {
	n := 0
	for i := range parallelism {
		got := d[subtask(i)]
		for k := range got.Sources {
			n += len(restoreFlying(s.t, s.r, got.Sources[k], got.KeepInFlight(&got.Sources[k])))
		}
	}
	require.Equal(s.t, want, n)
}

// TestKeyGroupsTellAKindThatWasNotWrittenDown: roots of version 2 do not say it.
func TestKeyGroupsTellAKindThatWasNotWrittenDown(t *testing.T) {
	fits := func(old, now ExchangeKind, group int) bool {
		d := Decision{Stage: &StageDecision{StageFacts: StageFacts{Exchange: now}}}
		return d.Fits(&TaskEntry{Exchange: old}, group)
	}
	require.True(t, fits(UnknownExchange, GroupByExchange, 0))
	require.False(t, fits(UnknownExchange, GroupByExchange, -1))
	require.True(t, fits(UnknownExchange, RebalanceExchange, -1))
	require.False(t, fits(UnknownExchange, RebalanceExchange, 0))
	require.True(t, fits(GroupByExchange, GroupByExchange, -1), "Resolve has compared it")
	require.True(t, fits(UnknownExchange, UnknownExchange, -1))
}

// TestGoldenRootOfVersion3 pins the form that says what records in flight came over. Without that a root is of version 2.
func TestGoldenRootOfVersion3(t *testing.T) {
	_, root := openGolden(t, goldenV2)
	file, kinds := goldenV3+"/kinds.root", []ExchangeKind{GroupByExchange, RebalanceExchange}
	var made []byte
	for _, kind := range kinds {
		c := *root
		c.Tasks = slices.Clone(root.Tasks)
		for i := range c.Tasks {
			if len(c.Tasks[i].InFlight) > 0 {
				c.Tasks[i].Exchange = kind
			}
		}
		b := encodeRoot(c.sorted())
		require.EqualValues(t, 3, b[len(rootMagic)])
		got, err := decodeRoot(b)
		require.NoError(t, err)
		require.Equal(t, kind, got.Task(subtask(1)).Exchange)
		require.Equal(t, &c, got)
		made = append(made, b...)
	}
	if *update {
		require.NoError(t, os.MkdirAll(goldenV3, 0o755))
		require.NoError(t, os.WriteFile(file, made, 0o644))
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.Equal(made, have), "it is written differently than version 3 was")
	require.EqualValues(t, plainVersion, encodeRoot(root)[len(rootMagic)])

	needless := seal(appendRoot(append([]byte(rootMagic), rootVersion), root, rootVersion))
	_, err = decodeRoot(needless)
	require.ErrorContains(t, err, "nothing in it needs")
}

// TestASourceWithStateThatIsGoneIsRefused: also in a topology without exchanges, and whoever owns its partitions.
func TestASourceWithStateThatIsGoneIsRefused(t *testing.T) {
	s := newStaged(t)
	root := s.in.Roots[s.ref].Root
	root.Tasks = slices.Clone(root.Tasks[2:])
	for i := range root.Tasks {
		gone := root.Tasks[i]
		gone.Task.Source, gone.States = "refunds", counts
		root.Tasks = append(root.Tasks, gone)
	}
	s.in.Stages = nil
	s.in.Sources = map[string]string{"orders": "orders"}
	no := s.refused(ReasonStateDropped, fault.StateMismatch, "stage refunds", "totals/acc, last/seen", "no such source", "--allow-dropped-state")
	require.Len(t, no.Refusals, 1, "once for the source")
	s.in.Sources = map[string]string{"orders": "orders", "refunds": "orders"} // it is there, and another instance has its partitions
	require.Len(t, s.resolve(), 2)
	s.in.Sources, s.in.DropStates = map[string]string{"orders": "orders"}, true
	d := s.resolve()
	require.Equal(t, []DroppedStage{{Stage: "refunds", Root: s.ref, Subtasks: 2, States: []string{"totals/acc", "last/seen"}}}, s.in.DroppedStages(d))
	s.in.DropStates = false
	for i := range root.Tasks {
		root.Tasks[i].States = nil
	}
	require.Len(t, s.resolve(), 2, "one without state may go")
}

// TestANameThatWasAnExchangesAndIsASources: a subtask is no task of a source, though its name is the same.
func TestANameThatWasAnExchangesAndIsASources(t *testing.T) {
	s := newStaged(t)
	require.NoError(t, s.r.MarkCommitted(ctx, s.ref))
	for i := range 2 {
		e := &s.in.Roots[s.ref].Root.Tasks[i]
		e.States, e.Runs, e.InFlight = nil, nil, nil
	}
	s.in.Stages, s.in.Sources = nil, map[string]string{"orders": "orders", stageName: "users"}
	added := TaskFacts{Task: subtask(0), Inputs: []InputFacts{{TopicPartition: element.TopicPartition{Topic: "users"}, TopicID: topicID, Partitions: 2}}}
	s.in.Tasks = append(s.in.Tasks, added)
	var err error
	s.in.Stored, err = s.r.List(ctx)
	require.NoError(t, err)
	require.Nil(t, s.in.stored(&added))
	require.Equal(t, Fresh, s.resolve()[subtask(0)].Kind)

	listing, err := s.r.Survey(ctx)
	require.NoError(t, err)
	s.in.Listing, s.in.Stored = listing, listing
	require.Nil(t, s.in.stored(&added))

	// What the exchange had is not the source's.
	s.in.Roots[s.ref].Root.Tasks[0].States = counts
	s.refused(ReasonStateDropped, fault.StateMismatch, "no such exchange")
	s.in.Roots[s.ref].Root.Tasks[0].States = nil
	at := standsAt(t, s.r, &s.ref, subtask(0), 500)
	at.Inputs[0].Topic = "users"
	s.in.Tasks[2] = at
	s.refused(ReasonTaskMissing, fault.Corrupt, "by-user-0", "does not hold it")
}
