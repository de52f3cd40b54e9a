package embedded

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// syncHold is how long a member's request for its part of the plan is kept back for the plan, far less than the shortest
	// session.
	syncHold = 100 * time.Millisecond
	// mostSyncHold bounds it over all tries, for a leader that makes an empty plan, which cannot be told from no plan.
	mostSyncHold = 10 * time.Second
)

// MendGroups keeps kfake from losing members that wait, see keeper, and count of who has joined a group's round. It is called
// before the cluster has clients; end is, before the cluster is closed.
//
// kfake counts the members that wait in a JoinGroup and lets the round go on when all do. A member that is removed while
// it waits is taken off that count, but also when it waits in SyncGroup for the plan, where the count is 0 already:
//
//  1. a, b and c have joined; the count goes back to 0. b and c wait in SyncGroup for the plan of a, the leader.
//  2. a is killed or frozen before it sends the plan. The sessions of b and c run on, which Kafka's do not while they wait,
//     and one session later c is removed; or c is killed, starts again under its instance id and takes the place of the
//     c that waits. The count is -1.
//  3. All three join. The count is 2 of 3, so all wait, with nothing to hear, until the rebalance timeout, a minute. Clients
//     that give up and join again begin that minute anew.
//
// So nobody gets to wait in SyncGroup: the request of a member that is not the leader is kept back until the leader's has
// come, with which kfake answers it at once. When that takes longer, it is answered as a broker does that begins another
// round; the member joins, kfake tells it the same round again, and it comes back with the same request.
func MendGroups(c *kfake.Cluster) (end func(), err error) {
	k, err := keepSessions(c)
	if err != nil {
		return nil, err
	}
	m := &mender{rounds: map[string]*round{}}
	c.ControlKey(kmsg.SyncGroup.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's signature
		r := req.(*kmsg.SyncGroupRequest)
		if len(r.GroupAssignment) > 0 { // only the leader's has one
			k.leads(r)
		}
		planned := m.see(r, time.Now())
		if planned == nil {
			return nil, nil, false
		}
		c.SleepControl(func() {
			select {
			case <-planned:
			case <-time.After(syncHold):
			}
		})
		select {
		case <-planned:
			return nil, nil, false
		default:
		}
		c.KeepControl()
		resp := r.ResponseKind().(*kmsg.SyncGroupResponse)
		resp.ErrorCode = kerr.RebalanceInProgress.Code
		return resp, nil, true
	})
	return k.close, nil
}

// mender knows the newest round of each group.
type mender struct {
	mu     sync.Mutex
	rounds map[string]*round
}

type round struct {
	generation int32
	planned    chan struct{} // closed when the leader has sent the plan
	asked      map[string]time.Time
}

// see tells what a request has to wait for; nil: it is kfake's. That of an old round is, kfake refuses it.
func (m *mender) see(r *kmsg.SyncGroupRequest, now time.Time) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	is := m.rounds[r.Group]
	if is == nil || r.Generation > is.generation {
		is = &round{generation: r.Generation, planned: make(chan struct{}), asked: map[string]time.Time{}}
		m.rounds[r.Group] = is
	}
	if r.Generation < is.generation {
		return nil
	}
	select {
	case <-is.planned:
		return nil
	default:
	}
	if len(r.GroupAssignment) > 0 {
		close(is.planned)
		return nil
	}
	first, ok := is.asked[r.MemberID]
	if !ok {
		is.asked[r.MemberID], first = now, now
	}
	if now.Sub(first) >= mostSyncHold {
		return nil
	}
	return is.planned
}
