//go:build synctests

package synctests

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// stuckAfter is longer than any member lets the others wait for it in a rebalance; a broker ends the rebalance then.
const stuckAfter = 65 * time.Second

// nudge ends rebalances that the embedded broker does not end. It counts a static member wrongly that is replaced while it
// waits for the leader's plan, and starts the time of the rebalance anew at every join, so that members which give up and
// join again keep it going for ever. A real broker does neither. All members are taken out then; they join anew when
// their requests time out.
func (w *World) nudge(ctx context.Context) error {
	cl, err := w.client("nudge")
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	for began := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
		g := w.cluster.GroupInfo(application)
		switch {
		case g == nil || g.State != "PreparingRebalance":
			began = time.Now()
			continue
		case time.Since(began) < stuckAfter:
			continue
		}
		w.log("the broker is stuck in a rebalance: all members are taken out")
		leave := kadm.LeaveGroup(application)
		for _, m := range g.Members {
			leave.InstanceIDs(*m.InstanceID)
		}
		if _, err := adm.LeaveGroup(ctx, leave); err != nil {
			return err
		}
		w.count(func(c *Counts) { c.Nudges++ })
		began = time.Now()
	}
}
