package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/millweir/millweir/internal/fault"
)

func routes(svc Service) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		if err := svc.Live(); err != nil {
			line(w, http.StatusServiceUnavailable, "ended: "+err.Error())
			return
		}
		line(w, http.StatusOK, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		what, ready := svc.Ready(r.Context())
		code := http.StatusOK
		if !ready {
			code = http.StatusServiceUnavailable
		}
		line(w, code, what)
	})
	mux.Handle("GET /metrics", svc.Metrics())
	mux.HandleFunc("GET /api/v1/attempts", look(svc.Attempts))
	mux.HandleFunc("GET /api/v1/checkpoints", look(svc.Checkpoints))
	mux.HandleFunc("POST /api/v1/checkpoints", command(http.StatusOK, func(ctx context.Context, _ *struct{}) (Triggered, error) {
		return svc.TriggerCheckpoint(ctx)
	}))
	mux.HandleFunc("GET /api/v1/savepoints", look(func(ctx context.Context) (savepoints, error) {
		list, err := svc.Savepoints(ctx)
		return savepoints{list}, err
	}))
	mux.HandleFunc("POST /api/v1/savepoints", command(http.StatusCreated, func(ctx context.Context, in *savepointRequest) (Part, error) {
		return svc.TriggerSavepoint(ctx, in.Dir)
	}))
	mux.HandleFunc("POST /api/v1/cancel", command(http.StatusOK, func(ctx context.Context, in *cancelRequest) (Part, error) {
		return svc.Cancel(ctx, Cancel(in.Savepoint))
	}))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			other := r.Clone(r.Context())
			other.Method = method
			if _, pattern := mux.Handler(other); pattern != "/" {
				w.Header().Set("Allow", method)
				fail(w, http.StatusMethodNotAllowed, r.URL.Path+" takes "+method)
				return
			}
		}
		fail(w, http.StatusNotFound, "there is nothing here: /livez, /readyz, /metrics, /api/v1/attempts, /api/v1/checkpoints, /api/v1/savepoints, /api/v1/cancel")
	})
	return mux
}

type savepoints struct {
	Savepoints []SavepointInfo `json:"savepoints"`
}

type savepointRequest struct {
	Dir string `json:"dir"`
}

type cancelRequest struct {
	Savepoint cancelSavepoint `json:"savepoint"`
}

// cancelSavepoint is true, false, or a directory.
type cancelSavepoint Cancel

// UnmarshalJSON reads either form. Null, which a script may write for what it does not know, is neither.
func (c *cancelSavepoint) UnmarshalJSON(b []byte) error {
	var yes *bool
	if json.Unmarshal(b, &yes) == nil && yes != nil {
		*c = cancelSavepoint{Savepoint: *yes}
		return nil
	}
	var dir string
	if json.Unmarshal(b, &dir) != nil || dir == "" {
		return errors.New("savepoint is true, false or a directory")
	}
	*c = cancelSavepoint{Savepoint: true, Dir: dir}
	return nil
}

// MarshalJSON writes the form that says enough.
func (c cancelSavepoint) MarshalJSON() ([]byte, error) {
	if c.Dir != "" {
		return json.Marshal(c.Dir)
	}
	return json.Marshal(c.Savepoint)
}

// look answers with what f gives.
func look[T any](f func(context.Context) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), lookTimeout)
		defer cancel()
		v, err := f(ctx)
		respond(w, http.StatusOK, v, err)
	}
}

// command reads an optional JSON object and answers with what f gives.
func command[In, Out any](code int, f func(context.Context, *In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		in := new(In)
		if err := read(w, r, in); err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return
		}
		// A command takes longer than a look; the read deadline would end the request's context.
		rc := http.NewResponseController(w)
		until := time.Now().Add(commandTimeout)
		_ = rc.SetReadDeadline(until.Add(answerTimeout))
		_ = rc.SetWriteDeadline(until.Add(answerTimeout))
		ctx, cancel := context.WithDeadline(r.Context(), until)
		defer cancel()
		v, err := f(ctx, in)
		respond(w, code, v, err)
	}
}

// read decodes a body, strictly. None is an empty object.
func read(w http.ResponseWriter, r *http.Request, into any) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return fmt.Errorf("body: %w", err)
	}
	if r.URL.RawQuery != "" { // to pass over it would do something else than what was asked for
		return fmt.Errorf("what a command is to do is said in its body, not in %q", "?"+r.URL.RawQuery)
	}
	switch text := string(bytes.TrimSpace(b)); text {
	case "":
		return nil
	case "null":
		return errors.New("body: one JSON object is wanted")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("body: one JSON object is wanted")
	}
	return nil
}

func respond(w http.ResponseWriter, code int, v any, err error) {
	if err != nil {
		answer(w, statusOf(err), failure{oneLine(err.Error()), int(fault.CodeOf(err))})
		return
	}
	answer(w, code, v)
}

// statusOf gives the HTTP status of an error: what the request has wrong, what does not go at the moment, and the rest.
func statusOf(err error) int {
	if errors.Is(err, context.DeadlineExceeded) {
		return http.StatusGatewayTimeout
	}
	switch fault.CodeOf(err) {
	case fault.Usage, fault.BadFile:
		return http.StatusBadRequest
	case fault.NotRunning:
		return http.StatusConflict
	}
	return http.StatusInternalServerError
}

// failure is the body of every error.
type failure struct {
	Error string `json:"error"`
	Code  int    `json:"code"` // exit code, as docs/exit-codes.md has it
}

func fail(w http.ResponseWriter, status int, message string) {
	code := fault.Failed
	switch status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed:
		code = fault.Usage
	case http.StatusForbidden, http.StatusUnauthorized:
		code = fault.Denied
	}
	answer(w, status, failure{oneLine(message), int(code)})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // who asked may be gone
}

func line(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, oneLine(text)+"\n")
}

func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }
