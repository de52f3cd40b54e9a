//go:build synctests

package synctests

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// stuckAfter is longer than any member lets the others wait for it in a rebalance; a broker ends the rebalance then.
const stuckAfter = 65 * time.Second

// nudge does what the embedded broker leaves undone and a real one does. It takes out of the group:
//
//   - members that are dead for longer than their session. The broker does not watch the session of a member whose connection
//     broke while it waited to join or for the plan.
//   - all members, when a rebalance does not end in time. The broker counts a static member wrongly that is replaced while
//     it waits for the plan, and starts the time of the rebalance anew at every join, so that members which give up and
//     join again keep it going for ever. They join anew when their requests time out.
func (w *World) nudge(ctx context.Context) error {
	cl, err := w.client("nudge")
	if err != nil {
		return err
	}
	defer cl.Close()
	for began := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
		g := w.cluster.GroupInfo(application)
		if g == nil || g.State != "PreparingRebalance" {
			began = time.Now()
		}
		var out []kfake.GroupMember
		switch {
		case g == nil:
		case time.Since(began) > stuckAfter:
			out, began = g.Members, time.Now()
		default:
			for _, m := range g.Members {
				if at := w.diedAt(m.ClientHost); !at.IsZero() && time.Since(at) > w.s.Session+time.Second {
					out = append(out, m)
				}
			}
		}
		if len(out) > 0 {
			if err := w.takeOut(ctx, cl, out); err != nil && ctx.Err() == nil {
				return fmt.Errorf("help the broker: %w", err)
			}
		}
	}
}

func (w *World) takeOut(ctx context.Context, cl *kgo.Client, members []kfake.GroupMember) error {
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = application
	for _, m := range members {
		w.log("the broker is helped: %s is taken out of the group", m.MemberID)
		rm := kmsg.NewLeaveGroupRequestMember()
		rm.MemberID, rm.InstanceID = m.MemberID, m.InstanceID
		req.Members = append(req.Members, rm)
	}
	w.count(func(c *Counts) { c.Nudges++ })
	_, err := req.RequestWith(ctx, cl)
	return err
}

// diedAt tells when the process at a client's address was killed or has ended; zero while it lives.
func (w *World) diedAt(address string) time.Time {
	name, _, _ := strings.Cut(address, ":")
	w.mu.Lock()
	h := w.hosts[name]
	w.mu.Unlock()
	if h == nil {
		return time.Time{}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.died
}
