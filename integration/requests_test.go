//go:build unix

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/integration/kafkatest"
	"github.com/millweir/millweir/internal/kafka"
)

// The broker comes back with a smaller socket.request.max.bytes: each batch of many partitions fits, but not all of them in
// one request, which the broker answers with the end of the connection. It has another advertised address as well. Nothing of
// that ends the service.
func TestRealTheBrokerTakesSmallerRequests(t *testing.T) {
	needReal(t)
	b := kafkatest.Start(t, kafkatest.Options{})
	if b.External {
		t.Skip("the cluster was not started here")
	}
	s := newSite(t, []string{b.Addr}, 8)
	p := s.run(s.file(passOn))
	s.orders(0, 100, 100)
	s.caughtUp(p)

	require.NoError(t, b.Stop())
	const most = 150_000
	files, err := filepath.Glob(filepath.Join(b.Dir, "*.properties"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		changed := strings.Replace(string(text), "advertised.listeners=PLAINTEXT://127.0.0.1:", "advertised.listeners=PLAINTEXT://localhost:", 1)
		require.NotEqual(t, string(text), changed)
		require.NoError(t, os.WriteFile(name, fmt.Appendf(nil, "%s\nsocket.request.max.bytes=%d\n", changed, most), 0o600))
	}
	require.NoError(t, b.Restart(s.ctx))

	const n = 8_000
	cl, err := kafka.NewClient(s.kafka(), kgo.BrokerMaxWriteBytes(most), kgo.ProducerBatchMaxBytes(most/2))
	require.NoError(t, err)
	defer cl.Close()
	var recs []*kgo.Record
	for i := range n {
		recs = append(recs, &kgo.Record{Topic: s.in, Key: fmt.Append(nil, i), Value: []byte(strings.Repeat("x", 500))})
	}
	require.NoError(t, cl.ProduceSync(s.ctx, recs...).FirstErr())
	s.caughtUp(p)
	settled(s)
	require.Len(t, s.read(s.out), n+100)

	p.stop()
}
