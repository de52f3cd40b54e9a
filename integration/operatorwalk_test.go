//go:build unix

package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// operatorWalk is what an operator may do to a service in the course of time, in an order that the seed gives: starts, stops
// and kills, savepoints, resets, offsets and topics that go, files that are damaged, topologies that change. The oracle looks
// from the outside: each refusal is one line with a documented code; one of the ways that it names is taken literally, and a
// few of those lead to a service that works on new input; what it puts out is what the steps until then allow.
type operatorWalk struct {
	*site
	rnd      *rand.Rand
	backups  bool // an operator who has backups, and takes them; else only where nothing else is named
	file     string
	now      walkTopology
	worked   walkTopology // the last one that processed
	names    int          // made so far, of applications, sources, …
	job      *process
	producer *kgo.Client
	undo     []undoing
	saves    []string // savepoints
	from     string   // that of the last start from one
	bad      []string // damaged files that are still there
	backup   string   // of the data directory
	turned   int      // the check at which topics, offsets or topology were changed last
	stale    []kadm.Offset
	staleApp string // whose they are
	began    time.Time
	book     *account
	said     []string // what was done, for the one who reads a failure
	counts   map[string]int
	refusal  map[string]int
}

// undoing takes back what was done to files, offsets, directories or the topology.
type undoing struct {
	kind string
	back func()
}

func newOperatorWalk(s *site, seed uint64) *operatorWalk {
	w := &operatorWalk{site: s, rnd: rand.New(rand.NewPCG(seed, 41)), counts: map[string]int{}, refusal: map[string]int{}, turned: -10, book: newAccount(), began: time.Now()}
	s.every = 60 * time.Millisecond
	w.backups = w.rnd.IntN(3) == 0
	w.file = filepath.Join(s.t.TempDir(), "service.yaml")
	w.now = walkTopology{exchange: w.rnd.IntN(2) == 0, sources: []walkSource{{"orders", s.in}}, step: "totals", checkpoints: filepath.Join(s.dir, "checkpoints"), app: s.app}
	if w.rnd.IntN(2) == 0 {
		w.now.instance = "one"
	}
	w.book.anew(s.in, int(s.parts))
	w.write()
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("what was done:\n%s", strings.Join(w.said, "\n"))
		}
	})
	return w
}

func (w *operatorWalk) say(format string, args ...any) {
	line := fmt.Sprintf("%6.2f ", time.Since(w.began).Seconds()) + fmt.Sprintf(format, args...)
	w.said = append(w.said, line)
	if testing.Verbose() && os.Getenv("WALK_LOUD") != "" {
		w.t.Log(line)
	}
}

// name makes one that was not there yet.
func (w *operatorWalk) name(kind string) string {
	w.names++
	return fmt.Sprintf("%s%d", kind, w.names)
}

func (w *operatorWalk) oneIn(n int) bool { return w.rnd.IntN(n) == 0 }

// walk goes so many rounds: disturb a service that is stopped, bring it to work, disturb it while it runs, bring it to work
// again, stop it in order, and check its output.
func (w *operatorWalk) walk(rounds int, until time.Time) (n int) {
	for n = 0; n < rounds && time.Now().Before(until); n++ {
		w.say("round %d", n)
		if n > 0 {
			w.disturbStopped()
		}
		w.work()
		if w.oneIn(2) {
			w.disturbRunning()
			w.work()
		}
		w.stopInOrder()
		w.check()
		w.settle()
	}
	return n
}

// settle does what the documents ask for when the service has worked again: damaged files that were left go.
func (w *operatorWalk) settle() {
	for _, path := range w.bad {
		if filepath.Base(path) == "millweir-store-id" {
			continue // with which it worked: it was in its own place
		}
		_ = os.RemoveAll(path)
		if root, isRoot := strings.CutSuffix(path, ".root"); isRoot {
			_ = os.RemoveAll(root + ".committed")
		}
	}
	w.bad, w.undo, w.worked = nil, nil, w.now
	if w.oneIn(3) {
		w.stale, w.staleApp = nil, w.app
		w.offsets().Each(func(o kadm.Offset) { w.stale = append(w.stale, o) })
	}
	if w.oneIn(3) {
		w.backup = filepath.Join(w.t.TempDir(), "backup")
		require.NoError(w.t, os.CopyFS(w.backup, os.DirFS(w.dir)))
	}
}

// most is how many ways out an operator tries before it is a circle.
const most = 6

// work brings the service to work on new input, from whatever state, by what it says itself.
func (w *operatorWalk) work(flags ...string) {
	next := way{args: flags}
	for round := 0; ; round++ {
		if w.job == nil {
			w.start(next)
		}
		if w.processes() {
			break
		}
		code, line := w.ended()
		w.job = nil
		require.Less(w.t, round, most, "a circle: %d, %s", code, line)
		if code == 0 { // a cancel, or a start that found that it was cancelled
			next = way{}
			continue
		}
		next = w.wayOut(code, line)
	}
}

// way is the next start: arguments of run, or a whole command.
type way struct {
	args    []string
	command string
}

func (w *operatorWalk) start(next way) {
	if next.command != "" {
		w.say("  start: %s", next.command)
		w.job = w.shell(next.command)
		return
	}
	args := append([]string{"run", w.file}, next.args...)
	w.say("  start: %s", strings.Join(next.args, " "))
	w.counts["starts"]++
	w.job = startProcess(w.t, processorBinary(w.t), args)
}

// shell runs a command as the operator's shell does.
func (w *operatorWalk) shell(command string) *process {
	dir := filepath.Dir(processorBinary(w.t))
	return startProcess(w.t, "/bin/sh", []string{"-c", "exec " + command}, "PATH="+dir+":"+os.Getenv("PATH"))
}

// processes puts new input in, and says whether the service has worked on all of it. It has ended if not.
func (w *operatorWalk) processes() bool {
	job := w.job
	for end := time.Now().Add(60 * time.Second); !strings.Contains(job.stderr.String(), "msg=processing"); time.Sleep(5 * time.Millisecond) {
		if job.ended() {
			return false
		}
		require.True(w.t, time.Now().Before(end), "a hang before the first record: %s", job.stderr.tail(10))
	}
	w.put(1 + w.rnd.IntN(3))
	for end := time.Now().Add(100 * time.Second); !w.caught(); time.Sleep(10 * time.Millisecond) {
		if job.ended() {
			return false
		}
		require.True(w.t, time.Now().Before(end), "a hang, not all is processed: %s", job.stderr.tail(10))
	}
	return true
}

// ended gives how the service ended, which must be as the documents say.
func (w *operatorWalk) ended() (code int, line string) {
	code = w.job.exit(60 * time.Second)
	line = w.job.stderr.tail(1)
	w.say("  ended with %d: %s", code, line)
	w.saneEnd(w.job, code)
	w.refusal[fmt.Sprint(code)]++
	return code, line
}

// saneEnd wants a documented code and, unless it is 0, one line that says why.
func (w *operatorWalk) saneEnd(p *process, code int) {
	text := p.stderr.String()
	require.NotContains(w.t, text, "goroutine ", "no panic")
	require.Contains(w.t, []int{0, 1, 2, 3, 13, 15, 20, 21, 22, 23, 40, 42, 43, 45}, code, "%v: %s", p.cmd.Args, p.stderr.tail(5))
	n := 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "processor: ") {
			n++
		}
	}
	if code != 0 {
		require.Equal(w.t, 1, n, "%v ended with %d: %s", p.cmd.Args, code, p.stderr.tail(5))
		require.True(w.t, strings.HasPrefix(p.stderr.tail(1), "processor: "), p.stderr.tail(5))
	} else {
		require.Zero(w.t, n, "%v ended with 0: %s", p.cmd.Args, p.stderr.tail(5))
	}
}

// stopInOrder ends the service with a last checkpoint.
func (w *operatorWalk) stopInOrder() {
	require.NoError(w.t, w.job.cmd.Process.Signal(syscall.SIGTERM))
	code := w.job.exit(40 * time.Second)
	w.saneEnd(w.job, code)
	require.Zero(w.t, code, "a stop of a service that works: %s", w.job.stderr.tail(5))
	w.job = nil
	w.counts["stops"]++
	w.nothingOpen(nil, time.Now().Add(2*transactionTimeout))
}

// command runs another command to its end.
func (w *operatorWalk) command(args ...string) (code int, line string) {
	p := startProcess(w.t, processorBinary(w.t), args)
	code = p.exit(90 * time.Second)
	line = p.stderr.tail(1)
	w.say("  %s: %d %s", strings.ReplaceAll(strings.Join(args, " "), w.file, "FILE"), code, line)
	w.saneEnd(p, code)
	w.counts[args[0]]++
	return code, p.stdout.String()
}

// pick draws one.
func pick[T any](rnd *rand.Rand, list []T) T { return list[rnd.IntN(len(list))] }

func (w *operatorWalk) report() string {
	var list []string
	for k, n := range w.counts {
		list = append(list, fmt.Sprintf("%s %d", k, n))
	}
	slices.Sort(list)
	return fmt.Sprintf("%v; refused %v", list, w.refusal)
}

// operatorWalks goes one walk, or with WALKS=n one for each of n seeds, of so many rounds or WALK_ROUNDS.
func operatorWalks(t *testing.T, at func(*testing.T) *site, rounds int) {
	rounds, walks := envInt(t, "WALK_ROUNDS", rounds), envInt(t, "WALKS", 1)
	first := killSeed(t)
	processorBinary(t)
	walk := func(t *testing.T, seed uint64) {
		w := newOperatorWalk(at(t), seed)
		n := w.walk(rounds, time.Now().Add(4*time.Minute))
		t.Logf("%d rounds: %s", n, w.report())
	}
	if walks == 1 {
		walk(t, first)
		return
	}
	for seed := first; seed < first+uint64(walks); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { walk(t, seed) })
	}
}

// envInt is a number of the environment, if it is there.
func envInt(t *testing.T, name string, def int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

func TestOperatorWalk(t *testing.T) {
	t.Parallel()
	operatorWalks(t, func(t *testing.T) *site { return fakeSite(t, 2).impatient() }, 4)
}

func TestRealOperatorWalk(t *testing.T) {
	operatorWalks(t, func(t *testing.T) *site { return realSite(t, 2).impatient() }, 8)
}
