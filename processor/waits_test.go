package processor

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/testbed"
)

// logText is a log that is read while it is written.
type logText struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// The brokers do not answer a request of the start: the instance says what it waits for, once, and goes on when the answer
// comes.
func TestAnInstanceSaysWhatItWaitsFor(t *testing.T) {
	for name, c := range map[string]struct {
		request kmsg.Key
		says    string
	}{
		"the control topic":     {kmsg.ListOffsets, "reading the control topic"},
		"the group's round":     {kmsg.JoinGroup, "the group waiting-member"},
		"the transactional ids": {kmsg.InitProducerID, "attempt 1: the end of transactions"},
		"the committed offsets": {kmsg.OffsetFetch, "reading the committed offsets of the group waiting-member"},
	} {
		t.Run(name, func(t *testing.T) {
			tb, fake := testbed.NewFake(t, "one request is kept waiting, whoever sends it")
			b := bedOn(t, tb)
			answer := make(chan struct{})
			goOn := sync.OnceFunc(func() { close(answer) })
			t.Cleanup(goOn)
			fake.ControlKey(c.request.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's signature
				fake.SleepControl(func() { <-answer })
				return nil, nil, false
			})
			var log logText
			cfg := b.config()
			cfg.waitTold = 200 * time.Millisecond
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			stop := b.start(countPlan(t, "waiting-member"), cfg)
			told := func() int {
				n := 0
				for line := range strings.Lines(log.String()) {
					if strings.Contains(line, "level=WARN") && strings.Contains(line, "still waits") && strings.Contains(line, c.says) {
						n++
					}
				}
				return n
			}
			require.Eventually(t, func() bool { return told() > 0 }, 10*time.Second, 10*time.Millisecond, "the log: %s", &log)
			time.Sleep(2 * cfg.waitTold)
			goOn()
			require.Eventually(t, func() bool { return strings.Contains(log.String(), "msg=processing") }, 10*time.Second, 10*time.Millisecond, "the log: %s", &log)
			require.NoError(t, stop())
			require.Equal(t, 1, told(), "the log: %s", &log)
		})
	}
}

func TestAWaitIsToldOnceAndAnewWhenItIsForSomethingElse(t *testing.T) {
	at := time.Now()
	w := waits{patience: 10 * time.Second}
	for _, c := range []struct {
		what  string
		after int
		tells bool
	}{
		{"the brokers", 0, false}, {"the brokers", 9, false}, {"the brokers", 10, true}, {"the brokers", 60, false},
		{"the group", 61, false}, {"the group", 70, false}, {"the group", 71, true},
		{"", 72, false}, {"", 100, false}, {"the group", 101, false}, {"the group", 111, true},
	} {
		require.Equal(t, c.tells, w.see(c.what, at.Add(time.Duration(c.after)*time.Second)), "%q after %d s", c.what, c.after)
	}
}
