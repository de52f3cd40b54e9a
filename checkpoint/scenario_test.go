package checkpoint

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write the outputs of the scenarios in testdata anew")

// TestScenarios replays the files in testdata. A scenario is made of
//
//	# comments, which tell the story,
//	inputs, one per line: the time, the input, its arguments,
//	    -> an action that the input gave
//	    =  what changed: the checkpoints in flight, who has moved, who leaves, which savepoints are owed, when Tick is due
//
// The indented lines are golden output. `go test ./checkpoint -rewrite` writes them anew; read the difference.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 20)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			got, err := replay(string(want))
			require.NoError(t, err, file)
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(want), got, "%s: run go test ./checkpoint -rewrite and read the difference", file)
		})
	}
}

// replay executes a scenario and returns it with its outputs made anew.
func replay(file string) (string, error) {
	var out strings.Builder
	var s *scene
	for i, line := range strings.Split(strings.TrimSuffix(file, "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, "    "): // old output
			continue
		case line == "" || strings.HasPrefix(line, "#"):
			out.WriteString(line + "\n")
			continue
		}
		out.WriteString(line + "\n")
		words := strings.Fields(line)
		if words[0] == "new" {
			n, err := newScene(words[1:])
			if err != nil {
				return "", fmt.Errorf("line %d: %w", i+1, err)
			}
			s = n
			continue
		}
		if s == nil {
			return "", fmt.Errorf("line %d: no coordinator yet, start with new", i+1)
		}
		lines, err := s.input(words)
		if err != nil {
			return "", fmt.Errorf("line %d: %q: %w", i+1, line, err)
		}
		for _, l := range lines {
			out.WriteString("    " + l + "\n")
		}
	}
	return out.String(), nil
}

// scene is one coordinator under test and what was last printed of it.
type scene struct {
	c      *Coordinator
	shown  map[string]string
	counts [NumAnswers]uint64
}

func newScene(args []string) (*scene, error) {
	cfg := Config{Interval: time.Second, Timeout: 10 * time.Second}
	var last uint64
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		var err error
		switch name {
		case "interval":
			cfg.Interval, err = time.ParseDuration(value)
		case "timeout":
			cfg.Timeout, err = time.ParseDuration(value)
		case "first":
			cfg.First, err = time.ParseDuration(value)
		case "min-pause":
			cfg.MinPause, err = time.ParseDuration(value)
		case "transaction":
			cfg.TransactionTimeout, err = time.ParseDuration(value)
		case "max-concurrent":
			cfg.MaxConcurrent, err = strconv.Atoi(value)
		case "tolerable":
			if cfg.TolerableFailures = Unlimited; value != "unlimited" {
				cfg.TolerableFailures, err = strconv.Atoi(value)
			}
		case "last":
			last, err = strconv.ParseUint(value, 10, 64)
		default:
			err = fmt.Errorf("unknown setting %q", name)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &scene{c: New(cfg, element.CheckpointID(last))}
	s.shown = s.state(0)
	return s, nil
}

// input feeds one line and gives the lines of output.
func (s *scene) input(words []string) ([]string, error) {
	if len(words) < 2 {
		return nil, errors.New("want: time input arguments")
	}
	now, err := time.ParseDuration(words[0])
	if err != nil {
		return nil, err
	}
	switch words[1] {
	case "stats":
		return s.stats(), nil
	case "unserved":
		return []string{fmt.Sprintf("=  unserved: %v", s.c.Unserved())}, nil
	}
	actions, err := s.feed(now, words[1], words[2:])
	if err != nil {
		return nil, err
	}
	var out []string
	for _, a := range actions {
		out = append(out, "-> "+a.String())
	}
	state := s.state(now)
	for _, k := range []string{"in flight", "moved", "leaving", "savepoints", "failures", "wake", "end"} {
		if state[k] != s.shown[k] {
			out = append(out, "=  "+k+": "+state[k])
		}
	}
	s.shown = state
	answers := s.c.Stats().Totals.Answers
	for a := Duplicate; a < NumAnswers && s.c.Dead(); a++ {
		if answers[a] > s.counts[a] {
			out = append(out, "=  answered without an action: "+a.String())
		}
	}
	s.counts = answers
	return out, nil
}

// state tells what a reader wants to follow.
func (s *scene) state(now time.Duration) map[string]string {
	st := map[string]string{"in flight": "none", "moved": "nobody", "leaving": "nobody", "savepoints": "none", "failures": "none", "wake": "never", "end": "no"}
	var flying []string
	for _, p := range s.c.flights {
		flying = append(flying, fmt.Sprintf("%d %v", p.id, p.phase))
	}
	if len(flying) > 0 {
		st["in flight"] = strings.Join(flying, ", ")
	}
	var moved, leaving []string
	for t, ts := range s.c.tasks {
		if ts.moved || ts.behind && s.c.flight(ts.with) == nil {
			moved = append(moved, t.String())
		}
		if ts.leaving {
			name := t.String()
			switch {
			case ts.with == 0:
				name += " (waits)"
			case s.c.cfg.MaxConcurrent > 1:
				name += " (with " + idText(ts.with) + ")"
			}
			leaving = append(leaving, name)
		}
	}
	if slices.Sort(leaving); len(leaving) > 0 {
		st["leaving"] = strings.Join(leaving, " ")
	}
	if slices.Sort(moved); len(moved) > 0 {
		st["moved"] = strings.Join(moved, " ")
	}
	if ids := s.c.Unserved(); len(ids) > 0 {
		st["savepoints"] = strings.Join(ids, " ")
	}
	if n := s.c.failures; n > 0 {
		st["failures"] = fmt.Sprintf("%d in a row", n)
	}
	if d, ok := s.c.NextWake(now); ok {
		st["wake"] = "at " + (now + d).String()
	}
	if s.c.Dead() {
		st["end"] = "the coordinator is dead"
	}
	return st
}

func (s *scene) stats() []string {
	st := s.c.Stats()
	var out []string
	for _, r := range st.Recent {
		out = append(out, fmt.Sprintf("=  %d %v, %s (failure: %s): %d of %d tasks moved, start delay %v (%v), sync %v, state %d B",
			r.ID, r.Reason, r.Phase, r.Failure.Label(), r.MovedTasks, r.Tasks, r.StartDelay, r.Slowest, r.Sync, r.StateBytes),
			fmt.Sprintf("=    barriers %v, flush %v, persist %v (%d B, %d entries, %d files), root %v, commit %v, end to end %v",
				r.Barriers, r.Flush, r.Persist, r.DeltaBytes, r.Entries, r.Files, r.Root, r.Commit, r.EndToEnd))
		if r.Alignment > 0 || r.Buffered > 0 || r.Unaligned || r.Waited > 0 || r.FullBytes != r.StateBytes || r.Savepoints > 0 {
			out = append(out, fmt.Sprintf("=    alignment %v, %d records (%d B) buffered, unaligned %v, waited %v, full %d B, savepoints %d",
				r.Alignment, r.Buffered, r.BufferedBytes, r.Unaligned, r.Waited, r.FullBytes, r.Savepoints))
		}
	}
	t := st.Totals
	for f := range NumFailureReasons {
		if t.Abandoned[f] > 0 {
			out = append(out, fmt.Sprintf("=  abandoned (%s): %d", f.Label(), t.Abandoned[f]))
		}
		if t.Failed[f] > 0 && s.c.cfg.TolerableFailures != 0 {
			out = append(out, fmt.Sprintf("=  failed (%s): %d", f.Label(), t.Failed[f]))
		}
	}
	return append(out, fmt.Sprintf("=  totals: triggered %d, completed %d, skipped %d, %d B, %d entries, answers %v",
		t.Triggered, t.Completed, t.Skipped, t.DeltaBytes, t.Entries, t.Answers))
}

// feed calls the input that the words name.
func (s *scene) feed(now time.Duration, input string, args []string) ([]Action, error) {
	c := s.c
	switch input {
	case "tick":
		return c.Tick(now), nil
	case "add", "moved":
		fn := map[string]func(time.Duration, element.TaskID) []Action{"add": c.AddTask, "moved": c.Moved}[input]
		var all []Action
		for _, a := range args {
			t, err := parseTask(a)
			if err != nil {
				return nil, err
			}
			all = append(all, fn(now, t)...)
		}
		return all, nil
	case "leave":
		var tasks []element.TaskID
		for _, a := range args {
			t, err := parseTask(a)
			if err != nil {
				return nil, err
			}
			tasks = append(tasks, t)
		}
		return c.Leave(now, tasks), nil
	case "raise":
		n, err := strconv.ParseUint(strings.Join(args, " "), 10, 64)
		return c.Raise(now, element.CheckpointID(n)), err
	case "savepoint":
		return c.RequestSavepoint(now, strings.Join(args, " ")), nil
	case "request":
		i := slices.Index(reasonTexts[:], strings.Join(args, " "))
		if i < 0 {
			return nil, fmt.Errorf("unknown reason %v", args)
		}
		return c.RequestCheckpoint(now, Reason(i)), nil
	}
	return s.feedReport(now, input, args)
}

func (s *scene) feedReport(now time.Duration, input string, args []string) ([]Action, error) {
	if len(args) == 0 {
		return nil, errors.New("a report names a checkpoint")
	}
	n, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		return nil, err
	}
	id, args, c := element.CheckpointID(n), args[1:], s.c
	switch input {
	case "flushed":
		return c.Flushed(now, id), nil
	case "root":
		return c.RootWritten(now, id), nil
	case "committed":
		return c.Committed(now, id), nil
	case "persisted":
		st, err := parseStats(args)
		return c.Persisted(now, id, st), err
	case "flush-failed":
		_, err := parseCause(args)
		return c.FlushFailed(now, id, err), nil
	case "root-failed":
		_, err := parseCause(args)
		return c.RootFailed(now, id, err), nil
	case "commit-failed":
		class, err := parseCause(args)
		return c.CommitFailed(now, id, err, class), nil
	}
	if len(args) == 0 {
		return nil, errors.New("a report of a task names it")
	}
	t, err := parseTask(args[0])
	if err != nil {
		return nil, err
	}
	switch args = args[1:]; input {
	case "barrier":
		ack, err := parseAck(args)
		return c.BarrierPassed(now, id, t, ack), err
	case "ack":
		st, err := parseStats(args)
		return c.Acked(now, id, t, st), err
	case "decline":
		_, err := parseCause(args)
		return c.Declined(now, id, t, err), nil
	}
	return nil, fmt.Errorf("unknown input %q", input)
}

// parseTask reads source-partition.
func parseTask(s string) (element.TaskID, error) {
	i := strings.LastIndexByte(s, '-')
	if i < 0 {
		return element.TaskID{}, fmt.Errorf("task %q: want source-partition", s)
	}
	n, err := strconv.ParseInt(s[i+1:], 10, 32)
	return element.TaskID{Source: s[:i], Partition: int32(n)}, err
}

// parseAck reads topic/partition@offset, still, unaligned, state=, sync=, delay=, align=, buffered=RECORDS/BYTES. Without
// still the task has moved.
func parseAck(args []string) (TaskAck, error) {
	ack := TaskAck{Moved: true}
	for _, a := range args {
		var err error
		switch name, value, _ := strings.Cut(a, "="); name {
		case "still":
			ack.Moved = false
		case "unaligned":
			ack.Unaligned = true
		case "align":
			ack.Alignment, err = time.ParseDuration(value)
		case "buffered":
			_, err = fmt.Sscanf(value, "%d/%d", &ack.Buffered, &ack.BufferedBytes)
		case "state":
			ack.StateBytes, err = strconv.ParseInt(value, 10, 64)
		case "sync":
			ack.SyncDuration, err = time.ParseDuration(value)
		case "delay":
			ack.StartDelay, err = time.ParseDuration(value)
		default:
			var p element.Position
			topic, rest, _ := strings.Cut(a, "/")
			_, err = fmt.Sscanf(rest, "%d@%d", &p.Partition, &p.Offset)
			p.Topic = topic
			ack.Positions = append(ack.Positions, p)
		}
		if err != nil {
			return ack, fmt.Errorf("%q: %w", a, err)
		}
	}
	return ack, nil
}

// parseStats reads bytes=, entries=, files=, full=.
func parseStats(args []string) (PersistStats, error) {
	var st PersistStats
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return st, err
		}
		switch name {
		case "bytes":
			st.Bytes = n
		case "entries":
			st.Entries = n
		case "files":
			st.Files = n
		case "full":
			st.FullBytes = n
		default:
			return st, fmt.Errorf("unknown figure %q", name)
		}
	}
	return st, nil
}

// parseCause reads a recovery class, a colon, and the message: "stop: disk full". No words are a nil error.
func parseCause(args []string) (fault.Recovery, error) {
	if len(args) == 0 {
		return fault.Restart, nil
	}
	for r := fault.Restart; r <= fault.Stop; r++ {
		if args[0] == r.String()+":" {
			return r, fault.New(r, fault.Failed, "%s", strings.Join(args[1:], " "))
		}
	}
	return fault.Restart, errors.New(strings.Join(args, " "))
}
