//go:build synctests

package synctests

import (
	"context"
	"fmt"
	"io"
	"time"
)

// The bounds of a run after its faults have ended, in the bubble's time.
const (
	healBound = 4 * time.Minute // until all of the input is committed
	settle    = 5 * time.Second // beyond the session timeout, until everything runs again
	stopBound = time.Minute     // until the processes have ended
	windBound = 5 * time.Minute // until those have wound down that were killed before
)

// Result is what became of a run.
type Result struct {
	// Err says what is wrong with the service, or that the run itself could not be done; nil when all is well.
	Err    error
	Counts Counts
	Log    []string // what happened, with the bubble's time
}

// Run plays a schedule. It must be called in a bubble of testing/synctest, and nothing of it is left when it returns.
// dir is for what the service keeps on the real file system, its lock; live, if not nil, gets every line of the log at
// once.
func Run(s Schedule, dir string, live io.Writer) Result {
	w, err := newWorld(s, dir, live)
	if err != nil {
		return Result{Err: err}
	}
	defer w.cluster.Close()
	w.run()
	for _, f := range w.faults {
		w.counts.Answers += int64(f.Hits())
	}
	w.counts.Virtual = time.Since(w.began)
	return Result{w.verdict(), w.counts, w.lines}
}

func (w *World) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	loaded, nudged := make(chan error, 1), make(chan error, 1)
	go func() { loaded <- w.load(ctx) }()
	helped, help := context.WithCancel(ctx)
	go func() { nudged <- w.nudge(helped) }()
	for i := range w.s.Instances {
		w.slots[i].Start(time.Duration(i) * 300 * time.Millisecond)
	}
	w.play()
	w.heal()
	self := func(err error) {
		if err != nil {
			w.fail("the run itself: %v", err)
		}
	}
	self(<-loaded)
	// Those that were killed last are members again by then, and have ended what their predecessors left open.
	time.Sleep(w.s.Session + settle)
	self(w.last(ctx))
	if !await(ctx, healBound, func() bool { return w.consumed() || w.hopeless() }) {
		w.fail("after %v without faults the input is not consumed: %s", healBound, w.lag())
	}
	w.stop()
	help()
	self(<-nudged)
	self(w.check(ctx))
}

// stop ends all processes gracefully and waits for those that were killed.
func (w *World) stop() {
	w.log("STOP")
	for _, s := range w.slots {
		p := s.current()
		done := s.Stop()
		select {
		case <-done:
			if p != nil && p.err != nil {
				w.fail("%s ended with %v instead of gracefully", s.instance, p.err)
			}
		case <-time.After(stopBound):
			w.fail("%s has not ended %v after it was told to", s.instance, stopBound)
			s.Kill(true, -1)
		}
	}
	done := make(chan struct{})
	go func() { w.processes.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(windBound):
		panic(fmt.Sprintf("seed %d: a process that was killed has not wound down after %v", w.s.Seed, windBound))
	}
}
