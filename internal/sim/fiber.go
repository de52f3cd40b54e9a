package sim

import (
	"context"
	"errors"
	"iter"
	"time"
)

// fiber is a call of the repository that is cut into steps: each access to the directory is one, so that other processes
// write and delete between any two. It is a coroutine, not a goroutine: either it runs or the scheduler does.
type fiber struct {
	p    *process
	next func() (kind, bool)
	end  func()
	stop func() bool // the end of its context, asked at every access
	// yield gives the word to the scheduler; false = the run is over.
	yield   func(kind) bool
	done    func()
	cleaner string // "Clean" and so on, if it is one
	lists   int    // readings of directories that it has begun
}

// kWait says that a fiber goes on when somebody resumes it.
const kWait = numKinds

var errRunOver = errors.New("the run is over")

// fiber runs call in steps, and then done.
func (p *process) fiber(stop func() bool, call func(*fiber), done func()) *fiber {
	f := &fiber{p: p, stop: stop, done: done}
	f.next, f.end = iter.Pull(func(yield func(kind) bool) {
		f.yield = yield
		call(f)
	})
	p.w.fibers = append(p.w.fibers, f)
	p.w.do(p, p.w.lag(300*time.Microsecond), kRead, f.step)
	return f
}

// fiber is one that counts as a worker of the attempt.
func (a *attempt) fiber(stop func() bool, call func(*fiber), done func()) *fiber {
	a.running++
	return a.p.fiber(stop, call, func() {
		a.running--
		done()
		a.finish()
	})
}

// step lets it run up to its next access.
func (f *fiber) step() {
	v, w := f.p.view, f.p.w
	v.fiber = f
	k, more := f.next()
	v.fiber = nil
	switch {
	case !more:
		f.done()
	case w.stall.due(f, k):
		w.stall.begin(f, k)
	case k == kDelete:
		w.do(f.p, w.disk.lag(), kDelete, f.step)
	case k != kWait:
		w.do(f.p, w.lag(100*time.Microsecond), k, f.step)
	}
}

// access is called by the view before every access. What has a deadline of its own goes on behind the end of the fiber's context.
func (f *fiber) access(ctx context.Context, k kind) error {
	if _, own := ctx.Deadline(); !own && f.stop() {
		return context.Canceled
	}
	if !f.yield(k) {
		return errRunOver
	}
	f.p.view.fiber = f
	if k == kList {
		f.lists++
	}
	return nil
}

// ask sends a request and waits for its answer.
func (f *fiber) ask(k kind, apply func() reply) (reply, error) {
	var r reply
	got := false
	f.p.w.call(f.p, k, apply, func(answer reply) {
		r, got = answer, true
		f.step()
	})
	for !got {
		if !f.yield(kWait) {
			return r, errRunOver
		}
	}
	f.p.view.fiber = f
	switch {
	case f.stop():
		return r, context.Canceled
	case r.failed():
		return r, errors.New("no answer")
	}
	return r, nil
}
