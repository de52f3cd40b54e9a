//go:build unix

package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/verify"
)

// embeddedKills is how often the service with a broker inside is killed: broker and service go at once.
const embeddedKills = 8

// `run --embedded` is exactly-once as well, also across SIGKILL: what was open is aborted, what was begun is completed.
func TestKillEmbedded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	s := &site{t: t, ctx: ctx, brokers: []string{fmt.Sprintf("127.0.0.1:%d", port)}, app: "emb", in: "emb-in", out: "emb-out",
		dir: filepath.Join(t.TempDir(), "data"), parts: 4, every: 50 * time.Millisecond, session: 10 * time.Second}
	start := func() *process {
		p := s.run(s.file(totals), "--log-format", "text", "--embedded", "--embedded-port", fmt.Sprint(port))
		p.await("msg=processing")
		return p
	}
	p := start()
	s.cl, err = kafka.NewClient(s.kafka(), kgo.ProducerLinger(2*time.Millisecond))
	require.NoError(t, err)
	defer s.cl.Close()
	s.adm = kadm.NewClient(s.cl)
	trickling, stop := context.WithCancel(ctx)
	trickle := make(chan int, 1)
	go func() { trickle <- s.trickle(trickling, 0, 300) }()
	rnd := rand.New(rand.NewPCG(killSeed(t), 5))
	for range embeddedKills {
		time.Sleep(100*time.Millisecond + time.Duration(rnd.Int64N(int64(700*time.Millisecond))))
		require.False(t, p.ended(), p.stderr.tail(4))
		p.kill()
		p = start()
	}
	time.Sleep(time.Second)
	stop()
	<-trickle
	s.caughtUp(p)
	require.DirExists(t, filepath.Join(s.dir, "broker"), "its topics are in the data directory")
	r := s.verify(verify.Config{})
	require.True(t, r.Exact() && r.OpenOffsets == 0, r.String())
	p.stop()
}
