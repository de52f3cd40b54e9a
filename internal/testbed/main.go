package testbed

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// startBound is what a real broker may take to come up, the download of its jars included.
const startBound = 5 * time.Minute

// run is what the tests of one binary share.
var run struct {
	once    sync.Once
	brokers []string
	stop    func()
	err     error

	mu      sync.Mutex
	onReal  map[string]bool
	skipped map[string]string
}

// Real says that the tests were asked to run on a real Kafka.
func Real() bool {
	v := os.Getenv("REAL_KAFKA")
	return (v != "" && v != "0") || os.Getenv("KAFKA_BROKERS") != ""
}

// Main is the TestMain of a package whose tests use a Bed. It lets more of them run at once than there are processors, ends the real broker after the tests and prints which of
// them ran on it.
func Main(m *testing.M) {
	MoreAtOnce(2)
	code := m.Run()
	if run.stop != nil {
		run.stop()
	}
	if Real() {
		fmt.Fprint(os.Stderr, summary())
	}
	os.Exit(code)
}

// MoreAtOnce lets n times as many tests run side by side as there are processors, unless -parallel says how many: those
// that may, wait most of the time.
func MoreAtOnce(n int) {
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if !asked {
		_ = flag.Set("test.parallel", strconv.Itoa(n*runtime.GOMAXPROCS(0))) // it is a number
	}
}

// Alongside lets a test run beside others where it has a broker of its own; a real one is shared, and busy enough.
func Alongside(t *testing.T) {
	t.Helper()
	if !Real() {
		t.Parallel()
	}
}

// summary has one line, and one more for each test that stayed on kfake.
func summary() string {
	run.mu.Lock()
	defer run.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "testbed: %d tests on Kafka at %s, %d need kfake\n", len(run.onReal), strings.Join(run.brokers, ","), len(run.skipped))
	var names []string
	for n := range run.skipped {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		fmt.Fprintf(&b, "testbed: needs kfake: %s: %s\n", n, run.skipped[n])
	}
	return b.String()
}

// realBrokers starts the real broker, or gives the one that runs.
func realBrokers(t testing.TB) []string {
	t.Helper()
	run.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startBound)
		defer cancel()
		run.brokers, run.stop, run.err = startReal(ctx, func(format string, args ...any) {
			fmt.Fprintf(os.Stderr, "testbed: "+format+"\n", args...)
		})
	})
	if run.err != nil {
		t.Fatalf("a real Kafka was asked for and is not there: %v", run.err)
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	if run.onReal == nil {
		run.onReal = map[string]bool{}
	}
	run.onReal[t.Name()] = true
	return run.brokers
}

// needsFake skips the test on a real broker and notes why.
func needsFake(t testing.TB, reason string) {
	t.Helper()
	if !Real() {
		return
	}
	run.mu.Lock()
	if run.skipped == nil {
		run.skipped = map[string]string{}
	}
	run.skipped[t.Name()] = reason
	delete(run.onReal, t.Name())
	run.mu.Unlock()
	t.Skip("not on a real Kafka: " + reason)
}
