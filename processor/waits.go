package processor

import (
	"context"
	"fmt"
	"time"

	"github.com/millweir/millweir/engine"
)

const (
	// waitTold is how long an instance that does no work may wait for the same thing before it says so.
	waitTold = 10 * time.Second
	// waitLooks is how many times it is looked at meanwhile.
	waitLooks = 10
)

// waits is what an instance without work waits for, and since when.
type waits struct {
	patience time.Duration
	what     string // nothing: ""
	since    time.Time
	told     bool
}

// see notes what is waited for now and says whether it is time to tell, once for each wait.
func (w *waits) see(what string, now time.Time) bool {
	if what != w.what {
		w.what, w.since, w.told = what, now, false
	}
	if what == "" || w.told || now.Sub(w.since) < w.patience {
		return false
	}
	w.told = true
	return true
}

// tellWaits begins to tell of long waits: without it a start that a broker does not answer looks like one that hangs. What
// it returns ends that, and may be called again.
func (o *operations) tellWaits() (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	w := waits{patience: o.s.cfg.waitTold}
	if w.patience == 0 {
		w.patience = waitTold
	}
	look := time.NewTicker(w.patience / waitLooks)
	go func() {
		defer close(done)
		defer look.Stop()
		for {
			select {
			case <-look.C:
			case <-ctx.Done():
				return
			}
			if now := time.Now(); w.see(o.waitsFor(ctx), now) {
				o.s.log.Warn("this instance does no work, it still waits", "for", w.what, "since", now.Sub(w.since).Round(time.Second))
			}
		}
	}()
	return func() { stop(); <-done }
}

// waitsFor says what an instance without work waits for; "" when it has work, stands by, stops, or has failed, which the
// log tells.
func (o *operations) waitsFor(ctx context.Context) string {
	o.mu.Lock()
	works := o.processing
	o.mu.Unlock()
	if works || o.s.stopped.Load() != nil || o.Live() != nil {
		return ""
	}
	r := o.s.runner.Load()
	if r == nil {
		return *o.doing.Load()
	}
	switch st := o.status(ctx, r); st.State {
	case engine.Restoring:
		return fmt.Sprintf("attempt %d: the end of transactions that are open under its ids, the committed offsets, and the state from the checkpoint", st.Attempt)
	case engine.StandingBy:
		asg := o.s.group.Current()
		if !asg.Member || asg.Epoch == 0 {
			return "the group " + o.s.plan.Application + ": it gives no partitions before all its members have joined its round"
		}
		if what, ready := o.readyToStandBy(st); !ready {
			return what
		}
	}
	return ""
}

// readyToStandBy judges an instance without an attempt: it is ready when it is a member that has not got what it needs. One
// that has partitions begins at once.
func (o *operations) readyToStandBy(st engine.Status) (string, bool) {
	asg := o.s.group.Current()
	switch {
	case !asg.Member || asg.Epoch == 0:
		return "joining the group " + o.s.plan.Application, false
	case len(asg.Partitions) > 0 && !o.s.plan.HasExchange():
		return "partitions are assigned, processing has not begun", false
	case len(asg.Partitions) > 0:
		what := fmt.Sprintf("the partitions that this instance has not got: it needs all, and has %d of them", len(asg.Partitions))
		if st.Cause != nil {
			what += fmt.Sprintf(" (the attempt before that failed: %v)", st.Cause)
		}
		return what, false
	}
	return "standing by: other members of the group have the partitions", true
}
