//go:build unix

package integration

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/kafkasrc"
)

// fenced opens a transaction, tries the fences one after the other and aborts.
func fenced(e *env, partition int32, fences ...kafkasrc.Fence) []string {
	e.t.Helper()
	p := e.producer("a")
	var codes []string
	for _, f := range fences {
		e.begin(p)
		e.mustPut(p, "marker")
		codes = append(codes, e.commit(p, offsets{fence: f, partition: partition, at: 5}))
		require.Equal(e.t, "nil", e.end(p, kgo.TryAbort))
	}
	return codes
}

func wrongGeneration(e *env) string {
	right := e.fence(e.member("i1", 4))
	older, newer := right, right
	older.Generation--
	newer.Generation++
	codes := fenced(e, 0, older, newer, right)
	return fmt.Sprintf("older %s, newer %s, right %s", codes[0], codes[1], codes[2])
}

func unknownMember(e *env) string {
	f := e.fence(e.member("i1", 4))
	f.Member, f.InstanceID = "no-such-member", ""
	return fenced(e, 0, f)[0]
}

func fencedInstance(e *env) string {
	f := e.fence(e.member("i1", 4))
	f.Member = "i1-00000000-0000-0000-0000-000000000000"
	return fenced(e, 0, f)[0]
}

func noFence(e *env) string {
	e.member("i1", 4)
	return fenced(e, 0, nobody())[0]
}

func foreignPartition(e *env) string {
	a := e.member("i1", 4)
	b := e.member("i2", 2)
	e.awaitShare(a, 2)
	return fenced(e, b.Current().Partitions[0].Partition, e.fence(a))[0]
}

func lateCommit(e *env) string {
	p, g := e.producer("a"), e.member("i1", 4)
	e.begin(p)
	e.mustPut(p, "marker")
	require.Equal(e.t, "NONE", e.commit(p, offsets{fence: e.fence(g), at: 5}))
	left := errName(g.Leave(e.ctx))
	end := e.end(p, kgo.TryCommit)
	return fmt.Sprintf("left %s, commit %s, %s", left, end, e.offset(0))
}

func revokeGeneration(e *env) string {
	var mu sync.Mutex
	var a *kafkasrc.Group
	var before, inside kafkasrc.Fence
	var codes []string
	var held []element.Claim
	mu.Lock()
	a = e.member("i1", 4, func(gc *kafkasrc.GroupConfig) {
		gc.BeforeRevoke = func(context.Context, []element.TopicPartition) {
			mu.Lock()
			defer mu.Unlock()
			var err error
			if inside, err = a.Fence(held); err != nil {
				codes = append(codes, err.Error())
				return
			}
			codes = fenced(e, 0, before, inside)
		}
	})
	before, held = e.fence(a), claims(a)
	mu.Unlock()
	e.member("i2", 2)
	e.awaitShare(a, 2)
	mu.Lock()
	defer mu.Unlock()
	require.Len(e.t, codes, 2, "%v", codes)
	return fmt.Sprintf("generation grew %v, old %s, new %s", inside.Generation > before.Generation, codes[0], codes[1])
}

func restartInPlace(e *env) string {
	a := e.member("i1", 4)
	b := e.member("i2", 2)
	e.awaitShare(a, 2)
	had, epoch := a.Current().Partitions, b.Current().Epoch
	a.Close()
	start := time.Now()
	a = e.member("i1", 2)
	took := time.Since(start)
	time.Sleep(100 * time.Millisecond)
	return fmt.Sprintf("same partitions %v, in a second %v, unnoticed %v",
		slices.Equal(had, a.Current().Partitions), took < time.Second, b.Current().Epoch == epoch)
}

func leaveMoves(e *env) string {
	a := e.member("i1", 4)
	b := e.member("i2", 2)
	e.awaitShare(a, 2)
	start := time.Now()
	require.NoError(e.t, a.Leave(e.ctx))
	e.awaitShare(b, 4)
	return fmt.Sprintf("in five seconds %v", time.Since(start) < 5*time.Second)
}
