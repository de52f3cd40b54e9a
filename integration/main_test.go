//go:build unix

package integration

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/integration/kafkatest"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
)

// asJob makes the test binary a job of the Go DSL: see jobs_test.go.
const asJob = "TEST_AS_JOB"

func TestMain(m *testing.M) {
	if name := os.Getenv(asJob); name != "" {
		os.Exit(runJob(name))
	}
	testbed.MoreAtOnce(3)
	code := m.Run()
	shared.close()
	os.Exit(code)
}

// shared is what the tests of one run have in common, each made when it is first asked for.
var shared suite

type suite struct {
	binary builder // as it is shipped
	armed  builder // with failpoints
	jobs   builder // the test binary with failpoints
	kafka  starter
	harsh  starter // forgets soon
}

// starter starts a real Kafka once.
type starter struct {
	once   sync.Once
	broker *kafkatest.Broker
	err    error
}

func (s *suite) close() {
	for _, k := range []*starter{&s.kafka, &s.harsh} {
		if k.broker != nil {
			k.broker.Close()
		}
	}
	for _, b := range []*builder{&s.binary, &s.armed, &s.jobs} {
		if b.dir != "" {
			_ = os.RemoveAll(b.dir)
		}
	}
}

// builder builds the command once.
type builder struct {
	once sync.Once
	dir  string
	err  error
}

func (b *builder) build(flags ...string) {
	if b.dir, b.err = os.MkdirTemp("", "processor-"); b.err != nil {
		return
	}
	b.command(append(append([]string{"build"}, flags...), "-o", b.dir, "../cmd/processor")...)
}

// buildJobs builds this test binary.
func (b *builder) buildJobs(flags ...string) {
	if b.dir, b.err = os.MkdirTemp("", "jobs-"); b.err != nil {
		return
	}
	b.command(append(append([]string{"test", "-c"}, flags...), "-o", filepath.Join(b.dir, "jobs"), ".")...)
}

func (b *builder) command(args ...string) {
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.err = fmt.Errorf("go %s: %w\n%s", args[0], err, out)
	}
}

// processorBinary builds the command as it is shipped and gives its path.
func processorBinary(t *testing.T) string {
	t.Helper()
	b := &shared.binary
	b.once.Do(func() { b.build() })
	require.NoError(t, b.err)
	return filepath.Join(b.dir, "processor")
}

// armedBinary builds the command with failpoints and gives its path.
func armedBinary(t *testing.T) string {
	t.Helper()
	b := &shared.armed
	b.once.Do(func() { b.build("-tags", "failpoints") })
	require.NoError(t, b.err)
	return filepath.Join(b.dir, "processor")
}

// armedJobs builds the jobs of the Go DSL with failpoints and gives the program's path.
func armedJobs(t *testing.T) string {
	t.Helper()
	b := &shared.jobs
	b.once.Do(func() { b.buildJobs("-tags", "failpoints") })
	require.NoError(t, b.err)
	return filepath.Join(b.dir, "jobs")
}

// run gives the brokers, started with properties unless they run. Where a real Kafka is wanted and does not come up the
// test fails.
func (k *starter) run(t *testing.T, properties map[string]string) []string {
	t.Helper()
	k.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		k.broker, k.err = kafkatest.Run(ctx, kafkatest.Options{Log: t.Logf, Properties: properties})
		if k.err == nil { // a named cluster may not be there at all
			_, k.err = kafka.Probe(ctx, kafka.Config{Brokers: strings.Split(k.broker.Addr, ","), Logger: slog.New(slog.DiscardHandler)}, kafka.Need{})
		}
	})
	require.NoError(t, k.err, "a real Kafka was asked for")
	return strings.Split(k.broker.Addr, ",")
}

// realBrokers gives the real Kafka of this run, and skips where none is wanted.
func realBrokers(t *testing.T) []string {
	t.Helper()
	needReal(t)
	return shared.kafka.run(t, map[string]string{
		"group.min.session.timeout.ms": "1000", "log.cleaner.backoff.ms": "200",
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
		"quota.window.num": "3", // seconds over which quotas are held
	})
}

// harshBrokers gives a real Kafka that bears nothing for long: transactions of at most ten seconds, and ids that are
// forgotten after five.
func harshBrokers(t *testing.T) []string {
	t.Helper()
	needReal(t)
	if os.Getenv("KAFKA_BROKERS") != "" {
		t.Skip("the settings of a foreign cluster are its own")
	}
	return shared.harsh.run(t, map[string]string{
		"group.min.session.timeout.ms":                               "1000",
		"transaction.max.timeout.ms":                                 "10000",
		"transactional.id.expiration.ms":                             "5000",
		"transaction.remove.expired.transaction.cleanup.interval.ms": "500",
		"producer.id.expiration.ms":                                  "5000",
		"producer.id.expiration.check.interval.ms":                   "500",
	})
}
