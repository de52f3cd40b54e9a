package embedded

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// mostRounds is how many rounds a member may have joined without a heartbeat, and still be kept.
	mostRounds = 16
	// mostSeats bounds what is known of members, most of which are gone. Then it is forgotten; the next heartbeats tell it anew.
	mostSeats = 10_000
)

// keeper lets no session run out while its member waits in a JoinGroup for the others. Kafka stops it for that time; in kfake
// it runs on, and a member whose session ends first is removed without an answer:
//
//  1. a, b and c are members, c is frozen. a gives a partition up and joins, for another round.
//  2. All wait for c, for up to one session. That of a began a little before, with its last heartbeat.
//  3. a is removed, then c, and the round ends without a, whose JoinGroup nobody answers: a goes on as the owner of what it
//     had, its commits fail, and it hears of nothing until its request times out, after more than the rebalance timeout.
//
// So a heartbeat is sent in its place until the round has ended. A member that dies meanwhile is kept as long, as in Kafka.
type keeper struct {
	cl   *kgo.Client
	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	rounds  map[seat]int32 // the newest that a member was seen in
	waiting map[seat]int   // joins of members that are kept
}

// seat is a member of a group.
type seat struct{ group, member string }

// keepSessions begins it; close ends it, before the cluster.
func keepSessions(c *kfake.Cluster) (*keeper, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ClientID("millweir-sessions"))
	if err != nil {
		return nil, err
	}
	k := &keeper{cl: cl, rounds: map[seat]int32{}, waiting: map[seat]int{}}
	k.ctx, k.stop = context.WithCancel(context.Background())
	c.ControlKey(kmsg.Heartbeat.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's signature
		r := req.(*kmsg.HeartbeatRequest)
		k.saw(seat{r.Group, r.MemberID}, r.Generation)
		return nil, nil, false
	})
	c.ControlKey(kmsg.JoinGroup.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's signature
		r := req.(*kmsg.JoinGroupRequest)
		k.joins(seat{r.Group, r.MemberID}, time.Duration(r.SessionTimeoutMillis)*time.Millisecond)
		return nil, nil, false
	})
	return k, nil
}

func (k *keeper) close() {
	k.mu.Lock() // behind it joins begins nothing any more
	k.stop()
	k.mu.Unlock()
	k.done.Wait()
	k.cl.Close()
}

func (k *keeper) saw(s seat, generation int32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.rounds) >= mostSeats {
		clear(k.rounds)
	}
	k.rounds[s] = max(k.rounds[s], generation)
}

// joins begins to keep a member. One that joins for the first time has no session yet. kfake's loop handles the request that
// k was called for before any heartbeat.
func (k *keeper) joins(s seat, session time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.member == "" || session <= 0 || k.ctx.Err() != nil {
		return
	}
	k.waiting[s]++
	if k.waiting[s] == 1 {
		k.done.Go(func() { k.keep(s, session/4) })
	}
}

func (k *keeper) keep(s seat, every time.Duration) {
	for generation, joins := int32(0), 0; ; {
		k.mu.Lock()
		generation, joins = max(generation, k.rounds[s]), k.waiting[s]
		k.mu.Unlock()
		if !k.beat(s, &generation) && k.over(s, joins) {
			return
		}
		select {
		case <-time.After(every):
		case <-k.ctx.Done():
			return
		}
	}
}

// over ends the keeping of a member, unless it has joined again.
func (k *keeper) over(s seat, joins int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.waiting[s] != joins {
		return false
	}
	delete(k.waiting, s)
	return true
}

// beat sends one heartbeat and says whether the round still gathers its members. Only that is answered with
// REBALANCE_IN_PROGRESS: not the wait for the plan, and not a member that was removed.
func (k *keeper) beat(s seat, generation *int32) bool {
	for range mostRounds {
		req := kmsg.NewPtrHeartbeatRequest()
		req.Group, req.MemberID, req.Generation = s.group, s.member, *generation
		resp, err := req.RequestWith(k.ctx, k.cl)
		if err != nil {
			return k.ctx.Err() == nil
		}
		if resp.ErrorCode != kerr.IllegalGeneration.Code {
			return resp.ErrorCode == kerr.RebalanceInProgress.Code
		}
		*generation++
	}
	return false
}
