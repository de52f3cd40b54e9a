package gate

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

	"github.com/millweir/millweir/element"
	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write the outputs of the scenarios in testdata anew")

// TestScenarios replays the files in testdata. A scenario is a task, its input channels and what comes out of it:
//
//	# comments, which tell the story
//	new 3 unaligned feedback=2 after=7      a task with three inputs
//	put 0 a1 a2 |8 a3 x8 end                into the channel of input 0: records, barrier 8 (|8u unaligned, |8t aligned with
//	                                        timeout), cancel barrier 8, the end. What may overtake is announced at once;
//	hide 0 |8u                              the same, the announcement stays under way
//	announce                                ... until here
//	read 0 2                                read two items from input 0, if it is not set aside and nothing restored is left
//	timed-out 8, trigger 8t, cancel 8       the time is over; from the coordinator
//	restore a1 b1, work                     records that were in flight; process one of them
//	    -> an action of the gate
//	    =  what changed: the output, what is set aside, what is recorded, what is pending, the sum of the channels
//
// Processing a1 gathers the output a1, which goes out when the task flushes. The indented lines are golden.
// `go test ./engine/gate -rewrite` writes them anew; read the difference.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 60)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			got, err := replayScenario(string(want))
			require.NoError(t, err, file)
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(want), got, "%s: run go test ./engine/gate -rewrite and read the difference", file)
		})
	}
}

// replayScenario executes a scenario and returns it with its outputs made anew.
func replayScenario(file string) (string, error) {
	var out strings.Builder
	var s *scene
	for i, line := range strings.Split(strings.TrimSuffix(file, "\n"), "\n") {
		if strings.HasPrefix(line, "    ") { // old output
			continue
		}
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		var err error
		switch {
		case words[0] == "new":
			s, err = newScene(words[1:])
		case s == nil:
			err = errors.New("no task yet, start with new")
		default:
			err = s.input(words[0], words[1:])
		}
		if err != nil {
			return "", fmt.Errorf("line %d: %q: %w", i+1, line, err)
		}
		for _, l := range s.lines() {
			out.WriteString("    " + l + "\n")
		}
	}
	return out.String(), nil
}

// scene is one task, driven as any task is, and what is to be printed of it.
type scene struct {
	d      *driver
	names  []string // of the records, by number
	said   []string
	out    []string // gathered output
	sent   []string
	events int // how many the gate got with this line
	shown  map[string]string
}

func newScene(args []string) (*scene, error) {
	if len(args) < 2 {
		return nil, errors.New("want: new inputs mode")
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return nil, err
	}
	mode := Mode(slices.Index(modeTexts[:], args[1]))
	if mode >= numModes {
		return nil, fmt.Errorf("unknown mode %q", args[1])
	}
	var opts []Option
	for _, a := range args[2:] {
		name, value, _ := strings.Cut(a, "=")
		v, err := strconv.Atoi(value)
		switch {
		case err != nil:
			return nil, err
		case name == "feedback":
			opts = append(opts, Feedback(v))
		case name == "after":
			opts = append(opts, After(element.CheckpointID(v)))
		default:
			return nil, fmt.Errorf("unknown option %q", name)
		}
	}
	s := &scene{}
	s.d = newDriver(s, New(n, mode, opts...), noPlant)
	s.shown = s.state()
	return s, nil
}

// input does one line.
func (s *scene) input(what string, args []string) error {
	first := strings.Join(args, " ")
	switch what {
	case "put", "hide":
		return s.put(args, what == "put")
	case "announce":
		s.announce(0)
	case "read":
		return s.read(args)
	case "timed-out":
		b, err := parseBarrier(first)
		s.do(s.d.g.TimedOut(b.ID))
		return err
	case "trigger":
		b, err := parseBarrier(first)
		s.do(s.d.g.Trigger(b))
		return err
	case "cancel":
		b, err := parseBarrier(first)
		s.do(s.d.g.Cancelled(Coordinator, b.ID))
		return err
	case "restore":
		for _, a := range args {
			s.d.backlog = append(s.d.backlog, s.number(a))
		}
	case "work":
		if len(s.d.backlog) == 0 {
			return errors.New("nothing was restored")
		}
		s.d.restored()
	default:
		return fmt.Errorf("unknown input %q", what)
	}
	return nil
}

func (s *scene) do(a []Action) {
	s.events++
	s.d.do(a)
}

// announce delivers the announcements from the given one on.
func (s *scene) announce(from int) {
	for len(s.d.told) > from {
		s.events++
		s.d.announce(from)
	}
}

func (s *scene) put(args []string, announce bool) error {
	if len(args) < 2 {
		return errors.New("want: an input, items")
	}
	in, err := s.in(args[0])
	if err != nil {
		return err
	}
	before := len(s.d.told)
	for _, a := range args[1:] {
		it := item{kind: record}
		switch {
		case a[0] == '|' || a[0] == 'x':
			it.kind = map[byte]itemKind{'|': barrier, 'x': cancel}[a[0]]
			if it.b, err = parseBarrier(a[1:]); err != nil {
				return err
			}
		case a == "end":
			it.kind = end
		default:
			it.rec = s.number(a)
		}
		s.d.put(in, it)
	}
	if announce {
		s.announce(before)
	}
	return nil
}

func (s *scene) in(word string) (int, error) {
	in, err := strconv.Atoi(word)
	if err == nil && (in < 0 || in >= len(s.d.ch)) {
		err = fmt.Errorf("there is no input %d", in)
	}
	return in, err
}

func (s *scene) read(args []string) error {
	if len(args) == 0 {
		return errors.New("want: an input")
	}
	in, err := s.in(args[0])
	if err != nil {
		return err
	}
	n := 1
	if len(args) > 1 {
		if n, err = strconv.Atoi(args[1]); err != nil {
			return err
		}
	}
	for range n {
		switch {
		case len(s.d.ch[in].q) == 0:
			return errors.New("the channel is empty")
		case !s.d.readable(in) && len(s.d.backlog) > 0:
			s.said = append(s.said, "=  not read: what was in flight comes first")
			return nil
		case !s.d.readable(in):
			s.said = append(s.said, "=  not read: the input is set aside")
			return nil
		}
		if s.d.ch[in].q[0].kind != record {
			s.events++
		}
		s.d.read(in)
	}
	return nil
}

// parseBarrier reads an id, u for unaligned, t for a timeout.
func parseBarrier(word string) (Barrier, error) {
	var b Barrier
	digits := strings.TrimRight(word, "ut")
	b.Unaligned, b.Timeout = strings.HasSuffix(word, "u"), strings.HasSuffix(word, "t")
	id, err := strconv.ParseUint(digits, 10, 64)
	b.ID = element.CheckpointID(id)
	return b, err
}

// number gives the number of a record by its name.
func (s *scene) number(name string) int32 {
	if i := slices.Index(s.names, name); i >= 0 {
		return int32(i)
	}
	s.names = append(s.names, name)
	return int32(len(s.names) - 1)
}

// state tells what a reader wants to follow.
func (s *scene) state() map[string]string {
	st := map[string]string{}
	list := func(name string, is func(int) bool) {
		st[name] = "none"
		var ins []int
		for i := range s.d.ch {
			if is(i) {
				ins = append(ins, i)
			}
		}
		if len(ins) > 0 {
			st[name] = numbers(ins)
		}
	}
	list("set aside", s.d.g.Blocked)
	list("recording", s.d.g.Recording)
	st["pending"] = strings.Trim(fmt.Sprint(s.d.g.Pending()), "[]")
	if st["pending"] == "" {
		st["pending"] = "none"
	}
	return st
}

// lines gives what the last line of input has done.
func (s *scene) lines() []string {
	out := s.said
	if len(s.sent) > 0 {
		out = append(out, "=  sent: "+strings.Join(s.sent, " "))
	}
	state := s.state()
	quiet := len(out) == 0
	for _, k := range []string{"set aside", "recording", "pending"} {
		if state[k] != s.shown[k] {
			quiet = false
			out = append(out, "=  "+k+": "+state[k])
		}
	}
	if s.events > 0 && quiet {
		out = append(out, "=  nothing to do")
	}
	s.said, s.sent, s.shown, s.events = nil, nil, state, 0
	return out
}

func (s *scene) process(_ *driver, rec int32) {
	s.said = append(s.said, "=  processed "+s.names[rec])
	s.out = append(s.out, s.names[rec])
}

func (s *scene) snapshot(_ *driver, a Snapshot) {
	s.sent = append(s.sent, s.out...)
	s.out = nil
	suffix := ""
	if a.Forward.Unaligned {
		suffix = "u"
	} else if a.Forward.Timeout {
		suffix = "t"
	}
	s.sent = append(s.sent, fmt.Sprintf("|%d%s", a.ID, suffix))
}

func (s *scene) captured(_ *driver, id element.CheckpointID, flight []inFlight) {
	line := fmt.Sprintf("=  in flight of %d:", id)
	for _, f := range flight {
		line += fmt.Sprintf(" %d:%s", f.in, s.names[f.rec])
	}
	if len(flight) == 0 {
		line += " nothing"
	}
	s.said = append(s.said, line)
}

func (s *scene) aborted(_ *driver, id element.CheckpointID) {
	s.sent = append(s.sent, fmt.Sprintf("x%d", id))
}

func (s *scene) startTimer(*driver, element.CheckpointID) {}

func (s *scene) action(_ *driver, a Action) { s.said = append(s.said, "-> "+a.String()) }
