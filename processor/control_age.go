package processor

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// How old a command is when it is read cannot be told by its timestamp, which another machine's clock gave. What is certain
// is that it was not there yet when an earlier fetch came back without it:
//
//	fetch k answered: nothing behind the position       fetch k+1 asked … answered: the command
//	      └──────────────────────── it was written in between ───────────────┘
//
// fetch k was itself asked only when the one before it had been answered, so that moment, by the clock of this machine, bounds
// the age. In peace a fetch takes half a second; while the brokers are out of reach, or the process stands still, the bound
// grows with the time.

// unseenFetches is how far back the answer lies that surely came before what is being read was written: the one with the
// command, the one before it, the one before that, and one that may have come since.
const unseenFetches = 4

// fetchTimes knows when the last fetches were answered. It is a hook of the client of the control topic, which reads nothing else.
type fetchTimes struct {
	mu    sync.Mutex
	times [unseenFetches]time.Time // guarded by mu; the oldest first
}

var _ kgo.HookBrokerE2E = (*fetchTimes)(nil)

// OnBrokerE2E notes the answer to a fetch.
func (f *fetchTimes) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e kgo.BrokerE2E) {
	if key == int16(kmsg.Fetch) && e.Err() == nil {
		f.answered(time.Now())
	}
}

func (f *fetchTimes) answered(at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	copy(f.times[:], f.times[1:])
	f.times[len(f.times)-1] = at
}

// begin says that the position is set to what the end of the topic will be found to be after a moment.
func (f *fetchTimes) begin(at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.times {
		f.times[i] = at
	}
}

// before is a moment at which what the last fetch brought was not there yet, if that fetch was the first to bring something.
func (f *fetchTimes) before() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.times[0]
}

// longest is the time between two moments of this machine by whichever of its clocks says more: one stands still while the
// machine sleeps, the other is set now and then.
func longest(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// freshness bounds the age of what is read, fetch by fetch.
type freshness struct {
	fetches *fetchTimes
	behind  bool      // the last fetch did not come to the end of the topic
	since   time.Time // all that is being read was written after it
}

// next takes in what a fetch brought of the topic. Where one does not come to the end, those that follow bring what was there
// when it was made.
func (f *freshness) next(p kgo.FetchPartition) {
	if len(p.Records) == 0 {
		return
	}
	if !f.behind {
		f.since = f.fetches.before()
	}
	f.behind = p.Records[len(p.Records)-1].Offset+1 < p.HighWatermark
}
