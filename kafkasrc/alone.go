package kafkasrc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/kafka"
)

// ErrNotAlone says that somebody else is, or has been, in the group, or that the group has not heard of the member for a session.
var ErrNotAlone = errors.New("not alone in the group any more")

const (
	// aloneSession is short, since whoever wants to join waits for it when the one that was alone is killed or sleeps.
	aloneSession   = 10 * time.Second
	aloneHeartbeat = 300 * time.Millisecond
	aloneFarewell  = 3 * time.Second
	aloneHurry     = 200 * time.Millisecond // for a farewell when the time is over: it is sent, and not waited for
	consumers      = "consumer"             // the type of the group's protocol
)

// Alone is a membership in a group that nobody else is in. It proves that: the group's generation is its own, and ends with
// whoever joins. So what it commits is taken only if nobody has been a member since it joined, however long it slept. It takes
// no partitions, and makes room as soon as somebody comes.
//
// A goroutine sends heartbeats; Leave ends it and waits for it.
type Alone struct {
	cl         *kgo.Client
	group      string
	member     string
	generation int32

	stop context.CancelFunc
	done chan struct{}
	gone bool // the group has been told; set before done is closed

	mu   sync.Mutex
	lost error // under mu: why it is over
}

// JoinAlone joins a group in which nobody is, in the way that the members of a Group do. The error is ErrNotAlone when others
// are there, which then share the group out once more. session is a session timeout that the brokers are known to take.
func JoinAlone(ctx context.Context, cl *kgo.Client, group string, session time.Duration) (*Alone, error) {
	a := &Alone{cl: cl, group: group, done: make(chan struct{})}
	alone, err := a.join(ctx, min(orDefault(session, DefaultSessionTimeout), aloneSession))
	if errors.Is(err, kerr.InvalidSessionTimeout) && session > aloneSession {
		alone, err = a.join(ctx, session)
	}
	if err == nil && alone {
		err = a.sync(ctx)
	}
	if err != nil || !alone {
		a.depart(ctx)
		if err == nil || over(err) {
			err = fmt.Errorf("group %s: %w", group, ErrNotAlone)
		}
		return nil, kafka.Classify(err, "join group %s", group)
	}
	beat, stop := context.WithCancel(context.Background())
	a.stop = stop
	go a.beat(beat)
	return a, nil
}

// join gets a generation, and reports that nobody else is in it.
func (a *Alone) join(ctx context.Context, session time.Duration) (alone bool, err error) {
	bal, err := newCopartitioned(nil, nil, false)
	if err != nil {
		return false, err
	}
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.ProtocolType = a.group, consumers
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(session.Milliseconds()), int32(session.Milliseconds())
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name, p.Metadata = protocolName, bal.JoinGroupMetadata(nil, nil, -1)
	req.Protocols = append(req.Protocols, p)
	for {
		req.MemberID = a.member
		resp, err := req.RequestWith(ctx, a.cl)
		if err != nil {
			return false, err
		}
		err = kerr.ErrorForCode(resp.ErrorCode)
		if errors.Is(err, kerr.MemberIDRequired) && a.member == "" {
			a.member = resp.MemberID
			continue
		}
		if err != nil {
			return false, err
		}
		a.member, a.generation = resp.MemberID, resp.Generation
		return resp.LeaderID == resp.MemberID && len(resp.Members) == 1, nil
	}
}

// sync ends the round: the only member has nothing.
func (a *Alone) sync(ctx context.Context) error {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Group, req.Generation, req.MemberID = a.group, a.generation, a.member
	req.ProtocolType, req.Protocol = kmsg.StringPtr(consumers), kmsg.StringPtr(protocolName)
	mine := kmsg.NewSyncGroupRequestGroupAssignment()
	nothing := kmsg.NewConsumerMemberAssignment()
	mine.MemberID, mine.MemberAssignment = a.member, nothing.AppendTo(nil)
	req.GroupAssignment = append(req.GroupAssignment, mine)
	resp, err := req.RequestWith(ctx, a.cl)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.ErrorCode)
}

// over says that the broker does not know the member, or that a round has begun.
func over(err error) bool {
	for _, e := range []error{kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.InconsistentGroupProtocol} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// beat keeps the membership, and makes room for whoever comes.
func (a *Alone) beat(ctx context.Context) {
	defer close(a.done)
	for {
		select {
		case <-time.After(aloneHeartbeat):
		case <-ctx.Done():
			return
		}
		if errors.Is(a.Prove(ctx), ErrNotAlone) {
			a.gone = a.farewell(ctx, aloneFarewell) == nil
			return
		}
	}
}

// Prove asks the broker. With nil the member is alone now, and was all the time since it joined.
func (a *Alone) Prove(ctx context.Context) error {
	if _, _, err := a.Fence(); err != nil {
		return err
	}
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.Generation, req.MemberID = a.group, a.generation, a.member
	resp, err := req.RequestWith(ctx, a.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if !over(err) {
		return kafka.Classify(err, "heartbeat to group %s", a.group)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lost = fmt.Errorf("group %s: %w: %v", a.group, ErrNotAlone, err)
	return a.lost
}

// Fence gives what a commit has to have with it, or ErrNotAlone once it is known that the broker would not take it.
func (a *Alone) Fence() (member string, generation int32, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.member, a.generation, a.lost
}

// Leave ends the membership. The end of ctx makes it short, but does not keep it from being tried.
func (a *Alone) Leave(ctx context.Context) {
	a.stop()
	<-a.done
	if !a.gone {
		a.depart(ctx)
	}
}

// depart tells the group. Without that it waits for the session.
func (a *Alone) depart(ctx context.Context) {
	if a.member == "" {
		return
	}
	within := aloneFarewell
	if end, ok := ctx.Deadline(); ok {
		within = min(within, max(time.Until(end), aloneHurry))
	}
	_ = a.farewell(context.WithoutCancel(ctx), within)
}

// farewell is nil once the group knows.
func (a *Alone) farewell(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.MemberID = a.group, a.member
	m := kmsg.NewLeaveGroupRequestMember()
	m.MemberID = a.member
	req.Members = append(req.Members, m)
	_, err := req.RequestWith(ctx, a.cl)
	return err
}
