//go:build unix

package integration

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func rawCommit(e *env) string {
	p, g := e.producer("a"), e.member("i1", 4)
	e.begin(p)
	e.mustPut(p, "marker")
	require.Equal(e.t, "NONE", e.commit(p, offsets{fence: e.fence(g), at: 7, metadata: "handle-7"}))
	require.Equal(e.t, "nil", e.end(p, kgo.TryCommit))
	c := e.committed(0)
	return fmt.Sprintf("offset %d, epoch %d, metadata %s", c.Offset, c.LeaderEpoch, c.Metadata)
}

// metadata commits a string of so many characters. Kafka counts those of UTF-16, which for ASCII are the bytes too.
func metadata(pattern string, characters int) func(*env) string {
	return func(e *env) string {
		all := []rune(strings.Repeat(pattern, characters))
		sent := string(all[:characters-3]) + "end"
		p := e.producer("a")
		e.begin(p)
		e.mustPut(p, "marker")
		code := e.commit(p, offsets{fence: nobody(), at: 7, metadata: sent})
		how := kgo.TryCommit
		if code != "NONE" {
			how = kgo.TryAbort
		}
		require.Equal(e.t, "nil", e.end(p, how))
		got := e.committed(0).Metadata
		same := "different"
		if got == sent {
			same = "equal"
		}
		return fmt.Sprintf("%s, %d characters, %s", code, len([]rune(got)), same)
	}
}

func memberlessFirst(e *env) string {
	p := e.producer("a")
	e.begin(p)
	e.mustPut(p, "marker")
	require.Equal(e.t, "NONE", e.commit(p, offsets{fence: nobody(), at: 5}))
	open := e.isOpen(0)
	require.Equal(e.t, "nil", e.end(p, kgo.TryAbort))
	return fmt.Sprintf("waits %v", open)
}

func topicID(e *env) string {
	p := e.producer("a")
	e.begin(p)
	e.mustPut(p, "marker")
	without := e.commit(p, offsets{fence: nobody(), at: 1, noID: true})
	with := e.commit(p, offsets{fence: nobody(), at: 1})
	e.end(p, kgo.TryAbort)
	return fmt.Sprintf("without %s, with %s", without, with)
}

func stableWaits(e *env) string {
	p := e.producer("a")
	for i, at := range []int64{3, 9} {
		e.begin(p)
		e.mustPut(p, "marker")
		require.Equal(e.t, "NONE", e.commit(p, offsets{fence: nobody(), at: at}))
		if i == 0 {
			require.Equal(e.t, "nil", e.end(p, kgo.TryCommit))
			require.Equal(e.t, "offset 3", e.offset(0))
		}
	}
	old, ok := e.fetchOffset(false, true)
	require.True(e.t, ok)
	waits := "does not wait"
	if e.isOpen(0) {
		waits = "waits"
	}
	require.Equal(e.t, "nil", e.end(p, kgo.TryCommit))
	return fmt.Sprintf("unstable read %d, stable read %s, then %d", old.Offset, waits, e.committed(0).Offset)
}

func firstCommitNamed(e *env) string { return firstCommit(e, true) }
func firstCommitAll(e *env) string   { return firstCommit(e, false) }

func firstCommit(e *env, named bool) string {
	p, g := e.producer("a"), e.member("i1", 4)
	e.begin(p)
	e.mustPut(p, "marker")
	require.Equal(e.t, "NONE", e.commit(p, offsets{fence: e.fence(g), at: 5}))
	got, ok := e.fetchOffset(true, named)
	e.end(p, kgo.TryAbort)
	if !ok {
		return "absent"
	}
	if err := kerr.ErrorForCode(got.ErrorCode); err != nil {
		return errName(err)
	}
	return fmt.Sprintf("offset %d", got.Offset)
}

func commitOrder(e *env) string {
	a, b := e.producer("a"), e.producer("b")
	e.begin(a)
	e.mustPut(a, "marker")
	e.begin(b)
	e.mustPut(b, "marker")
	require.Equal(e.t, "NONE", e.commit(a, offsets{fence: nobody(), at: 10}))
	require.Equal(e.t, "NONE", e.commit(b, offsets{fence: nobody(), at: 20}))
	require.Equal(e.t, "nil", e.end(b, kgo.TryCommit))
	require.Equal(e.t, "nil", e.end(a, kgo.TryCommit))
	return e.offset(0)
}
