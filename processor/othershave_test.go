package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// What an instance that has read its inputs to their ends asks: which partitions the group has given to the others.
func TestWhatOthersHaveIsWhatTheGroupGaveThem(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "others-have"
	b.groups[app] = true
	tb := topology.New(app)
	in := topology.FromTopic(tb, "in", inTopic(), serde.Bytes(), serde.Bytes())
	topology.ToTopic(in, "out", outTopic(), serde.Bytes(), serde.Bytes())
	plan, err := tb.Plan()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	services := make(chan *service, 2)
	var wait sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		cfg := b.config()
		cfg.DataDir, cfg.CheckpointsDir = fmt.Sprintf("%s/%d", b.dir, i), b.dir+"/checkpoints"
		cfg.started = func(s *service) { services <- s }
		wait.Go(func() { errs[i] = Run(ctx, plan, cfg) })
	}
	one, two := <-services, <-services
	all := []element.TopicPartition{input(0), input(1), input(2), input(3)}
	require.Eventually(t, func() bool {
		ofTwo, err1 := one.othersHave(ctx)
		ofOne, err2 := two.othersHave(ctx)
		has := slices.SortedFunc(slices.Values(slices.Concat(ofOne, ofTwo)), element.TopicPartition.Compare)
		return err1 == nil && err2 == nil && len(ofOne) == 2 && slices.Equal(has, all) && slices.Equal(ofTwo, two.group.Current().Partitions)
	}, 10*time.Second, 20*time.Millisecond)
	cancel()
	wait.Wait()
	require.NoError(t, errors.Join(errs...))
}
