package kafkasrc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/testbed"
)

// An instance dies while it gives partitions up, and starts again within the session. The round that it died in had withheld
// them from their new owner until it joins again; the broker takes a static restart for no reason to balance.
//
//	leader: 0 and 1 for i1, 2 and 3 for nobody yet         i1: takes the last checkpoint of 2 and 3, dies
//	                                                       i1': gets 0 and 1, as before
//	nobody joins again: who gets 2 and 3?
func TestWhatARestartedInstanceWasGivingUpFindsItsNewOwner(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4)
	var dead atomic.Bool
	k.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.JoinGroup, kmsg.LeaveGroup}, Before: func(req kmsg.Request) error {
		if dead.Load() && (req.Key() == kmsg.LeaveGroup.Int16() || instanceOf(req) == "i1") {
			return errors.New("the dead say nothing")
		}
		return nil
	}})
	giving, once := make(chan struct{}), sync.Once{}
	a := k.join(t, "i1", func(gc *GroupConfig) {
		gc.BeforeRevoke = func(ctx context.Context, gone []element.TopicPartition) {
			once.Do(func() { close(giving) })
			<-ctx.Done()
		}
	})
	owns(t, 4, a)
	b := k.join(t, "i2")
	<-giving
	dead.Store(true)
	a.Close()
	time.Sleep(100 * time.Millisecond)
	dead.Store(false)
	a = k.join(t, "i1")
	owns(t, 4, a, b)
}
