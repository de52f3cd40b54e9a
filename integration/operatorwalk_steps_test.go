//go:build unix

package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// walkStep is one thing that is done to a service. Unless WALK_MIXED is set, those of the kind "file" and those of the kind
// "world" (topics, offsets, topology) have some rounds between them, in which older checkpoints go.
type walkStep struct {
	kind string
	do   func(w *operatorWalk)
}

// stoppedSteps are for a service that does not run.
var stoppedSteps = []walkStep{
	{"", (*operatorWalk).looks},
	{"", (*operatorWalk).wrongFlags},
	{"", (*operatorWalk).reset},
	{"", (*operatorWalk).resetOther},
	{"", (*operatorWalk).cancel},
	{"", (*operatorWalk).flagsAtOnce},
	{"world", (*operatorWalk).fromSavepoint},
	{"world", (*operatorWalk).deleteOffsets},
	{"world", (*operatorWalk).deleteSomeOffsets},
	{"world", (*operatorWalk).changeOffset},
	{"world", (*operatorWalk).staleOffsets},
	{"world", (*operatorWalk).topicAnew},
	{"world", (*operatorWalk).topicGrows},
	{"world", (*operatorWalk).changeTopology},
	{"world", (*operatorWalk).changeTopology},
	{"world", (*operatorWalk).changeTopology},
	{"file", (*operatorWalk).damage},
	{"file", (*operatorWalk).damage},
	{"file", (*operatorWalk).damage},
	{"file", (*operatorWalk).directoryGoes},
	{"file", (*operatorWalk).dataPutBack},
	{"file", (*operatorWalk).otherDirectory},
}

// runningSteps are for one that does.
var runningSteps = []func(w *operatorWalk){
	(*operatorWalk).kill, (*operatorWalk).kill, (*operatorWalk).killAfterInput, (*operatorWalk).savepoint, (*operatorWalk).savepoint,
	(*operatorWalk).cancel, (*operatorWalk).cancelWithSavepoint, (*operatorWalk).looks, (*operatorWalk).second, (*operatorWalk).resetRefused,
	(*operatorWalk).turn, (*operatorWalk).damageRunning,
}

func (w *operatorWalk) disturbStopped() {
	kind := pick(w.rnd, []string{"file", "world"})
	switch mixed := os.Getenv("WALK_MIXED") != ""; {
	case mixed:
		kind = ""
	case kind == "world":
		w.turned, w.backup = w.book.checks, ""
	case w.book.checks < w.turned+3:
		kind = "none"
	}
	var steps []walkStep
	for _, s := range stoppedSteps {
		if s.kind == "" || s.kind == kind || kind == "" {
			steps = append(steps, s)
		}
	}
	for range 1 + w.rnd.IntN(3) {
		pick(w.rnd, steps).do(w)
	}
}

func (w *operatorWalk) disturbRunning() { pick(w.rnd, runningSteps)(w) }

// turn is a step of the kind "world" for a service that runs.
func (w *operatorWalk) turn() {
	w.turned, w.backup = w.book.checks, ""
	pick(w.rnd, []func(){w.topicAnew, w.topicGrows})()
}

// damageRunning is a step of the kind "file" for one.
func (w *operatorWalk) damageRunning() {
	if w.book.checks >= w.turned+3 || os.Getenv("WALK_MIXED") != "" {
		w.damage()
	}
}

func (w *operatorWalk) kill() {
	w.say("  kill -9")
	w.counts["kills"]++
	if w.now.mode != "" {
		w.book.allow(anyhow, "killed without exactly-once")
		w.book.loose = true
	}
	w.job.kill()
	w.job = nil
}

func (w *operatorWalk) killAfterInput() {
	w.put(1 + w.rnd.IntN(4))
	time.Sleep(time.Duration(w.rnd.Int64N(int64(2 * w.every))))
	w.kill()
}

// looks runs a command that changes nothing.
func (w *operatorWalk) looks() {
	args := pick(w.rnd, [][]string{{"checkpoints", "list"}, {"checkpoints", "verify"}, {"checkpoints", "list", "--brokers", strings.Join(w.brokers, ",")},
		{"savepoint", "list"}, {"transactions"}, {"validate"}, {"attempts", "--timeout", "3s"}, {"graph"}})
	w.command(append(slices.Clone(args), w.file)...)
}

func (w *operatorWalk) wrongFlags() {
	args := pick(w.rnd, [][]string{{"run"}, {"run", w.file, "--from", w.dir}, {"run", w.file, "--accept-duplicates"}, {"run", w.file, "--set", "x=y"},
		{"reset", w.file}, {"run", w.file + "x"}, {"checkpoints", "verify", "99999", w.file}, {"run", w.file, "--claim-mode", "claim"},
		{"savepoint", "inspect", w.dir}, {"savepoint", "dispose", w.dir}, {"run", w.file, "--from", filepath.Join(w.dir, "savepoint-x-1-0123456789abcdef")}})
	if args[0] == "reset" && w.job == nil {
		w.rest() // there may be nothing to delete: then it is 0
	}
	code, _ := w.command(args...)
	require.True(w.t, code != 0 || args[0] == "reset", "%v", args)
}

// flagsAtOnce starts with a flag that no message has named. Where nothing was done before, it changes nothing.
func (w *operatorWalk) flagsAtOnce() {
	flag := pick(w.rnd, []string{"--recover-from-store", "--allow-dropped-state"})
	w.say("  %s at once", flag)
	switch {
	case len(w.undo) == 0 && len(w.bad) == 0:
	case flag == "--allow-dropped-state":
		w.book.allow(anyhow, "state may be let go")
	default:
		w.book.recovers()
	}
	w.work(flag)
	w.stopInOrder()
	w.check()
	w.settle()
}

// reset makes the next start the first one.
func (w *operatorWalk) reset() {
	w.rest()
	if code, _ := w.command("reset", w.file, "--yes"); code == 0 || code == 22 { // 22: something of what is damaged stays
		w.book.begin()
		w.undo = slices.DeleteFunc(w.undo, func(u undoing) bool { return u.kind == "offsets" || u.kind == "file" })
	}
}

func (w *operatorWalk) resetRefused() {
	code, _ := w.command("reset", w.file, "--yes")
	require.Equal(w.t, 45, code, "the service runs")
}

// cancel ends what runs, if anything does.
func (w *operatorWalk) cancel() {
	running := w.job != nil
	code, out := w.command("cancel", w.file, "--timeout", "10s")
	if code != 0 {
		w.book.allow(anyhow, "a cancel failed")
	}
	w.gone()
	if code == 0 && w.now.deletes && (running || !strings.Contains(out, "nothing")) {
		if running {
			w.check()
		} else {
			w.book.allow(anyhow, "a cancel that deletes")
		}
		clear(w.book.base)
		w.book.dropped = w.book.checks
	}
}

// gone waits for the end of a process that was cancelled.
func (w *operatorWalk) gone() {
	if w.job == nil {
		return
	}
	code := w.job.exit(60 * time.Second)
	w.say("  the service ended with %d", code)
	w.saneEnd(w.job, code)
	require.Zero(w.t, code, "%s", w.job.stderr.tail(5))
	w.job = nil
}

func (w *operatorWalk) cancelWithSavepoint() {
	code, _ := w.command("cancel", w.file, "--savepoint", "--timeout", "20s")
	if w.now.mode == "disabled" {
		require.NotZero(w.t, code)
		return
	}
	require.Zero(w.t, code)
	w.gone()
	w.saved()
}

func (w *operatorWalk) savepoint() {
	code, _ := w.command("savepoint", "trigger", w.file, "--timeout", "20s")
	if w.now.mode == "disabled" {
		require.Equal(w.t, 43, code)
		return
	}
	require.Zero(w.t, code)
	w.saved()
}

func (w *operatorWalk) saved() {
	all, err := filepath.Glob(filepath.Join(filepath.Dir(w.dir), "savepoints", "savepoint-*"))
	require.NoError(w.t, err)
	for _, path := range all {
		if !slices.Contains(w.saves, path) {
			w.saves = append(w.saves, path)
		}
	}
}

// fromSavepoint begins with a savepoint, perhaps an old one or that of another application of the walk.
func (w *operatorWalk) fromSavepoint() {
	if len(w.saves) == 0 {
		return
	}
	w.from = pick(w.rnd, w.saves)
	flags := []string{"--from", w.from}
	if w.oneIn(2) {
		flags = append(flags, "--accept-duplicates")
	}
	if w.oneIn(4) {
		flags = append(flags, "--claim-mode", "claim")
		w.saves = slices.DeleteFunc(w.saves, func(p string) bool { return p == flags[1] })
	}
	if w.oneIn(4) {
		w.change("another application", func(t *walkTopology) { t.app = w.name(w.name0() + "-f") })
		w.book.begin()
	}
	w.book.allow(anyhow, "a savepoint")
	w.counts["from"]++
	w.work(flags...)
	w.stopInOrder()
	w.check()
	w.settle()
}

// name0 is the name that the site gave the application.
func (w *operatorWalk) name0() string { return strings.TrimSuffix(w.in, "-in") }

// second is another process of the same instance.
func (w *operatorWalk) second() {
	code, _ := w.command("run", w.file)
	require.Equal(w.t, 40, code)
}
