package processor

import (
	"cmp"
	"context"
	"time"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/topology"
)

const (
	// takenBackTries is how often a start is tried again that ended as fenced before the group had ever had the instance.
	takenBackTries = 3
	// takenBackPause is before the first of them; it doubles.
	takenBackPause = 2 * time.Second
)

// Run runs the plan until ctx ends, then takes a last checkpoint and returns nil.
//
// Another process with the same instance id ends this one (Fenced). A start is tried again a few times, though, when the group has
// never had this instance: a static member that starts in place of its predecessor is taken into the group, and then, if the brokers
// cannot write that down (too few replicas in sync, as when a host with a broker and an instance has died), taken back in favour of
// the dead one, and the brokers answer as if somebody else had the id. Two processes that do start with one id at a moment replace
// each other until the first of them is in the group; the other one hears of it later, or has tried often enough.
func Run(ctx context.Context, plan *topology.Plan, cfg Config) error {
	cfg = cfg.withDefaults()
	pause := cmp.Or(cfg.takenBackPause, takenBackPause)
	for n := 0; ; n++ {
		unknown, err := runOnce(ctx, plan, cfg)
		if !unknown || fault.CodeOf(err) != fault.Fenced || n == takenBackTries || ctx.Err() != nil {
			return err
		}
		cfg.Logger.Warn("the brokers say that another process has the instance id, and the group has never had this one: they also say so when they cannot write down who is in the group; starting again",
			"application", plan.Application, "pause", pause, "try", n+1, "tries", takenBackTries)
		if sleep(ctx, pause) != nil {
			return nil // told to stop before it had started
		}
		pause *= 2
	}
}
