package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/millweir/millweir/internal/fault"
)

// maxAnswer bounds what a client reads.
const maxAnswer = 16 << 20

// Client commands one instance by its listener.
type Client struct {
	// Address is host:port.
	Address string
	// Token is that of admin.token, "" = none.
	Token string
	// Application and Instance are who is meant, "" = whoever listens there: the address may be another one's by now.
	Application, Instance string
}

// TriggerCheckpoint takes a checkpoint now.
func (c Client) TriggerCheckpoint(ctx context.Context) (Triggered, error) {
	var out Triggered
	return out, c.do(ctx, http.MethodPost, "/api/v1/checkpoints", nil, &out)
}

// TriggerSavepoint takes a savepoint of the instance's tasks into a directory, "" = its state.savepoints.dir.
func (c Client) TriggerSavepoint(ctx context.Context, dir string) (Part, error) {
	var out Part
	return out, c.do(ctx, http.MethodPost, "/api/v1/savepoints", savepointRequest{dir}, &out)
}

// Cancel ends the instance, and returns when it has taken its last checkpoint.
func (c Client) Cancel(ctx context.Context, want Cancel) (Part, error) {
	var out Part
	if err := want.Check(); err != nil {
		return out, err
	}
	return out, c.do(ctx, http.MethodPost, "/api/v1/cancel", cancelRequest{cancelSavepoint(want)}, &out)
}

// Checkpoints gives the statistics of the instance's checkpoints.
func (c Client) Checkpoints(ctx context.Context) (Report, error) {
	var out Report
	return out, c.do(ctx, http.MethodGet, "/api/v1/checkpoints", nil, &out)
}

// Attempts gives the newest attempts of the instance.
func (c Client) Attempts(ctx context.Context) (Attempts, error) {
	var out Attempts
	return out, c.do(ctx, http.MethodGet, "/api/v1/attempts", nil, &out)
}

func (c Client) do(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout+answerTimeout)
	defer cancel()
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.Address+path, &body)
	if err != nil {
		return fault.Stopf(fault.Usage, "admin address %q is not host:port", c.Address)
	}
	req.Header.Set("Content-Type", "application/json")
	for header, value := range map[string]string{applicationHeader: c.Application, instanceHeader: c.Instance} {
		if value != "" {
			req.Header.Set(header, value)
		}
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	began := time.Now()
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		if ctx.Err() != nil {
			late := fmt.Errorf("no answer from %s after %s: %w", c.Address, time.Since(began).Round(time.Second), ctx.Err())
			if errors.Is(late, context.DeadlineExceeded) {
				late = fault.Stopf(fault.NotRunning, "%w", late)
			}
			return late
		}
		return fault.Stopf(fault.NotRunning, "no instance answers at %s: %w", c.Address, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("answer of %s: %w", c.Address, err)
	}
	if resp.StatusCode/100 != 2 {
		var f failure
		if json.Unmarshal(b, &f) != nil || f.Error == "" {
			return fmt.Errorf("%s answers %s: is it the admin listener of an instance?", c.Address, resp.Status)
		}
		return fault.Stopf(fault.Code(f.Code), "%s: %s", c.Address, f.Error)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("answer of %s: %w", c.Address, err)
	}
	return nil
}
