//go:build failpoints && unix

package failpoint

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Enabled says that points can be armed.
const Enabled = true

// env is the variable that arms points.
const env = "FAILPOINT"

// armed is what the environment asks for; read once.
var armed = mustArm(os.Getenv(env))

type kind int

const (
	kill kind = iota
	pause
	fail
	hang
)

// action is what happens at the n-th hit of a point.
type action struct {
	kind kind
	n    int64
	time time.Duration
	hits atomic.Int64
}

// Hit is a point where the process may be killed or stopped.
func Hit(p Point) { _ = Err(p) }

// Err is a point where also an error may come up.
func Err(p Point) error {
	a := armed[p]
	if a == nil || a.hits.Add(1) != a.n {
		return nil
	}
	switch a.kind {
	case pause:
		say("pause of %v at %s, hit %d", a.time, p, a.n)
		stop(a.time)
		return nil
	case fail:
		say("error at %s, hit %d", p, a.n)
		return fmt.Errorf("failpoint %s: planted error", p)
	case hang:
		say("hang at %s, hit %d", p, a.n)
		for {
			time.Sleep(time.Hour) // an empty select would be a deadlock to the runtime where nothing else goes on
		}
	}
	say("kill at %s, hit %d", p, a.n)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // cannot fail for the own process
	select {}
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "failpoint: "+format+"\n", args...)
}

// stop stops the whole process, every thread of it, for a time. Somebody else has to wake it.
func stop(d time.Duration) {
	pid := os.Getpid()
	waker := exec.Command("/bin/sh", "-c", fmt.Sprintf("sleep %.3f; kill -CONT %d", d.Seconds(), pid))
	if err := waker.Start(); err != nil {
		say("nobody to wake the process: %v", err)
		return
	}
	_ = syscall.Kill(pid, syscall.SIGSTOP) // cannot fail for the own process
	_ = waker.Wait()
}

func mustArm(list string) map[Point]*action {
	m, err := arm(list)
	if err != nil {
		say("%s: %v", env, err)
		os.Exit(2)
	}
	return m
}

// arm parses the list.
func arm(list string) (map[Point]*action, error) {
	m := map[Point]*action{}
	if list == "" {
		return m, nil
	}
	for _, text := range strings.Split(list, ",") {
		head, what, _ := strings.Cut(strings.TrimSpace(text), "=")
		name, count, counted := strings.Cut(head, "#")
		a := &action{n: 1}
		if counted {
			n, err := strconv.ParseInt(count, 10, 64)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("%q: the hit is a number from 1", text)
			}
			a.n = n
		}
		info, ok := find(Point(name))
		if !ok {
			return nil, fmt.Errorf("%q: there is no point of that name", text)
		}
		if m[info.Point] != nil {
			return nil, fmt.Errorf("%q: the point is armed twice", text)
		}
		if err := a.parse(what, info); err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		m[info.Point] = a
	}
	return m, nil
}

func (a *action) parse(what string, info Info) (err error) {
	rest, isPause := strings.CutPrefix(what, "pause:")
	switch {
	case what == "" || what == "kill":
	case isPause:
		a.kind = pause
		if a.time, err = time.ParseDuration(rest); err != nil || a.time <= 0 {
			return fmt.Errorf("%q is no time to pause", rest)
		}
	case what == "hang":
		a.kind = hang
	case what == "error" && info.Error:
		a.kind = fail
	case what == "error":
		return fmt.Errorf("no error can come up at this point")
	default:
		return fmt.Errorf("%q is none of kill, pause:DURATION, hang, error", what)
	}
	return nil
}

func find(p Point) (Info, bool) {
	for _, info := range Points {
		if info.Point == p {
			return info, true
		}
	}
	return Info{}, false
}
