package topology

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/millweir/millweir/element"
)

const (
	// TimersPerKeyMax is the most pending timers that one key may have in a step.
	TimersPerKeyMax = 1024

	// timerState is the name of the state that holds a step's timers, and timerCodec what is in it: per key the times in
	// milliseconds since the Unix epoch, 8 bytes each, big endian, rising.
	timerState = "timers"
	timerCodec = "timers"
	timerBytes = 8

	// staleTimers is how many timers that are no longer pending the heap may hold beside one for each pending one.
	staleTimers = 1024
)

// timerOrigin is where records come from that a timer has emitted.
var timerOrigin = element.TopicPartition{Partition: -1}

// TimerProcessor is a Processor with timers. A key has at most one timer per millisecond and step. Timers are state: they
// survive restarts, and those that came due meanwhile fire after the restart.
type TimerProcessor[K, W any] interface {
	// OnTimer is called once for a timer that is due, in the order of their times, with the key that set it. State is
	// that of the key. What it emits carries the timer's time as timestamp and no headers. When it returns an error or
	// panics, what it emitted and what it changed in state is dropped; under Skip the timer counts as fired.
	OnTimer(ctx *ProcessContext, key K, at time.Time, out *Collector[K, W]) error
}

// timed is an operator with timers as its task sees it.
type timed interface {
	// nextTimer gives the time of its first pending timer.
	nextTimer() (at int64, ok bool)
	// fire fires timers that are due at now, up to the time until, at most that many, and none behind the one after which
	// enough says so. It gives how many there were.
	fire(now, until int64, most int, enough func() bool) (fired int, err error)
}

// timerLooper is a looper over timers.
type timerLooper interface {
	// timerRef names the timer at work.
	timerRef() *TimerRef
}

// recordLooper is a looper over records that a timer may have emitted.
type recordLooper interface {
	// recordRef names record i of the batch at work by its key and timestamp.
	recordRef(i int) *TimerRef
}

// refOf keeps nothing of the batch: its memory is used again.
func refOf(key []byte, timestamp int64) *TimerRef {
	return &TimerRef{Key: bytes.Clone(key), At: time.UnixMilli(timestamp)}
}

// timer is one entry of the heap.
type timer struct {
	at  int64
	key []byte // never written again
}

func (t timer) compare(o timer) int {
	return cmp.Or(cmp.Compare(t.at, o.at), bytes.Compare(t.key, o.key))
}

// timerSet is the timers of one step in one task. The table is the truth; the heap, in the order of time, has all that is
// in the table and maybe more: timers that were deleted, which are dropped when they come up.
type timerSet struct {
	table StateTable
	heap  []timer
	live  int // pending timers

	ops     []timerOp // of the record at work
	list    []byte    // what its key has then
	added   []int64
	changed bool
}

// timerOp is what a record does to its key's timer of one instant.
type timerOp struct {
	at  int64
	set bool
}

// newTimerSet reads the pending timers.
func newTimerSet(table StateTable) (*timerSet, error) {
	s := &timerSet{table: table}
	return s, s.rebuild()
}

// rebuild makes the heap from the table.
func (s *timerSet) rebuild() error {
	clear(s.heap)
	s.heap = s.heap[:0]
	for key, list := range s.table.All() {
		if len(list)%timerBytes != 0 || len(list) == 0 {
			return stateError(timerCodec, fmt.Errorf("%d bytes for key %q", len(list), key))
		}
		key := bytes.Clone(key)
		for ; len(list) > 0; list = list[timerBytes:] {
			s.heap = append(s.heap, timer{at: timeOf(list), key: key})
		}
	}
	slices.SortFunc(s.heap, timer.compare) // a sorted list is a heap
	s.live = len(s.heap)
	return nil
}

func timeOf(b []byte) int64 { return int64(binary.BigEndian.Uint64(b)) }

// find gives the place of a time in a key's list.
func find(list []byte, at int64) (offset int, found bool) {
	n := len(list) / timerBytes
	i := sort.Search(n, func(i int) bool { return timeOf(list[i*timerBytes:]) >= at })
	return i * timerBytes, i < n && timeOf(list[i*timerBytes:]) == at
}

// begin forgets what the last record wanted.
func (s *timerSet) begin() {
	s.ops, s.added, s.changed = s.ops[:0], s.added[:0], false
}

// prepare works out what a key has after the record at work. Nothing is changed yet.
func (s *timerSet) prepare(key []byte) error {
	if len(s.ops) == 0 {
		return nil
	}
	old, _ := s.table.Get(key)
	s.list = append(s.list[:0], old...)
	for _, op := range s.ops {
		i, found := find(s.list, op.at)
		switch {
		case op.set && !found:
			if len(s.list) >= TimersPerKeyMax*timerBytes {
				return ErrTooManyTimers
			}
			s.list = slices.Insert(s.list, i, binary.BigEndian.AppendUint64(nil, uint64(op.at))...)
			s.added = append(s.added, op.at)
			s.changed = true
		case !op.set && found:
			s.list = slices.Delete(s.list, i, i+timerBytes)
			s.changed = true
		}
	}
	s.live += (len(s.list) - len(old)) / timerBytes
	return nil
}

// apply makes it so.
func (s *timerSet) apply(key []byte) error {
	if !s.changed {
		return nil
	}
	s.store(key)
	if len(s.added) > 0 {
		key = bytes.Clone(key)
	}
	for _, at := range s.added {
		s.push(timer{at: at, key: key})
	}
	if len(s.heap) > 2*s.live+staleTimers {
		return s.rebuild()
	}
	return nil
}

// store puts the list of a key into the table.
func (s *timerSet) store(key []byte) {
	if len(s.list) == 0 {
		s.table.Delete(key)
		return
	}
	s.table.Put(key, s.list)
}

// next gives the first pending timer.
func (s *timerSet) next() (timer, bool) {
	for len(s.heap) > 0 {
		t := s.heap[0]
		list, _ := s.table.Get(t.key)
		if _, pending := find(list, t.at); pending {
			return t, true
		}
		s.pop()
	}
	return timer{}, false
}

// take removes the timer that next gave.
func (s *timerSet) take(t timer) {
	s.pop()
	old, _ := s.table.Get(t.key)
	i, _ := find(old, t.at)
	s.list = append(append(s.list[:0], old[:i]...), old[i+timerBytes:]...)
	s.store(t.key)
	s.live--
}

func (s *timerSet) push(t timer) {
	s.heap = append(s.heap, t)
	for i := len(s.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if s.heap[up].compare(s.heap[i]) <= 0 {
			return
		}
		s.heap[up], s.heap[i] = s.heap[i], s.heap[up]
		i = up
	}
}

// pop removes the root of the heap.
func (s *timerSet) pop() {
	last := len(s.heap) - 1
	s.heap[0], s.heap[last] = s.heap[last], timer{}
	s.heap = s.heap[:last]
	for i := 0; ; {
		least := i
		for kid := 2*i + 1; kid <= 2*i+2 && kid < last; kid++ {
			if s.heap[kid].compare(s.heap[least]) < 0 {
				least = kid
			}
		}
		if least == i {
			return
		}
		s.heap[i], s.heap[least] = s.heap[least], s.heap[i]
		i = least
	}
}

// SetTimer makes OnTimer be called for the key of the record at work when the processing time reaches at, taken in whole
// milliseconds and not before 1970. It does nothing when the key has that timer already. It counts when Process or
// OnTimer returns without an error.
//
// It has no error result: what goes wrong fails the record when Process returns, whatever Process returns.
func (c *ProcessContext) SetTimer(at time.Time) { c.changeTimer(at, true) }

// DeleteTimer takes back a timer of the key of the record at work. It does nothing when the key has no such timer.
func (c *ProcessContext) DeleteTimer(at time.Time) { c.changeTimer(at, false) }

// Now is the processing time that timers follow, in whole milliseconds. While planning it is the zero time.
func (c *ProcessContext) Now() time.Time {
	if c.now == nil {
		return time.Time{}
	}
	return time.UnixMilli(c.now())
}

func (c *ProcessContext) changeTimer(at time.Time, set bool) {
	switch {
	case c.key == nil:
		c.fail(fmt.Errorf("timer: %w", ErrNoRecord))
	case c.timers == nil:
		c.fail(ErrNoOnTimer)
	case len(c.timers.ops) >= 2*TimersPerKeyMax:
		c.fail(fmt.Errorf("more than %d timers set and deleted for one record", 2*TimersPerKeyMax))
	default:
		c.timers.ops = append(c.timers.ops, timerOp{at: timerTime(at), set: set})
	}
}

// timerTime gives the milliseconds of a timer, for any time.
func timerTime(at time.Time) int64 {
	switch s := at.Unix(); {
	case s < 0:
		return 0
	case s >= math.MaxInt64/1000:
		return math.MaxInt64
	}
	return at.UnixMilli()
}
