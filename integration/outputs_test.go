//go:build unix

package integration

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/verify"
)

// The output's topic is made again with fewer partitions: the next attempt looks at it anew.
func outputMadeAgainWithFewerPartitions(s *site) {
	p := s.run(s.file(totals))
	s.orders(0, 400, 100)
	s.caughtUp(p)
	_, err := s.adm.DeleteTopic(s.ctx, s.out)
	require.NoError(s.t, err)
	time.Sleep(2 * time.Second)
	_, err = kafka.EnsureTopic(s.ctx, s.cl, s.out, 2, nil)
	require.NoError(s.t, err)
	s.orders(400, 400, 100)
	s.caughtUp(p)
	settled(s)
	require.Equal(s.t, 360, len(s.read(s.out)), "what passes the filter of the second half")
	p.stop()
}

// settled waits until no transaction is open on the output: Kafka answers the end of one before its markers are written.
func settled(s *site) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		log, stable := s.ends(s.out)
		return maps.Equal(log, stable)
	}, 5*time.Second, 20*time.Millisecond, "a transaction stays open on %s", s.out)
}

func TestOutputMadeAgainWithFewerPartitions(t *testing.T) {
	t.Parallel()
	outputMadeAgainWithFewerPartitions(fakeSite(t, 4).impatient())
}
func TestRealOutputMadeAgainWithFewerPartitions(t *testing.T) {
	outputMadeAgainWithFewerPartitions(realSite(t, 4).impatient())
}

// large gives a site whose topics take 10 MB, and a client that makes such records.
func large(s *site) *kgo.Client {
	s.in, s.out = s.in+"-large", s.out+"-large"
	for _, topic := range []string{s.in, s.out} {
		s.topic(topic, map[string]*string{"max.message.bytes": kmsg.StringPtr("10485760")})
	}
	return producer(s)
}

func producer(s *site, opts ...kgo.Opt) *kgo.Client {
	cl, err := kafka.NewClient(s.kafka(), append(opts, kgo.ProducerBatchMaxBytes(10<<20))...)
	require.NoError(s.t, err)
	s.t.Cleanup(cl.Close)
	return cl
}

// What the topics take goes through, up to the byte.
func largeRecords(s *site) {
	cl, t := large(s), s.t
	for _, size := range []int{1, 2 << 20, 10<<20 - 1000} {
		value := make([]byte, size)
		_, _ = rand.Read(value)
		require.NoError(t, cl.ProduceSync(s.ctx, &kgo.Record{Topic: s.in, Key: fmt.Append(nil, size), Value: value}).FirstErr())
	}
	job := s.run(s.file(passOn))
	s.caughtUp(job)
	settled(s)
	require.Len(t, s.read(s.out), 3)
	job.stop()
}

func TestLargeRecords(t *testing.T)     { t.Parallel(); largeRecords(fakeSite(t, 1)) }
func TestRealLargeRecords(t *testing.T) { largeRecords(realSite(t, 1)) }

// A producer that compresses gets more into the input's topic than goes into the output's, which has the same limit. The
// service says which record it is, and what to change.
func compressedInput(s *site) {
	t := s.t
	cl := producer(s, kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	require.NoError(t, cl.ProduceSync(s.ctx, &kgo.Record{Topic: s.in, Key: []byte("large"), Value: bytes.Repeat([]byte(`{"order":1}`), 140_000)}).FirstErr())
	job := s.run(s.file(passOn))
	require.Equal(t, 30, job.exit(20*time.Second))
	for _, want := range []string{s.out, "offset 0", "max.message.bytes", "before compression"} {
		require.Contains(t, job.stderr.tail(1), want)
	}
	more := "2000000"
	_, err := s.adm.AlterTopicConfigs(s.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &more}}, s.out)
	require.NoError(t, err)
	job = s.run(s.file(passOn))
	s.caughtUp(job)
	settled(s)
	require.Len(t, s.read(s.out), 1)
	job.stop()
}

func TestRealCompressedInput(t *testing.T) { compressedInput(realSite(t, 1)) }

// The output's limit is lowered, again and again, under a service that makes batches of many small records. Each fits, and so
// nothing but a new attempt is needed each time. One that does not fit ends the service, which says what to do.
func loweredLimit(s *site) {
	limit := func(most string) {
		set, err := s.adm.AlterTopicConfigs(s.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &most}}, s.out)
		require.NoError(s.t, err)
		require.NoError(s.t, set[0].Err)
	}
	p := s.run(s.file(totals))
	s.orders(0, 5000, 100)
	s.caughtUp(p)
	for i, most := range []string{"20000", "2000"} {
		limit(most)
		s.orders(5000+i*20_000, 20_000, 100)
		s.caughtUp(p)
	}
	s.exact(verify.Config{})
	require.GreaterOrEqual(s.t, p.restarts(), 1)
	require.Contains(s.t, p.stderr.String(), "is read anew")
	limit("80")
	for n := range 5 { // the controller has the limit, the broker soon
		s.orders(45_000+n, 1, 1)
		time.Sleep(500 * time.Millisecond)
	}
	require.Equal(s.t, 30, p.exit(20*time.Second))
	for _, want := range []string{s.out, "offset ", "partition ", "at most 80", "max.message.bytes"} {
		require.Contains(s.t, p.stderr.tail(1), want)
	}
}

func TestLoweredLimitOfAnOutput(t *testing.T) {
	t.Parallel()
	loweredLimit(fakeSite(t, 2))
}
func TestRealLoweredLimitOfAnOutput(t *testing.T) { loweredLimit(realSite(t, 2)) }

// A record whose time the output's topic does not take is named, with its time and the settings. Without a time it is taken.
func TestRealTimeThatTheOutputRefuses(t *testing.T) {
	s := realSite(t, 1)
	job := s.run(s.file(passOn))
	s.put(&kgo.Record{Key: []byte("none"), Value: []byte("1"), Timestamp: time.UnixMilli(-1)}, &kgo.Record{Key: []byte("now"), Value: []byte("2")})
	s.caughtUp(job)
	settled(s)
	require.Len(t, s.read(s.out), 2)
	most := "9223372036854775807"
	_, err := s.adm.AlterTopicConfigs(s.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "message.timestamp.after.max.ms", Value: &most}}, s.in)
	require.NoError(t, err)
	time.Sleep(time.Second)
	ahead := time.Now().Add(3 * time.Hour)
	s.put(&kgo.Record{Key: []byte("now"), Value: []byte("3")}, &kgo.Record{Key: []byte("ahead"), Value: []byte("4"), Timestamp: ahead})
	require.Equal(t, 30, job.exit(20*time.Second))
	for _, want := range []string{s.out, "offset 3", fmt.Sprint(ahead.UnixMilli()), "message.timestamp.after.max.ms"} {
		require.Contains(t, job.stderr.tail(1), want)
	}
}

// jumping builds the command with a wall clock that jumps so far 5 s after the start; the monotonic clock does not. The
// standard library's time.Now is replaced by an overlay.
func jumping(t *testing.T, by time.Duration) string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	src := filepath.Join(strings.TrimSpace(string(root)), "src/time/time.go")
	b, err := os.ReadFile(src)
	require.NoError(t, err)
	const at = "\tmono -= startNano\n"
	require.Contains(t, string(b), at)
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("millweir-jumping-%d", int(by.Seconds()))) // the same name: the build cache keeps it
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "time.go"), []byte(strings.Replace(string(b), at, at+fmt.Sprintf("\tif mono > 5e9 {\n\t\tsec += %d\n\t}\n", int(by.Seconds())), 1)), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "o.json"), fmt.Appendf(nil, `{"Replace":{%q:%q}}`, src, filepath.Join(dir, "time.go")), 0o644))
	out := filepath.Join(dir, "processor")
	cmd := exec.Command("go", "build", "-overlay", filepath.Join(dir, "o.json"), "-o", out, "../cmd/processor")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return out
}

// The clock of the instance's machine jumps by two hours. Inputs that are filtered away make checkpoints without output,
// whose markers the broker must take all the same.
func clockJumps(s *site, by time.Duration) {
	p := startProcess(s.t, jumping(s.t, by), []string{"run", s.file(totals), "--log-format", "text"})
	p.await("msg=processing")
	s.orders(0, 100, 50)
	s.caughtUp(p)
	time.Sleep(6 * time.Second)
	s.put(&kgo.Record{Key: []byte("k"), Value: []byte(`{"amount":1,"status":"open"}`)})
	s.caughtUp(p)
	s.orders(100, 100, 50)
	s.caughtUp(p)
	p.stop()
}

func TestRealClockJumpsAhead(t *testing.T) { clockJumps(realSite(t, 2), 2*time.Hour) }
func TestRealClockJumpsBack(t *testing.T)  { clockJumps(realSite(t, 2), -2*time.Hour) }
