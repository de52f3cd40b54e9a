package embedded

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// mostJoins bounds what is known of members, most of which are gone. Then it is forgotten; a join tells it anew.
const mostJoins = 10_000

// keeper lets no session run out while its member waits in a JoinGroup for the others. Kafka stops it for that time; in kfake
// it runs on, and a member whose session ends first is removed without an answer:
//
//  1. a, b and c are members, c is frozen. a gives a partition up and joins, for another round.
//  2. All wait for c, for up to one session. That of a began a little before, with its last heartbeat.
//  3. a is removed, then c, and the round ends without a, whose JoinGroup nobody answers: a goes on as the owner of what it
//     had, its commits fail, and it hears of nothing until its request times out, after more than the rebalance timeout.
//
// So a heartbeat of the generation that it joined from is sent in its place until the round has ended: then there is another
// generation. A member that dies meanwhile is kept as long, as in Kafka; one whose join is answered at once is not, since a round
// that begins a moment later may find it dead.
type keeper struct {
	cl   *kgo.Client
	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	waiting map[seat]bool
	leaders map[string]string // by group: who sent the newest plan, as whoIs has it
	joins   map[string]string // by whoIs: with what it has joined
}

// seat is a member of a group in a generation.
type seat struct {
	group, member string
	generation    int32
}

// keepSessions begins it; close ends it, before the cluster.
func keepSessions(c *kfake.Cluster) (*keeper, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ClientID("millweir-sessions"))
	if err != nil {
		return nil, err
	}
	k := &keeper{cl: cl, waiting: map[seat]bool{}, leaders: map[string]string{}, joins: map[string]string{}}
	k.ctx, k.stop = context.WithCancel(context.Background())
	c.ControlKey(kmsg.JoinGroup.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's signature
		r := req.(*kmsg.JoinGroupRequest)
		k.join(r, c.GroupInfo(r.Group))
		return nil, nil, false
	})
	return k, nil
}

func (k *keeper) close() {
	k.mu.Lock()
	k.stop()
	k.mu.Unlock()
	k.done.Wait()
	k.cl.Close()
}

// leads notes who leads a group.
func (k *keeper) leads(r *kmsg.SyncGroupRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.leaders) >= mostJoins {
		clear(k.leaders)
	}
	k.leaders[r.Group] = whoIs(r.Group, r.MemberID, r.InstanceID)
}

// whoIs names a member, a static one by its instance: it gets another id when it starts again, and goes on as the leader where
// it was.
func whoIs(group, member string, instance *string) string {
	if instance != nil {
		return group + " " + *instance
	}
	return group + " " + member
}

// join begins to keep a member that will wait. One that joins for the first time has no session yet. kfake handles the request right
// after this, and a heartbeat behind that.
func (k *keeper) join(r *kmsg.JoinGroupRequest, group *kfake.GroupInfo) {
	k.mu.Lock()
	defer k.mu.Unlock()
	who, with := whoIs(r.Group, r.MemberID, r.InstanceID), fmt.Sprint(r.Protocols)
	same := k.joins[who] == with
	if len(k.joins) >= mostJoins {
		clear(k.joins)
	}
	k.joins[who] = with
	every := time.Duration(r.SessionTimeoutMillis) * time.Millisecond / 4
	if r.MemberID == "" || every <= 0 || group == nil || k.ctx.Err() != nil {
		return
	}
	switch group.State {
	case "PreparingRebalance":
	case "CompletingRebalance":
		if same {
			return // it is told the round again
		}
	case "Stable":
		if lead, known := k.leaders[r.Group]; same && known && lead != who {
			return // so is one that does not lead
		}
	default:
		return
	}
	s := seat{r.Group, r.MemberID, group.Epoch}
	if k.waiting[s] {
		return
	}
	k.waiting[s] = true
	k.done.Go(func() {
		k.keep(s, every)
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.waiting, s)
	})
}

// keep sends heartbeats while they are answered with REBALANCE_IN_PROGRESS, as in a round that gathers its members, and not in
// another generation, in the wait for the plan, or to a member that was removed.
func (k *keeper) keep(s seat, every time.Duration) {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.Generation = s.group, s.member, s.generation
	for {
		resp, err := req.RequestWith(k.ctx, k.cl)
		if err == nil && resp.ErrorCode != kerr.RebalanceInProgress.Code {
			return
		}
		select {
		case <-time.After(every):
		case <-k.ctx.Done():
			return
		}
	}
}
