package processor

import (
	"context"
	"time"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
)

// Attempts gives what is known of attempts.
func (o *operations) Attempts(ctx context.Context) (admin.Attempts, error) {
	out := admin.Attempts{Application: o.s.application, Instance: o.s.instance, State: *o.doing.Load(), Attempts: []admin.Attempt{}}
	r := o.s.runner.Load()
	if r == nil {
		return out, nil
	}
	st := o.status(ctx, r)
	out.State, out.Since, out.Restarts = string(st.State), st.Since, st.Restarts
	for _, a := range st.History {
		out.Attempts = append(out.Attempts, attemptOf(a, st.Began))
	}
	return out, nil
}

// attemptOf gives an attempt of the history as it goes over the wire. Its times count from began.
func attemptOf(a restart.Attempt, began time.Time) admin.Attempt {
	at := func(d time.Duration) *time.Time {
		if d < 0 {
			return nil
		}
		t := began.Add(d).UTC().Round(time.Millisecond)
		return &t
	}
	out := admin.Attempt{Number: a.Number, Started: *at(a.Started), Running: at(a.Running), Ended: at(a.Ended), DelayMs: float64(a.Delay) / float64(time.Millisecond)}
	if a.Cause != nil {
		out.Class, out.Cause = fault.RecoveryOf(a.Cause).String(), oneLine(a.Cause.Error())
	}
	if a.Record != nil {
		out.Record = a.Record.String()
	}
	switch {
	case out.Ended == nil:
		out.Status = admin.AttemptInProgress
	case a.Another && a.Counted:
		out.Status = admin.AttemptFailed
	case a.Another:
		out.Status = admin.AttemptRejoined
	case a.Verdict != nil || a.Cause != nil && fault.RecoveryOf(a.Cause) == fault.Stop:
		out.Status = admin.AttemptGaveUp
		if a.Verdict != nil {
			out.Cause = oneLine(a.Verdict.Error())
		}
	default:
		out.Status = admin.AttemptStopped
	}
	return out
}
