package checkpoint

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/stretchr/testify/require"
)

func TestValidateReportsAllProblemsAtOnce(t *testing.T) {
	require.NoError(t, Config{Interval: time.Second, Timeout: 50 * time.Second}.Validate())
	require.NoError(t, Config{Interval: MaxDuration, Timeout: MaxDuration, MinPause: MaxDuration}.Validate())

	err := Config{Interval: 0, Timeout: 25 * time.Hour, MinPause: -1}.Validate()
	require.EqualError(t, err, "checkpoint interval is 0s: it must be above 0\n"+
		"checkpoint timeout is 25h0m0s: at most 24h0m0s is allowed\n"+
		"checkpoint min-pause is -1ns: it must not be negative")
	err = Config{Interval: 48 * time.Hour, MinPause: 48 * time.Hour}.Validate()
	require.EqualError(t, err, "checkpoint interval is 48h0m0s: at most 24h0m0s is allowed\n"+
		"checkpoint timeout is 0s: it must be above 0\n"+
		"checkpoint min-pause is 48h0m0s: at most 24h0m0s is allowed")
}

func TestValidateNamesBothValuesThatExcludeEachOther(t *testing.T) {
	good := Config{Interval: time.Second, Timeout: time.Second}
	for _, change := range []func(*Config){
		func(c *Config) { c.MaxConcurrent = MaxInFlight },
		func(c *Config) { c.MaxConcurrent, c.MinPause = 1, time.Second },
		func(c *Config) { c.TolerableFailures, c.TransactionTimeout = Unlimited, MaxDuration },
	} {
		c := good
		change(&c)
		require.NoError(t, c.Validate(), "%+v", c)
	}
	c := good
	c.MinPause, c.MaxConcurrent = 2*time.Second, 3
	require.EqualError(t, c.Validate(), "checkpoint min-pause is 2s and max-concurrent is 3: a pause between checkpoints leaves no room for a second one in flight; set one of them only")
	c = good
	c.MaxConcurrent, c.TolerableFailures, c.TransactionTimeout = MaxInFlight+1, -2, -1
	require.EqualError(t, c.Validate(), "checkpoint max-concurrent is 65: it must be from 1 to 64\n"+
		"checkpoint tolerable-failures is -2: it must not be negative, except -1 for unlimited\n"+
		"checkpoint transaction timeout is -1ns: it must not be negative")
}

func TestSavepointRequestsAreBounded(t *testing.T) {
	c, _ := inFlight()
	for i := range MaxSavepoints {
		require.Empty(t, c.RequestSavepoint(0, fmt.Sprint(i)))
	}
	require.Empty(t, c.RequestSavepoint(0, "0"), "it waits already")
	actions := c.RequestSavepoint(0, "one more")
	require.Equal(t, []Action{Refused{Savepoint: "one more"}}, actions)
	require.Equal(t, "refused savepoint one more: 64 wait already", actions[0].String())
	require.Len(t, c.Unserved(), MaxSavepoints)
}

func TestFiguresHaveStableLabels(t *testing.T) {
	s := CheckpointStats{StartDelay: 1, Alignment: 2, Sync: 3, Barriers: 4, Persist: 5, Waited: 6, Flush: 7, Root: 8, Commit: 9, EndToEnd: 10,
		DeltaBytes: 11, FullBytes: 12, BufferedBytes: 13}
	var got []string
	for _, f := range append(s.Phases(), s.Sizes()...) {
		got = append(got, fmt.Sprintf("%s %d %d", f.Label, f.Time, f.Bytes))
	}
	require.Equal(t, []string{"start-delay 1 0", "alignment 2 0", "sync 3 0", "barriers 4 0", "async 5 0", "waited 6 0", "flush 7 0", "root 8 0",
		"commit 9 0", "end-to-end 10 0", "delta 0 11", "full 0 12", "buffered 0 13"}, got)
}

// TestManyTakenIdsDoNotHideWhatIsInFlight: ids of others are remembered in few ranges, the oldest of which swallow what
// lies between them. A checkpoint that is in flight all the time is still known.
func TestManyTakenIdsDoNotHideWhatIsInFlight(t *testing.T) {
	a := element.TaskID{Source: "a"}
	c := New(Config{Interval: time.Second, Timeout: time.Hour, MaxConcurrent: 2, TolerableFailures: Unlimited}, 0)
	c.AddTask(0, a)
	c.Moved(0, a)
	now := time.Second
	require.Len(t, c.Tick(now), 1)
	for range 3 * foreignRanges {
		c.Moved(now, a)
		now += time.Second
		require.IsType(t, Trigger{}, c.Tick(now)[0])
		require.IsType(t, Abandon{}, c.Declined(now, c.LastID(), a, nil)[0])
		c.Raise(now, c.LastID()+5)
	}
	require.Equal(t, []Action{Flush{ID: 1}, Persist{ID: 1}}, c.BarrierPassed(now, 1, a, TaskAck{}))
}

func TestTheZeroPermitAllowsNothing(t *testing.T) {
	var p Permit
	require.False(t, p.Valid())
	require.Zero(t, p.ID())
	require.False(t, p.Allows(0))
	require.Equal(t, "commit 3 WITHOUT PERMIT", CommitAction{ID: 3}.String())
	require.Equal(t, "commit 3 WITHOUT PERMIT", CommitAction{ID: 3, Permit: Permit{id: 2, valid: true}}.String())
}

func TestEveryPhaseKnowsEveryReport(t *testing.T) {
	for ph := range numPhases {
		for ev := range numEvents {
			require.NotEqual(t, unset, verdicts[ph][ev], "%v in phase %v", ev, ph)
		}
	}
	// After the Permit only the outcome of the commit counts, and it counts nowhere else.
	for ph := range numPhases {
		for _, ev := range []event{evCommitted, evCommitFailed} {
			require.Equal(t, ph == committing, verdicts[ph][ev] == accept, "%v in phase %v", ev, ph)
		}
		for ev := range evCommitted {
			if ph >= committing {
				require.NotEqual(t, accept, verdicts[ph][ev], "%v in phase %v", ev, ph)
				require.NotEqual(t, breach, verdicts[ph][ev], "%v in phase %v", ev, ph)
			}
		}
	}
}

func TestStepsOutsideTheTablePanic(t *testing.T) {
	legal := map[[2]phase]bool{
		{collecting, storing}: true, {storing, rooting}: true, {rooting, committing}: true, {committing, completed}: true,
		{collecting, failed}: true, {storing, failed}: true, {rooting, failed}: true, {committing, failed}: true,
	}
	for from := range numPhases {
		for to := range numPhases {
			p := &pending{id: 9, phase: from}
			if legal[[2]phase{from, to}] {
				p.step(to)
				require.Equal(t, to, p.phase)
				continue
			}
			want := &IllegalTransition{ID: 9, From: from.String(), To: to.String()}
			require.PanicsWithError(t, want.Error(), func() { p.step(to) })
			require.Equal(t, from, p.phase)
		}
	}
}

func TestTheHistoryKeepsTheLastOnes(t *testing.T) {
	var h history
	require.Empty(t, h.list())
	_, ok := Stats{}.Last()
	require.False(t, ok)
	for id := element.CheckpointID(1); id <= RecentCheckpoints+5; id++ {
		h.add(CheckpointStats{ID: id})
		list := h.list()
		require.Len(t, list, min(int(id), RecentCheckpoints))
		for i, s := range list {
			require.Equal(t, id-element.CheckpointID(len(list)-1-i), s.ID)
		}
		last, ok := Stats{Recent: list}.Last()
		require.True(t, ok)
		require.Equal(t, id, last.ID)
	}
}

func TestMovedAllocatesNothing(t *testing.T) {
	a := element.TaskID{Source: "a"}
	c := New(Config{Interval: time.Hour, Timeout: time.Hour}, 0)
	c.AddTask(0, a)
	now := time.Duration(0)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		now += time.Millisecond
		c.Moved(now, a)
		c.Tick(now)
		c.NextWake(now)
	}))
	require.Zero(t, c.Stats().Totals.Triggered)
}

func TestTheCauseKeepsItsClassAndCode(t *testing.T) {
	cause := fault.Stopf(fault.CheckpointDir, "disk full")
	c, id := inFlight()
	f := c.Declined(time.Second, id, element.TaskID{Source: "a"}, fmt.Errorf("write run: %w", cause))[1].(FailAttempt)
	require.Equal(t, fault.Stop, f.Class)
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(f.Err))
	require.ErrorIs(t, f.Err, cause)
	require.EqualError(t, f.Err, "checkpoint 1: task a-0 declined: write run: disk full")

	// A driver that has no error to give still gets one.
	c, id = inFlight()
	f = c.FlushFailed(time.Second, id, nil)[1].(FailAttempt)
	require.Equal(t, fault.Restart, f.Class)
	require.EqualError(t, f.Err, "checkpoint 1: flushing the outputs failed: no cause given")
}

// The class that the committer found out wins over what the error carries from further down.
func TestTheClassOfACommitIsTheCommitters(t *testing.T) {
	c, id := inFlight()
	c.BarrierPassed(0, id, element.TaskID{Source: "a"}, TaskAck{Moved: true})
	c.Flushed(0, id)
	c.Persisted(0, id, PersistStats{})
	c.RootWritten(0, id)
	out := c.CommitFailed(0, id, fault.Restartf(fault.Unreachable, "connection reset"), fault.Unconfirmed)
	require.Len(t, out, 1)
	f := out[0].(FailAttempt)
	require.Equal(t, fault.Unconfirmed, f.Class)
	require.Equal(t, fault.Unconfirmed, fault.RecoveryOf(f.Err))
	require.Equal(t, fault.Unreachable, fault.CodeOf(f.Err))
}

// What the driver does with an action must not reach back into the coordinator.
func TestActionsBelongToTheReceiver(t *testing.T) {
	c := New(Config{Interval: time.Hour, Timeout: time.Hour}, 0)
	a, b := element.TaskID{Source: "a"}, element.TaskID{Source: "b"}
	c.AddTask(0, a)
	c.AddTask(0, b)
	c.Moved(0, a)
	tr := c.RequestCheckpoint(0, Manual)[0].(Trigger)
	tr.Tasks[0], tr.Tasks[1] = element.TaskID{}, element.TaskID{}
	c.BarrierPassed(0, 1, a, TaskAck{})
	c.BarrierPassed(0, 1, b, TaskAck{})
	c.Flushed(0, 1)
	w := c.Persisted(0, 1, PersistStats{})[0].(WriteRoot)
	require.Equal(t, []TaskPositions{{Task: a}, {Task: b}}, w.Tasks)
}

func TestEnumsHaveTextsForEveryValue(t *testing.T) {
	for f := range NumFailureReasons {
		require.NotEmpty(t, f.String())
		require.NotEmpty(t, f.Label())
	}
	for a := range NumAnswers {
		require.NotEmpty(t, a.String())
	}
	require.Equal(t, "reason(77)", Reason(77).String())
	require.Equal(t, "failure(77)", FailureReason(77).Label())
}

func TestRequestsOutsideTheEnumDoNothing(t *testing.T) {
	c := New(Config{Interval: time.Hour, Timeout: time.Hour}, 0)
	c.AddTask(0, element.TaskID{Source: "a"})
	c.Moved(0, element.TaskID{Source: "a"})
	require.Empty(t, c.RequestCheckpoint(0, Periodic))
	require.Empty(t, c.RequestCheckpoint(0, Reason(77)))
}

// The driver may ask too early or too late; NextWake is never negative, and time never runs backwards.
func TestTimeOnlyGrows(t *testing.T) {
	c := New(Config{Interval: time.Second, Timeout: time.Minute}, 0)
	a := element.TaskID{Source: "a"}
	c.AddTask(0, a)
	c.Moved(500*time.Millisecond, a)
	d, ok := c.NextWake(3 * time.Second)
	require.True(t, ok)
	require.Zero(t, d)
	require.Empty(t, c.Tick(900*time.Millisecond))
	require.Len(t, c.Tick(2*time.Second), 1)
	require.Empty(t, c.Tick(time.Second))
	cur := c.Stats().Current
	require.NotNil(t, cur)
	require.Zero(t, cur.EndToEnd)
	require.Equal(t, 2*time.Second, cur.Triggered)
}

// inFlight gives a coordinator whose checkpoint 1 of task a-0 was triggered.
func inFlight() (*Coordinator, element.CheckpointID) {
	c := New(Config{Interval: time.Second, Timeout: time.Minute}, 0)
	c.AddTask(0, element.TaskID{Source: "a"})
	c.Moved(0, element.TaskID{Source: "a"})
	tr, ok := c.Tick(time.Second)[0].(Trigger)
	if !ok {
		panic(errors.New("no trigger"))
	}
	return c, tr.ID
}

// However often tasks join with higher ids, what is remembered of them is bounded; the own ids in between stay known as
// long as reports of them can come.
func TestTheIdsOfOthersAreBounded(t *testing.T) {
	c := New(Config{Interval: time.Second, Timeout: time.Minute}, 5)
	a := element.TaskID{Source: "a"}
	c.AddTask(0, a)
	var own []element.CheckpointID
	for i := range 5 * foreignRanges {
		c.Raise(0, c.LastID()+3)
		c.Raise(0, c.LastID()+2) // goes on where the first ends
		c.Moved(0, a)
		id := c.RequestCheckpoint(0, Manual)[0].(Trigger).ID
		own = append(own, id)
		require.Equal(t, element.CheckpointID(5+6*(i+1)), id)
		c.BarrierPassed(0, id, a, TaskAck{Moved: true})
		c.Flushed(0, id)
		c.Persisted(0, id, PersistStats{})
		c.RootWritten(0, id)
		require.Equal(t, []Action{Complete{ID: id}}, c.Committed(0, id))
	}
	require.LessOrEqual(t, len(c.ids.ranges), foreignRanges)
	recent := own[len(own)-foreignRanges:]
	for id := recent[0]; id <= c.LastID(); id++ {
		want := Unknown
		if slices.Contains(recent, id) {
			want = Duplicate
		}
		require.Equal(t, want, c.Committed(0, id)[0].(Ignored).Answer, id)
	}
	require.Equal(t, Unknown, c.Committed(0, c.LastID()+1)[0].(Ignored).Answer)
	require.Equal(t, Unknown, c.Committed(0, 6)[0].(Ignored).Answer)
}
