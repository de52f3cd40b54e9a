package processor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// A session that the brokers do not allow is refused at the start, with what to change.
func TestASessionThatTheBrokersDoNotAllowIsRefused(t *testing.T) {
	for name, session := range map[string]time.Duration{"too short": time.Second, "too long": 2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			tb, _ := testbed.NewFake(t, "the limits of the embedded broker are those of Kafka")
			b := bedOn(t, tb)
			cfg := b.config()
			cfg.SessionTimeout = session
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err := Run(ctx, countPlan(t, "session"), cfg)
			require.ErrorContains(t, err, "group.min.session.timeout.ms")
			require.Equal(t, int(fault.BadFile), ExitCode(err))
		})
	}
}
