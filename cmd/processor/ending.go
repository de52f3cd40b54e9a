package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
)

// hangs is how much longer than the shutdown timeout a graceful stop may take, to end what it has begun.
const hangs = 700 * time.Millisecond

// ending watches how a service ends that was told to stop: whether its last checkpoint was possible, and in time.
type ending struct {
	stop context.Context    // its end is the wish to stop
	more chan time.Duration // what may be done behind the last checkpoint, once

	mu         sync.Mutex
	processing bool  // the attempt has come so far
	cause      error // why the last checkpoint is missing
}

// watch puts it into a service's listener.
func (e *ending) watch(l *engine.Listener) {
	l.AttemptStarted = func(engine.AttemptInfo) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.processing = true
	}
	l.AttemptEnded = func(_ int, err error, rec fault.Recovery, _ time.Duration) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if err == nil && rec == fault.Stop && !e.processing {
			err = errors.New("it was still restoring its state")
		}
		if err != nil && e.stop.Err() != nil {
			e.cause = err
		}
		e.processing = false
	}
	l.StoppedWaiting = func(cause error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.cause = cause
	}
}

// pardon says that no last checkpoint is missing, whatever the attempts say.
func (e *ending) pardon() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cause = nil
}

// after gives the error of a service that has ended with err. The service itself is content when it has gone back to the
// last commit; who runs it wants to know.
func (e *ending) after(err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil || e.cause == nil {
		return err
	}
	return fault.Stopf(fault.Unfinished, "stopped without a last checkpoint, the next start does again what was not committed: %w", e.cause)
}

// settling says that the last checkpoint is there, and how long it may take to delete the state.
func (e *ending) settling(within time.Duration) { e.more <- within }

// insist ends the process when a graceful stop does not come to its end in time, because a disk, say, does not answer. It
// gives the function that calls it off.
func (e *ending) insist(timeout time.Duration, stderr io.Writer) (enough func()) {
	over := make(chan struct{})
	go func() {
		select {
		case <-e.stop.Done():
		case <-over:
			return
		}
		late := time.NewTimer(timeout + hangs)
		defer late.Stop()
		code, text := fault.Unfinished, fmt.Sprintf("the graceful stop hangs, and the shutdown timeout of %s is over: ended without a last checkpoint, the next start does again what was not committed", timeout)
		for {
			select {
			case within := <-e.more:
				late.Reset(within + hangs)
				code, text = fault.NotRunning, fmt.Sprintf("the deletion of the checkpoints hangs for more than %s behind the last one: another cancel does the rest", within)
			case <-late.C:
				fmt.Fprintf(stderr, "processor: %s\n", text)
				os.Exit(int(code))
			case <-over:
				return
			}
		}
	}()
	return func() { close(over) }
}
