package engine

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/topology"
)

// numbered is a parcel of one record.
type numbered struct {
	topology.Parcel
	n int
}

func (numbered) Len() int  { return 1 }
func (numbered) Size() int { return 1 }

// A task that stays behind what it is sent never finds its queue empty. What has passed through must not stay in memory.
func TestAChannelThatIsNeverEmptyDoesNotGrow(t *testing.T) {
	c := &channel{limit: 10, receiver: newDoorbell(), sender: newDoorbell(), newest: new(atomic.Uint64)}
	next := 0
	for n := range 100_000 {
		c.push(numbered{n: n})
		c.pushBarrier(gate.Barrier{ID: element.CheckpointID(n + 1)})
		for range min(n, 2) { // one round stays in
			p, ok := c.pop(true)
			require.True(t, ok)
			if p.parcel != nil {
				require.Equal(t, numbered{n: next}, p.parcel)
				next++
			}
		}
	}
	require.Equal(t, 99_999, next)
	require.Less(t, cap(c.items), 32)
}

func TestAnInboxThatIsNeverEmptyDoesNotGrow(t *testing.T) {
	q := newInbox(10)
	q.put(delivery(0, 1, 1))
	for n := range int64(100_000) {
		q.put(delivery(0, n+2, 1))
		q.barrier(gate.Barrier{ID: element.CheckpointID(n + 1)})
		require.EqualValues(t, n+1, popNow(t, q).delivery.Next)
		it, ok := q.popBarrier()
		require.True(t, ok)
		require.EqualValues(t, n+1, it.barrier.ID)
	}
	require.Less(t, cap(q.items), 32)
}

// A barrier is taken out ahead of deliveries; the last of those is held by nothing but its own place.
func TestABarrierTakenOutLeavesNoDeliveryBehind(t *testing.T) {
	q := newInbox(10)
	freed := make(chan struct{})
	func() {
		q.barrier(gate.Barrier{ID: 1})
		d := delivery(0, 2, 1)
		runtime.AddCleanup(&d.Records[0], func(c chan struct{}) { close(c) }, freed)
		q.put(d)
		_, ok := q.popBarrier()
		require.True(t, ok)
		popNow(t, q)
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		return isClosed(freed)
	}, patient, patient/100)
	runtime.KeepAlive(q)
}

// What was in flight when the state was taken has to be worked off before its senders send more than that: else large records in
// flight would grow from restart to restart.
func TestWhatIsTakenAgainCountsInBytes(t *testing.T) {
	in := &input{replay: []topology.Parcel{wide{}, wide{}, wide{}, wide{}}}
	c := &channel{limit: 1024, sender: newDoorbell(), behind: &in.behind}
	in.channels = []*channel{c}
	in.fallBehind()
	require.False(t, c.credit())
	in.replay = in.replay[1:]
	in.catchUp()
	require.True(t, c.credit())
	require.Len(t, c.sender.c, 1, "the sender hears of it")
}

// wide is a parcel of one record of a megabyte.
type wide struct{ numbered }

func (wide) Size() int { return 1 << 20 }

// Records of a megabyte, as a topic takes them by default: what waits is bounded in bytes, too.
func TestQueuesAreBoundedInBytes(t *testing.T) {
	q := newInbox(8192)
	large := delivery(0, 1, 1)
	large.Records[0].Value = make([]byte, 1<<20)
	n := 1
	for ; !q.put(large); n++ {
		require.Less(t, n, 20)
	}
	require.Equal(t, 16, n)
	q.setPaused()
	for range 9 { // what a record holds is a little more than its value
		require.EqualValues(t, 1, popNow(t, q).delivery.Next, "still above half: no resume yet")
	}
	require.True(t, popNow(t, q).resume)
	require.False(t, q.full())
	q.halt()
	require.False(t, q.put(large))

	c := &channel{limit: 1024, receiver: newDoorbell(), sender: newDoorbell(), newest: new(atomic.Uint64), behind: new(atomic.Bool)}
	for n = 0; c.credit(); n++ {
		require.Less(t, n, 10)
		c.push(wide{})
	}
	require.Equal(t, 4, n)
	_, ok := c.pop(true)
	require.True(t, ok)
	require.True(t, c.credit())
	require.Len(t, c.sender.c, 1, "the sender hears of the room")
}
