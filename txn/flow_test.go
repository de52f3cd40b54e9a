package txn

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/testbed"
)

// TestUnansweredBytes counts what no broker has answered: while it is on its way, what was missing when a transaction had
// to be given up, and nothing after that.
func TestUnansweredBytes(t *testing.T) {
	testbed.Alongside(t)
	for name, plain := range map[string]bool{"transactions": false, "plain": true} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			var m either
			if plain {
				m = e.plain()
			} else {
				m = e.manager()
			}
			require.Zero(t, m.Unanswered())
			let := make(chan struct{})
			rule := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Before: func(kmsg.Request) error { <-let; return nil }})
			recs := []kgo.Record{{Topic: e.out, Key: []byte("key"), Value: []byte("value"), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}}}}
			require.NoError(t, m.ProduceBatch(e.ctx, recs))
			require.EqualValues(t, 10, m.Unanswered())
			close(let)
			require.NoError(t, m.Seal(e.ctx, 1))
			require.Zero(t, m.Unanswered())
			require.NoError(t, m.Commit(e.ctx, e.commitOf(1, 10, "h1")))
			rule.Remove()

			let = make(chan struct{})
			rule = e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Mute: let})
			recs = []kgo.Record{{Topic: e.out, Value: []byte("lost")}}
			require.NoError(t, m.ProduceBatch(e.ctx, recs))
			ctx, cancel := context.WithTimeout(e.ctx, 100*time.Millisecond)
			defer cancel()
			time.AfterFunc(300*time.Millisecond, func() { close(let) })
			require.Error(t, m.Seal(ctx, 2))
			require.EqualValues(t, 4, m.Unanswered(), "what was missing when it was given up")
			rule.Remove()
			require.NoError(t, m.Abort(e.ctx))
			require.NoError(t, m.Init(e.ctx))
			require.NoError(t, m.Seal(e.ctx, 3))
			require.Zero(t, m.Unanswered())
		})
	}
}
