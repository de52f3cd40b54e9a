//go:build synctests

package synctests

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var (
	schedules = flag.Int("schedules", defaultSchedules(), "how many schedules; SYNCTESTS_SCHEDULES sets the default")
	seed      = flag.Uint64("seed", 1, "the first seed; the others follow it")
	repeat    = flag.Int("repeat", 1, "how often each seed is played: the scheduler of Go is not part of the seed")
	processes = flag.Int("processes", 1, "the most processes that share the group at a time")
	plant     = flag.String("plant", "", "a mistake to build in on purpose")
	workers   = flag.Int("workers", 2, "how many schedules run at a time")
	live      = flag.String("live", filepath.Join(os.TempDir(), "synctests-live.log"), "where the log of the schedule goes while it is played")
	child     = flag.Bool("child", false, "play the schedules in this process")
)

func defaultSchedules() int {
	if n, err := strconv.Atoi(os.Getenv("SYNCTESTS_SCHEDULES")); err == nil && n > 0 {
		return n
	}
	return 500
}

// chunk is how many schedules one child plays, silence how long it may be quiet (in real time) until it counts as stuck.
const (
	chunk   = 25
	silence = time.Minute
	tail    = 150 // lines of the log of a failed schedule that are shown
)

// outcome is what a child tells of a schedule, one line of JSON each, before it and after it.
type outcome struct {
	Seed   uint64
	Done   bool
	Err    string   `json:",omitempty"`
	Log    []string `json:",omitempty"`
	Counts Counts
}

const outcomeMark = "synctests: "

// TestChild plays schedules in this process, for a parent that can outlive it: a deadlock in a bubble ends the process,
// and the parent tells which seed it was.
func TestChild(t *testing.T) {
	if !*child {
		t.Skip("started by the other tests")
	}
	dir := t.TempDir()
	log, err := os.Create(*live)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for i := range *schedules {
		s := Draw(Options{Seed: *seed + uint64(i), Most: *processes, Plant: *plant})
		for range *repeat {
			tell(outcome{Seed: s.Seed})
			if _, err := log.Seek(0, io.SeekStart); err != nil || log.Truncate(0) != nil {
				t.Fatal("the log cannot be written")
			}
			var r Result
			synctest.Test(t, func(*testing.T) { r = Run(s, dir, log) })
			o := outcome{Seed: s.Seed, Done: true, Counts: r.Counts}
			if r.Err != nil {
				o.Err, o.Log = r.Err.Error(), r.Log
			}
			tell(o)
		}
	}
}

func tell(o outcome) {
	b, _ := json.Marshal(o)
	fmt.Fprintf(os.Stdout, "%s%s\n", outcomeMark, b)
}

// batch is what several schedules have come to.
type batch struct {
	played int
	counts Counts
	failed []outcome
}

// playAll plays n schedules from a seed on in children, several at a time. It stops early when enough have failed; 0 =
// never.
func playAll(t *testing.T, first uint64, n, most int, plant string, enough int) batch {
	t.Helper()
	var (
		mu  sync.Mutex
		all batch
		wg  sync.WaitGroup
	)
	next := first
	take := func() (from uint64, count int) {
		mu.Lock()
		defer mu.Unlock()
		if enough > 0 && len(all.failed) >= enough {
			return 0, 0
		}
		size := chunk
		if enough == 1 {
			size = 5 // what comes behind the first failure in a chunk is of no use
		}
		from, count = next, min(size, int(first+uint64(n)-next))
		next += uint64(count)
		return from, count
	}
	for range *workers {
		wg.Go(func() {
			for from, count := take(); count > 0; from, count = take() {
				b := playChunk(t, from, count, most, plant)
				mu.Lock()
				all.played += b.played
				all.counts.Add(b.counts)
				all.failed = append(all.failed, b.failed...)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return all
}

// playChunk plays consecutive seeds in one child, and in another one those behind a seed at which the child died.
func playChunk(t *testing.T, from uint64, count, most int, plant string) (all batch) {
	for end := from + uint64(count); from < end; {
		b, last := playChild(t, from, int(end-from), most, plant)
		all.played += b.played
		all.counts.Add(b.counts)
		all.failed = append(all.failed, b.failed...)
		from = last + 1
	}
	return all
}

func playChild(t *testing.T, from uint64, count, most int, plant string) (b batch, last uint64) {
	live := filepath.Join(t.TempDir(), "log")
	cmd := exec.Command(os.Args[0], "-live="+live, "-test.run=^TestChild$", "-test.timeout=0", "-child", fmt.Sprintf("-seed=%d", from), fmt.Sprintf("-schedules=%d", count),
		fmt.Sprintf("-processes=%d", most), "-plant="+plant, fmt.Sprintf("-repeat=%d", *repeat))
	// One processor and no preemption: what runs when depends on the seed as far as Go lets it.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(silence, func() { _ = cmd.Process.Signal(syscall.SIGQUIT) })
	var rest []string // what else it printed: a panic
	var at *outcome
	in := bufio.NewReader(out)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			break
		}
		watchdog.Reset(silence)
		text, ok := strings.CutPrefix(line, outcomeMark)
		var o outcome
		if !ok || json.Unmarshal([]byte(text), &o) != nil {
			rest = append(rest, line)
			continue
		}
		if at = &o; o.Done {
			at = nil
			b.played++
			b.counts.Add(o.Counts)
			if o.Err != "" {
				b.failed = append(b.failed, o)
			}
		}
		last = o.Seed
	}
	err = cmd.Wait()
	watchdog.Stop()
	switch {
	case at != nil:
		log, _ := os.ReadFile(live)
		text := stderr.String() + strings.Join(rest, "") + string(log)
		b.played++
		b.failed = append(b.failed, outcome{Seed: at.Seed, Err: fmt.Sprintf("the process died: %v", err), Log: strings.Split(text, "\n")})
	case last != 0 && err != nil: // it has told of every schedule and failed all the same: a data race
		b.failed = append(b.failed, outcome{Seed: last, Err: fmt.Sprintf("the child failed: %v", err), Log: strings.Split(stderr.String()+strings.Join(rest, ""), "\n")})
	case last == 0:
		t.Fatalf("the child could not begin: %v\n%s%s", err, strings.Join(rest, ""), stderr.String())
	}
	return b, last
}

// report tells of a failed schedule: the end of its log, where the whole is, and how to play it again.
func report(t *testing.T, o outcome, most int, plant string) {
	t.Helper()
	file := filepath.Join(os.TempDir(), fmt.Sprintf("synctests-%d.log", o.Seed))
	where := file
	if err := os.WriteFile(file, []byte(strings.Join(o.Log, "\n")), 0o644); err != nil {
		where = err.Error()
	}
	s := Draw(Options{Seed: o.Seed, Most: most, Plant: plant})
	t.Errorf("seed %d: %s\n  schedule: %s\n  whole log: %s\n  replay: %s\n  end of the log:\n    %s", o.Seed, o.Err, s, where, replay(s),
		strings.Join(o.Log[max(0, len(o.Log)-tail):], "\n    "))
}

func replay(s Schedule) string {
	c := fmt.Sprintf("go test -tags synctests ./internal/synctests -run 'TestSchedules$' -count=1 -schedules 1 -repeat 20 -seed %d -processes %d", s.Seed, s.Most)
	if s.Plant != "" {
		c += " -plant " + s.Plant
	}
	return c
}
