package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/internal/fault"
)

// fake is an instance.
type fake struct {
	live   error
	what   string
	ready  bool
	err    error
	dir    string
	cancel Cancel
	calls  atomic.Int64
	hold   chan struct{} // commands wait for it
}

func (f *fake) Who() (application, instance string)  { return "orders", "i-1" }
func (f *fake) Live() error                          { return f.live }
func (f *fake) Ready(context.Context) (string, bool) { return f.what, f.ready }
func (f *fake) Metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "some_metric 1\n") })
}
func (f *fake) Checkpoints(context.Context) (Report, error) { return Report{State: "running"}, f.err }
func (f *fake) Attempts(context.Context) (Attempts, error) {
	return Attempts{Restarts: 2, Attempts: []Attempt{{Number: 3, Status: AttemptFailed, Class: "restart", DelayMs: 1500}}}, f.err
}
func (f *fake) TriggerCheckpoint(ctx context.Context) (Triggered, error) {
	f.calls.Add(1)
	if f.hold != nil {
		select {
		case <-f.hold:
		case <-ctx.Done():
			return Triggered{}, ctx.Err()
		}
	}
	return Triggered{Part: Part{Instance: "i-1", Checkpoint: "7-1"}, Needed: true}, f.err
}
func (f *fake) Savepoints(context.Context) ([]SavepointInfo, error) {
	return []SavepointInfo{{Path: "/s"}}, f.err
}
func (f *fake) TriggerSavepoint(_ context.Context, dir string) (Part, error) {
	f.calls.Add(1)
	f.dir = dir
	return Part{Instance: "i-1", Path: dir + "/savepoint-a-7-1"}, f.err
}
func (f *fake) Cancel(_ context.Context, c Cancel) (Part, error) {
	f.calls.Add(1)
	f.cancel = c
	return Part{Instance: "i-1"}, f.err
}

func start(t *testing.T, cfg Config, svc Service) *Server {
	t.Helper()
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	cfg.Logger = slog.New(slog.DiscardHandler)
	s, err := Start(cfg, svc)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// ask makes a request; headers are name and value in turn.
func ask(t *testing.T, s *Server, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addr()+path, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		} else {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

func TestProbesSayWhy(t *testing.T) {
	f := &fake{what: "restoring the state\nof 3 tasks"}
	s := start(t, Config{}, f)
	code, body := ask(t, s, "GET", "/readyz", "")
	require.Equal(t, 503, code)
	require.Equal(t, "restoring the state; of 3 tasks\n", body)
	f.what, f.ready = "processing", true
	code, body = ask(t, s, "GET", "/readyz", "")
	require.Equal(t, 200, code)
	require.Equal(t, "processing\n", body)
	code, body = ask(t, s, "GET", "/livez", "")
	require.Equal(t, 200, code)
	require.Equal(t, "ok\n", body)
	f.live = errors.New("the disk is full")
	code, body = ask(t, s, "GET", "/livez", "")
	require.Equal(t, 503, code)
	require.Equal(t, "ended: the disk is full\n", body)
}

func TestCommands(t *testing.T) {
	f := &fake{}
	s := start(t, Config{}, f)
	for _, c := range []struct {
		method, path, body string
		code               int
		says               string
	}{
		{"GET", "/api/v1/checkpoints", "", 200, `"state": "running"`},
		{"GET", "/api/v1/attempts", "", 200, `"delay_ms": 1500`},
		{"POST", "/api/v1/attempts", "", 405, `/api/v1/attempts takes GET`},
		{"POST", "/api/v1/checkpoints", "", 200, `"checkpoint": "7-1"`},
		{"GET", "/api/v1/savepoints", "", 200, `"path": "/s"`},
		{"POST", "/api/v1/savepoints", `{"dir": "/x"}`, 201, `"path": "/x/savepoint-a-7-1"`},
		{"POST", "/api/v1/savepoints", `{"dri": "/x"}`, 400, `unknown field`},
		{"POST", "/api/v1/savepoints", `{"dir": "/x"} {}`, 400, `one JSON object`},
		{"POST", "/api/v1/savepoints", `[`, 400, `body: `},
		{"POST", "/api/v1/savepoints", `{"dir": "` + strings.Repeat("x", maxBody) + `"}`, 400, `too large`},
		{"POST", "/api/v1/cancel", `{"savepoint": 7}`, 400, `true, false or a directory`},
		{"POST", "/api/v1/cancel", `{"savepoint": null}`, 400, `true, false or a directory`},
		{"POST", "/api/v1/cancel", `null`, 400, `one JSON object is wanted`},
		{"POST", "/api/v1/cancel?savepoint=true", ``, 400, `what a command is to do is said in its body, not in \"?savepoint=true\"`},
		{"GET", "/api/v1/cancel", "", 405, `/api/v1/cancel takes POST`},
		{"POST", "/metrics", "", 405, `/metrics takes GET`},
		{"GET", "/api/v1/nothing", "", 404, `there is nothing here`},
		{"GET", "/metrics", "", 200, `some_metric 1`},
	} {
		code, body := ask(t, s, c.method, c.path, c.body)
		require.Equal(t, c.code, code, "%s %s: %s", c.method, c.path, body)
		require.Contains(t, body, c.says)
		if code >= 400 {
			var e failure
			require.NoError(t, json.Unmarshal([]byte(body), &e))
			require.NotEmpty(t, e.Error)
			require.NotZero(t, e.Code)
			require.NotContains(t, e.Error, "\n")
		}
	}
	for body, want := range map[string]Cancel{"": {}, `{}`: {}, `{"savepoint": false}`: {}, `{"savepoint": true}`: {Savepoint: true}, `{"savepoint": "/d"}`: {true, "/d"}} {
		code, _ := ask(t, s, "POST", "/api/v1/cancel", body)
		require.Equal(t, 200, code)
		require.Equal(t, want, f.cancel)
	}
}

func TestErrorsKeepTheirExitCodeOverTheWire(t *testing.T) {
	f := &fake{}
	s := start(t, Config{}, f)
	c := Client{Address: s.Addr()}
	for _, e := range []struct {
		err    error
		status int
	}{
		{fault.Stopf(fault.BadFile, "no directory"), 400}, {fault.Stopf(fault.NotRunning, "standing\nby"), 409},
		{fault.Stopf(fault.CheckpointDir, "disk"), 500}, {errors.New("x"), 500}, {context.DeadlineExceeded, 504},
	} {
		f.err = e.err
		code, _ := ask(t, s, "POST", "/api/v1/savepoints", "")
		require.Equal(t, e.status, code, e.err)
		_, err := c.TriggerSavepoint(t.Context(), "")
		require.Equal(t, fault.CodeOf(e.err), fault.CodeOf(err))
		require.ErrorContains(t, err, oneLine(e.err.Error()))
	}
	f.err = nil
	part, err := c.TriggerSavepoint(t.Context(), "/d")
	require.NoError(t, err)
	require.Equal(t, "/d/savepoint-a-7-1", part.Path)
	_, err = c.Cancel(t.Context(), Cancel{Savepoint: true, Dir: "/e"})
	require.NoError(t, err)
	require.Equal(t, Cancel{true, "/e"}, f.cancel)
	_, err = c.Cancel(t.Context(), Cancel{Savepoint: true})
	require.NoError(t, err)
	require.Equal(t, Cancel{Savepoint: true}, f.cancel)
	got, err := c.TriggerCheckpoint(t.Context())
	require.NoError(t, err)
	require.True(t, got.Needed)
	rep, err := c.Checkpoints(t.Context())
	require.NoError(t, err)
	require.Equal(t, "running", rep.State)
}

func TestTheTokenIsWantedForAllButTheProbes(t *testing.T) {
	const token = "0123456789abcdef"
	f := &fake{ready: true}
	s := start(t, Config{Token: token}, f)
	for _, path := range []string{"/metrics", "/api/v1/checkpoints", "/nothing"} {
		for _, auth := range []string{"", "Bearer ", "Bearer 0123456789abcdeX", "Basic " + token, token} {
			code, body := ask(t, s, "GET", path, "", "Authorization", auth)
			require.Equal(t, 401, code, body)
			require.NotContains(t, body, token)
		}
	}
	code, _ := ask(t, s, "GET", "/metrics", "", "Authorization", "Bearer "+token)
	require.Equal(t, 200, code)
	for _, path := range []string{"/livez", "/readyz"} {
		code, _ := ask(t, s, "GET", path, "")
		require.Equal(t, 200, code)
	}
	_, err := Client{Address: s.Addr()}.Cancel(t.Context(), Cancel{})
	require.Equal(t, fault.Denied, fault.CodeOf(err))
	require.Zero(t, f.calls.Load())
	_, err = Client{Address: s.Addr(), Token: token}.Cancel(t.Context(), Cancel{})
	require.NoError(t, err)
}

// A page that a browser shows must not command the instance, nor read it under a name that leads to this machine.
func TestPagesOfOtherOriginsAreRefused(t *testing.T) {
	f := &fake{}
	s := start(t, Config{}, f)
	for _, headers := range [][]string{
		{"Origin", "http://evil.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Host", "evil.example"}, {"Host", "evil.example:8080", "Origin", "http://evil.example:8080"},
	} {
		code, body := ask(t, s, "POST", "/api/v1/cancel", "", headers...)
		require.Equal(t, 403, code, body)
	}
	code, _ := ask(t, s, "GET", "/api/v1/checkpoints", "", "Host", "evil.example")
	require.Equal(t, 403, code)
	require.Zero(t, f.calls.Load())
	for _, host := range []string{"localhost:1", "127.0.0.1", "[::1]:80", "127.1.2.3:4"} {
		code, _ := ask(t, s, "POST", "/api/v1/cancel", "", "Host", host)
		require.Equal(t, 200, code, host)
	}
}

func TestAnAddressThatOthersReachNeedsAToken(t *testing.T) {
	for addr, loopback := range map[string]bool{"127.0.0.1:0": true, "localhost:1": true, "[::1]:0": true, "127.9.9.9:1": true, ":0": false, "0.0.0.0:0": false, "[::]:0": false, "10.0.0.1:0": false, "example:1": false, "x": false} {
		require.Equal(t, loopback, Loopback(addr), addr)
	}
	_, err := Start(Config{Listen: "0.0.0.0:0"}, &fake{})
	require.Equal(t, fault.BadFile, fault.CodeOf(err))
	require.ErrorContains(t, err, "set admin.token")
	s := start(t, Config{Listen: "0.0.0.0:0", Token: "0123456789abcdef"}, &fake{})
	require.NotEmpty(t, s.Addr())
}

func TestAnExplicitAddressThatIsTakenIsAnErrorAndTheDefaultIsNot(t *testing.T) {
	taken, err := net.Listen("tcp", DefaultListen)
	if err == nil {
		defer taken.Close()
	} // else somebody has it already
	_, err = Start(Config{Listen: DefaultListen}, &fake{})
	require.Equal(t, fault.AdminListen, fault.CodeOf(err))
	require.ErrorContains(t, err, "admin.listen: "+DefaultListen+" is used by another process")
	var log bytes.Buffer
	s, err := Start(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, &fake{})
	require.NoError(t, err)
	defer s.Close()
	require.NotEqual(t, DefaultListen, s.Addr())
	require.True(t, Loopback(s.Addr()))
	require.Contains(t, log.String(), "taken="+DefaultListen)
	require.Contains(t, log.String(), "address="+s.Addr())
}

func TestTheAddressIsKeptWhileItCounts(t *testing.T) {
	dir := t.TempDir()
	_, _, err := ReadAddress(dir)
	require.Equal(t, fault.NotRunning, fault.CodeOf(err))
	file := filepath.Join(dir, AddressFile)
	a := start(t, Config{AddressFile: file}, &fake{})
	got, _, err := ReadAddress(dir)
	require.NoError(t, err)
	require.Equal(t, a.Addr(), got)
	b, err := Start(Config{Listen: "127.0.0.1:0", AddressFile: file, Logger: slog.New(slog.DiscardHandler)}, &fake{})
	require.NoError(t, err)
	require.NoError(t, a.Close())
	a.file = ""
	got, _, err = ReadAddress(dir)
	require.NoError(t, err)
	require.Equal(t, b.Addr(), got, "that of another process stays")
	require.NoError(t, b.Close())
	require.NoFileExists(t, file)
	require.NoError(t, os.WriteFile(file, []byte("nonsense\n"), 0o600))
	_, _, err = ReadAddress(dir)
	require.ErrorContains(t, err, "does not hold an address")
}

// The file is a convenience: where it cannot be written, for lack of room say, the listener says so and listens. What a killed
// process has left there goes, for its address may be somebody else's by now.
func TestAnAddressThatCannotBeKeptIsAWarning(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, AddressFile)
	require.NoError(t, os.WriteFile(file, []byte("127.0.0.1:1\n"), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(file+".tmp", "in the way"), 0o700))
	var log bytes.Buffer
	s, err := Start(Config{Listen: "127.0.0.1:0", AddressFile: file, Logger: slog.New(slog.NewTextHandler(&log, nil))}, &fake{})
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
	require.Contains(t, log.String(), "--admin "+s.Addr())
	_, err = Client{Address: s.Addr()}.TriggerCheckpoint(t.Context())
	require.NoError(t, err)
	require.NoFileExists(t, file)
	_, _, err = ReadAddress(dir)
	require.Equal(t, fault.NotRunning, fault.CodeOf(err))
	require.ErrorContains(t, err, "--admin HOST:PORT")
	require.NoError(t, os.RemoveAll(file+".tmp"))
	require.NoError(t, s.Close())
}

func TestCloseWaitsForAnswersButNotForEver(t *testing.T) {
	f := &fake{hold: make(chan struct{})}
	s, err := Start(Config{Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)}, f)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { _, err := Client{Address: s.Addr()}.TriggerCheckpoint(context.Background()); done <- err }()
	require.Eventually(t, func() bool { return f.calls.Load() == 1 }, 5*time.Second, time.Millisecond)
	time.AfterFunc(100*time.Millisecond, func() { close(f.hold) })
	require.NoError(t, s.Close())
	require.NoError(t, <-done, "it was waited for")

	g := &fake{hold: make(chan struct{})}
	s, err = Start(Config{Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)}, g)
	require.NoError(t, err)
	go func() { _, err := Client{Address: s.Addr()}.TriggerCheckpoint(context.Background()); done <- err }()
	require.Eventually(t, func() bool { return g.calls.Load() == 1 }, 5*time.Second, time.Millisecond)
	began := time.Now()
	require.NoError(t, s.Close())
	require.Less(t, time.Since(began), closeTimeout+2*time.Second)
	require.Error(t, <-done)
}

func TestTooManyRequestsAreTurnedAway(t *testing.T) {
	f := &fake{hold: make(chan struct{})}
	s := start(t, Config{}, f)
	done := make(chan error, maxRequests)
	for range maxRequests {
		go func() { _, err := Client{Address: s.Addr()}.TriggerCheckpoint(context.Background()); done <- err }()
	}
	require.Eventually(t, func() bool { return f.calls.Load() == maxRequests }, 10*time.Second, time.Millisecond)
	code, body := ask(t, s, "GET", "/api/v1/attempts", "")
	require.Equal(t, 503, code)
	require.Contains(t, body, "too many requests")
	for _, probe := range []string{"/livez", "/readyz"} {
		_, body = ask(t, s, "GET", probe, "")
		require.NotContains(t, body, "too many requests", "who probes the instance would end it for the commands that wait")
	}
	close(f.hold)
	for range maxRequests {
		require.NoError(t, <-done)
	}
	code, _ = ask(t, s, "GET", "/api/v1/attempts", "")
	require.Equal(t, 200, code)
}

func TestConnectionsAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	lim := limited(l, 1)
	accepted := make(chan net.Conn, 4)
	go func() {
		for {
			c, err := lim.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	for range 2 {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer c.Close()
	}
	first := <-accepted
	select {
	case <-accepted:
		t.Fatal("two at once")
	case <-time.After(50 * time.Millisecond):
	}
	require.NoError(t, first.Close())
	_ = first.Close() // only the first one frees the slot
	second := <-accepted
	require.NoError(t, lim.Close())
	require.NoError(t, second.Close())
	_, open := <-accepted
	require.False(t, open)
}

// A probe that gets no answer for a few seconds costs the process.
func TestWhoOnlyConnectsKeepsNobodyOut(t *testing.T) {
	s := start(t, Config{}, &fake{})
	began := time.Now()
	for i := range maxConns + 8 { // some have asked something before, as a pool of connections has
		c, err := net.Dial("tcp", s.Addr())
		require.NoError(t, err)
		defer c.Close()
		if i%2 == 0 {
			continue
		}
		_, err = io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
		require.NoError(t, err)
		_, err = http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
	}
	code, _ := ask(t, s, "GET", "/livez", "")
	require.Equal(t, 200, code)
	require.Less(t, time.Since(began), headerTimeout/2)
}

func TestAnAnswerOfSomethingElseIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	other := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(418) }), ReadHeaderTimeout: time.Second}
	go func() { _ = other.Serve(l) }()
	_, err = Client{Address: l.Addr().String()}.Checkpoints(t.Context())
	require.ErrorContains(t, err, "418")
	require.NoError(t, other.Close())
	_, err = Client{Address: l.Addr().String()}.Checkpoints(t.Context())
	require.Equal(t, fault.NotRunning, fault.CodeOf(err))
}

func TestStatisticsHaveEveryPhaseAndSizeWithItsLabel(t *testing.T) {
	s := checkpoint.CheckpointStats{ID: 3, Reason: checkpoint.Manual, Sync: 1500 * time.Microsecond, DeltaBytes: 10, FullBytes: 1000, BufferedBytes: 5, StartDelay: 1, Failure: checkpoint.FailureTimeout}
	c := CheckpointOf(s, false)
	require.Len(t, c.Phases, len(s.Phases()))
	require.Equal(t, 1.5, c.Phases["sync"])
	require.Equal(t, map[string]int64{"delta": 10, "full": 1000, "buffered": 5}, c.Sizes)
	require.Equal(t, "failed", c.Status)
	require.Equal(t, "timeout", c.Failure)
	require.Equal(t, "in-progress", CheckpointOf(checkpoint.CheckpointStats{}, true).Status)
	require.Equal(t, "completed", CheckpointOf(checkpoint.CheckpointStats{}, false).Status)
}

// Who was killed leaves its address, and another one may have it since: a command is only for who is meant.
func TestOnlyWhoIsMeantAnswers(t *testing.T) {
	f := &fake{}
	s := start(t, Config{}, f)
	for _, meant := range []Client{{Application: "payments"}, {Application: "orders", Instance: "i-2"}, {Instance: "i-2"}} {
		meant.Address = s.Addr()
		_, err := meant.TriggerCheckpoint(t.Context())
		require.Equal(t, fault.NotRunning, fault.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "here listens instance i-1 of application orders, not ")
		_, err = meant.Attempts(t.Context())
		require.Equal(t, fault.NotRunning, fault.CodeOf(err), "%v", err)
	}
	require.Zero(t, f.calls.Load())
	for _, meant := range []Client{{}, {Application: "orders"}, {Application: "orders", Instance: "i-1"}} {
		meant.Address = s.Addr()
		_, err := meant.TriggerCheckpoint(t.Context())
		require.NoError(t, err)
	}
	require.EqualValues(t, 3, f.calls.Load())
}
