//go:build unix

package integration

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/integration/kafkatest"
	"github.com/millweir/millweir/internal/verify"
)

// A host dies with what is on it: an instance in the middle of a transaction, and a broker. The one that is left does not
// wait for the transaction, whose timeout is a minute here, though one broker cannot tell any more what is open: all
// partitions have new output soon after the session.
func TestRealAHostDiesWithABrokerAndAnInstance(t *testing.T) {
	needReal(t)
	b := kafkatest.Start(t, kafkatest.Options{Nodes: 3})
	if b.External {
		t.Skip("the cluster was not started here")
	}
	s := newSite(t, strings.Split(b.Addr, ","), 6)
	s.session = 6 * time.Second
	file := s.file(totals, "{{.TransactionTimeout}}", "60s")
	start := func(name string) *process {
		return s.run(file, "--log-format", "text", "--set", "instance.id="+s.app+"-"+name,
			"--set", "data-dir="+filepath.Join(s.dir, name), "--set", "state.checkpoints.dir="+s.checkpoints())
	}
	left, dies := start("a"), start("b")
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	trickle := make(chan int, 1)
	go func() { trickle <- s.trickle(ctx, 0, 500) }()
	left.await("msg=processing")
	dies.await("msg=processing")
	time.Sleep(2 * time.Second)
	for end := time.Now().Add(10 * time.Second); len(s.open()) == 0; {
		require.True(t, time.Now().Before(end), "no transaction is open at any time")
	}
	_, stable := s.ends(s.out)
	dies.kill()
	require.NoError(t, b.Kill(2))
	died := time.Now()
	for free := 0; free < int(s.parts); time.Sleep(50 * time.Millisecond) {
		require.Less(t, time.Since(died), 40*time.Second, "%s", left.stderr.tail(5))
		free = 0
		now, _ := s.adm.ListCommittedOffsets(s.ctx, s.out) // some have no leader for a while
		for p, at := range now[s.out] {
			if at.Err == nil && at.Offset > stable[p]+50 {
				free++
			}
		}
	}
	require.Less(t, time.Since(died), s.session+14*time.Second, "the brokers miss theirs after 9 s")
	t.Logf("free after %v, the session is %v", time.Since(died).Round(time.Millisecond), s.session)
	require.NoError(t, b.Restart(s.ctx))
	stop()
	n := <-trickle
	s.caughtUp(left)
	r := s.exact(verify.Config{})
	require.EqualValues(t, n, r.RecordsIn+r.Filtered)
	left.stop()
}
