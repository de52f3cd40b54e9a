package engine

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/topology"
)

var errUnread = errors.New("the state cannot be read")

// unreadable is a state that loses what it has when bad is set, and says so.
type unreadable struct {
	State
	bad    *atomic.Bool
	closed *atomic.Int64
}

func (u unreadable) Err() error {
	if u.bad.Load() {
		return errUnread
	}
	return u.State.Err()
}

func (u unreadable) EndBatch() error { return errors.Join(u.State.EndBatch(), u.Err()) }

func (u unreadable) Close() { u.closed.Add(1); u.State.Close() }

func (u unreadable) Table(name, codec string) (topology.StateTable, error) {
	t, err := u.State.Table(name, codec)
	return unreadableTable{t, u.bad}, err
}

type unreadableTable struct {
	topology.StateTable
	bad *atomic.Bool
}

func (u unreadableTable) Get(key []byte) ([]byte, bool) {
	if u.bad.Load() {
		return nil, false
	}
	return u.StateTable.Get(key)
}

// A timer that is not found since the state cannot be read is no timer that is gone: the attempt ends although no record and
// no barrier comes, and the next one has it. No state is left open.
func TestTimersThatCannotBeReadEndTheAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, timersThatCannotBeRead) // the time until the timer passes only when nothing is to be done
}

func timersThatCannotBeRead(t *testing.T) {
	w := newWorld(t, 1)
	var first atomic.Bool // of the first state
	var made, closed atomic.Int64
	ports := w.ports()
	open := ports.NewState
	ports.NewState = func(id element.TaskID) State {
		bad := &atomic.Bool{}
		if made.Add(1) == 1 {
			bad = &first
		}
		return unreadable{open(id), bad, &closed}
	}
	cfg := w.config()
	stop := w.startPlan(timerPlan(t, 0, time.Now().Add(300*time.Millisecond)), cfg, ports, nil)
	w.produce(1, 1)
	w.caughtUp()
	require.Zero(t, w.done())
	first.Store(true)
	w.outputs()
	require.EqualValues(t, 2, made.Load(), "what cannot be read is not kept")
	require.NoError(t, stop())
	require.Equal(t, made.Load(), closed.Load())
	w.exact()
}

// What was computed from a state that cannot be read goes nowhere.
func TestNothingLeavesATaskWhoseStateCannotBeRead(t *testing.T) {
	bad := &atomic.Bool{}
	bad.Store(true)
	e := &taskEnv{t: &task{state: unreadable{bad: bad}, stats: &taskStats{}}} // no writer, no channels: a use of them panics
	require.ErrorIs(t, e.Emit(0, make([]element.Record, 1)), errUnread)
	require.ErrorIs(t, e.Send(0, 0, nil), errUnread)
}
