//go:build unix

package integration

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func offsetsOnly(e *env) string {
	p, g := e.producer("a"), e.member("i1", 4)
	e.begin(p)
	require.Equal(e.t, "NONE", e.commit(p, offsets{fence: e.fence(g), at: 5}))
	end := e.end(p, kgo.TryCommit)
	if e.isOpen(0) {
		return "commit " + end + ", offsets still open"
	}
	return "commit " + end + ", " + e.offset(0)
}

func offsetsLeak(e *env) string {
	p := e.producer("a")
	e.begin(p)
	require.Equal(e.t, "NONE", e.commit(p, offsets{fence: nobody(), at: 5}))
	abort := e.end(p, kgo.TryAbort)
	e.begin(p)
	e.mustPut(p, "x")
	return fmt.Sprintf("abort %s, next commit %s, %s", abort, e.end(p, kgo.TryCommit), e.offset(0))
}

func abortDrops(e *env) string {
	p := e.producer("a")
	e.begin(p)
	e.mustPut(p, "marker")
	require.Equal(e.t, "NONE", e.commit(p, offsets{fence: nobody(), at: 5}))
	return fmt.Sprintf("abort %s, %d records, %s", e.end(p, kgo.TryAbort), len(e.readOut()), e.offset(0))
}

func commitShows(e *env) string {
	p := e.producer("a")
	e.begin(p)
	e.mustPut(p, "x")
	e.mustPut(p, "y")
	require.Equal(e.t, "NONE", e.commit(p, offsets{fence: nobody(), at: 5}))
	end, offset := e.end(p, kgo.TryCommit), e.offset(0)
	require.Eventually(e.t, func() bool { return len(e.readOut()) > 0 }, 10*time.Second, 10*time.Millisecond)
	return fmt.Sprintf("commit %s, %d records, %s", end, len(e.readOut()), offset)
}

func takeOver(e *env) string {
	p := e.producer("a")
	e.begin(p)
	e.mustPut(p, "x")
	require.Equal(e.t, "NONE", e.commit(p, offsets{fence: nobody(), at: 5}))
	_, _, err := e.producer("a").ProducerID(e.ctx)
	require.NoError(e.t, err)
	offset := e.offset(0)
	produce := errName(e.put(p, "y"))
	return fmt.Sprintf("%s, produce %s, commit %s", offset, produce, e.end(p, kgo.TryCommit))
}

func rawEndTxn(e *env) string {
	p := e.producer("a")
	e.begin(p)
	e.mustPut(p, "x")
	id, epoch, err := p.ProducerID(e.ctx)
	require.NoError(e.t, err)
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = e.name+"-a", id, epoch, true
	resp, err := req.RequestWith(e.ctx, p)
	require.NoError(e.t, err)
	end := "NONE"
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		end = errName(err)
	}
	// Until its marker is written a partition still takes records of the old epoch, and into this transaction.
	require.Eventually(e.t, func() bool { return len(e.readOut()) == 1 }, 10*time.Second, 10*time.Millisecond)
	return fmt.Sprintf("end %s, next produce %s", end, errName(e.put(p, "y")))
}

func oldestOpen(e *env) string {
	a, b := e.producer("a"), e.producer("b")
	e.begin(a)
	e.mustPut(a, "a")
	e.begin(b)
	e.mustPut(b, "b")
	require.Equal(e.t, "nil", e.end(b, kgo.TryCommit))
	before := len(e.readOut())
	require.Equal(e.t, "nil", e.end(a, kgo.TryCommit))
	require.Eventually(e.t, func() bool { return len(e.readOut()) == 2 }, 10*time.Second, 10*time.Millisecond)
	return fmt.Sprintf("before end %d, after %d", before, len(e.readOut()))
}

func abortedUnread(e *env) string {
	p, plain := e.producer("a"), e.client()
	e.mustPut(plain, "a")
	e.begin(p)
	e.mustPut(p, "no")
	require.Equal(e.t, "nil", e.end(p, kgo.TryAbort))
	e.mustPut(plain, "b")
	e.begin(p)
	e.mustPut(p, "no")
	require.Equal(e.t, "nil", e.end(p, kgo.TryAbort))
	var values []string
	var next int64
	// The answer to an abort may come before the markers are written.
	require.Eventually(e.t, func() bool { values, next = e.readUntilStable(); return next >= 6 }, 10*time.Second, 10*time.Millisecond)
	return fmt.Sprintf("records %s, next %d", strings.Join(values, " "), next)
}

func cancelledCommit(e *env) string {
	p := e.producer("a")
	e.begin(p)
	e.mustPut(p, "x")
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	first := errName(p.EndTransaction(ctx, kgo.TryCommit))
	again := e.end(p, kgo.TryCommit)
	abort := e.end(p, kgo.TryAbort)
	return fmt.Sprintf("commit %s, again %s, abort %s, begin %s", first, again, abort, errName(p.BeginTransaction()))
}

func longTimeout(e *env) string {
	p := e.client(kgo.TransactionalID(e.name+"-a"), kgo.TransactionTimeout(20*time.Minute))
	_, _, err := p.ProducerID(e.ctx)
	return errName(err)
}
