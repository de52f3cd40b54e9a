package sim

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// rest is what comes when all is processed: time passes, cleaners go round, nothing goes wrong. Then no file may be left that
// nobody needs and whose grace is over, and every root that is left has all that it names. Runs of old seeds end as they did,
// for it begins behind their end.
type rest struct {
	begun    bool
	more     bool          // records come first, so that every task commits
	rounds   int           // of these that are still to come
	look     time.Duration // when the directory is looked at next
	deadline time.Duration // when it has to be tidy
}

// restEvery is how many runs there are to one that has it: it takes longer than the run.
const restEvery = 5

// drawRest decides whether a run has it, with dice of its own.
func (w *world) drawRest() {
	rng := rand.New(rand.NewPCG(w.cfg.Seed, 0x72657374))
	if rng.IntN(restEvery) == 0 {
		w.rest = &rest{more: rng.IntN(4) > 0 && (w.x == nil || w.x.ends == 0)}
	}
}

// restGrace is the grace in that time, and restTime how long it may take beyond it until all cleaners have gone round: two
// rounds of those who have tasks, of which the second finds no merged run in the way any more, and one of those who stand by.
const (
	restGrace = 30 * time.Millisecond
	restTime  = 400 * time.Millisecond
)

// over reports that the directory is tidy. It is asked while nothing is open and nothing under way.
func (r *rest) over(w *world) bool {
	if !r.begun {
		r.begin(w)
	}
	if r.rounds > 0 {
		r.rounds--
		w.broker.oneMore()
		return false
	}
	if w.now < r.look {
		return false
	}
	r.look = w.now + 10*time.Millisecond
	left, err := w.check.leftOver()
	switch {
	case err != nil:
		w.violation("I16", "the directory at rest: %v", err)
	case left == "":
		w.check.whole()
	case w.now > r.deadline:
		w.violation("I15", "%s is left over, %v after everything was processed", left, (w.now - r.deadline + restGrace + restTime).Round(time.Millisecond))
	default:
		return false
	}
	return true
}

// begin starts the rounds of cleaning where a run has none.
func (r *rest) begin(w *world) {
	r.begun = true
	if r.more {
		r.rounds = maxChain + 2 // every chain is merged, and the merged run used
	}
	w.grace = min(w.grace, restGrace)
	r.deadline = w.now + restGrace + restTime
	for _, p := range w.procs {
		r.deadline = max(r.deadline, p.pausedUntil+restGrace+restTime)
	}
	w.tracef(nil, "REST")
	w.counts.Rests++
	if w.fine {
		return
	}
	w.fine = true
	for _, p := range w.procs {
		p.idleLater()
		if a := p.attempt; a != nil && a.ready && !a.over {
			a.quietLater()
		}
	}
}

// oneMore appends a record to every input.
func (b *broker) oneMore() {
	for p := range b.in {
		log := &b.in[p]
		n := int64(len(log.recs))
		log.recs = append(log.recs, inRecord{offset: n, key: byte('a' + 8*p + int(n)%3)})
		b.append(p, 1)
	}
}

// leftOver names a file that nobody needs, "" if there is none.
func (c *checker) leftOver() (string, error) {
	infos, err := c.repo.List(context.Background())
	if err != nil {
		return "", err
	}
	keep := c.wanted(infos)
	for _, name := range c.w.disk.names() {
		if !keep[name] && c.w.disk.files[name].at+c.w.grace < c.w.now {
			return name, nil
		}
	}
	return "", nil
}

// inPlace reports whether a merged run may still take the place of runs of its task's chain: nobody but who merged it knows
// whether that is to be. The chain is that of the newest committed root.
func inPlace(name string, newest *snapshot.Root) bool {
	var id, inc uint64
	var task string
	if n, _ := fmt.Sscanf(path.Base(name), "full-%d-%x-%s", &id, &inc, &task); n != 3 || newest == nil {
		return false
	}
	for i := range newest.Tasks {
		if e := &newest.Tasks[i]; e.Task.String()+".data" == task && len(e.Runs) > 0 {
			return uint64(e.Runs[0].To) <= id
		}
	}
	return false
}

// wanted are the files that may be there: of each partition the newest committed checkpoints, as many as any process retains,
// and the one that the newest follows; what they name; what the living have merged and not used yet; who is there.
func (c *checker) wanted(infos []snapshot.RootInfo) map[string]bool {
	keep := map[string]bool{"millweir-store-id": true}
	roots, known := map[string]*snapshot.Root{}, map[string]bool{} // to be committed, as cleaners know it
	for _, info := range infos {
		roots[info.Ref.Path], known[info.Ref.Path] = info.Root, info.Committed
	}
	var newest []*snapshot.Root
	want := func(path string) {
		keep[path] = true
		keep[strings.TrimSuffix(path, ".root")+".committed"] = true
		if root := roots[path]; root != nil {
			for file := range filesOf(root) {
				keep[file] = true
			}
		}
	}
	for _, history := range c.history {
		var there []past
		for i, was := range history {
			if roots[was.path] != nil && (known[was.path] || i+1 == len(history)) {
				there = append(there, was)
			}
		}
		for i, was := range there {
			if i+maxRetained >= len(there) {
				want(was.path)
			}
		}
		if n := len(there); n > 0 {
			last := roots[there[n-1].path]
			if newest = append(newest, last); last.Predecessor != nil {
				want(last.Predecessor.Path)
			}
		}
	}
	for _, p := range c.w.procs {
		keep[p.dir()+"instance"] = true
		for _, run := range p.mergedRuns() {
			keep[run.File] = true
		}
	}
	for _, info := range infos {
		if c.open(info) {
			want(info.Ref.Path)
		}
		if c.w.plain && info.Root != nil && info.Root.Predecessor != nil && slices.ContainsFunc(c.w.procs, func(p *process) bool {
			return info.Instance == p.name && info.Ref.Name.Incarnation == p.inc && info.Ref.Name.ID == p.newest
		}) {
			want(info.Root.Predecessor.Path) // a late copy may set the group back to it
		}
	}
	for name, f := range c.w.disk.files {
		keep[name] = keep[name] || c.besideALiving(f) || slices.ContainsFunc(newest, func(root *snapshot.Root) bool { return inPlace(name, root) })
		if keep[name] {
			keep[dirOf(name)+"instance"] = true
		}
	}
	return keep
}

// filesOf gives the files that a root names beside itself.
func filesOf(root *snapshot.Root) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range root.Tasks {
			for _, run := range slices.Concat(root.Tasks[i].Runs, root.Tasks[i].InFlight) {
				if !run.IsInline() && !yield(run.File) {
					return
				}
			}
		}
	}
}

// open reports whether a root that is not committed may stay: its process lives and knows of nothing that it has committed since, or another one
// of that name lives, which has not found it; or it has a task of which no handle names a root.
func (c *checker) open(info snapshot.RootInfo) bool {
	f := c.w.disk.files[info.Ref.Path]
	if f == nil || info.Root == nil {
		return true // another finding
	}
	for i := range info.Root.Tasks {
		id := info.Root.Tasks[i].Task
		if id.Source == sourceName && len(c.history[id.Partition]) == 0 {
			return true
		}
	}
	n := info.Ref.Name
	return c.besideALiving(f) || !c.w.rest.more && slices.ContainsFunc(c.w.procs, func(p *process) bool {
		return info.Instance == p.name && n.Incarnation == p.inc && n.ID > p.newest
	})
}

// besideALiving reports whether another process of the same name has written a file beside one that lives: the one that it had
// taken the place of, or one that had taken its. That is left to the next one that starts.
func (c *checker) besideALiving(f *file) bool {
	return slices.ContainsFunc(c.w.procs, func(p *process) bool {
		return dirOf(f.name) == p.dir() && f.shown > p.opened && !strings.Contains(f.name, fmt.Sprintf("-%016x", uint64(p.inc)))
	})
}

// mergedRuns are those that a process may still use.
func (p *process) mergedRuns() (runs []snapshot.RunRef) {
	add := func(merged map[element.TaskID]snapshot.RunRef) {
		for _, run := range merged {
			runs = append(runs, run)
		}
	}
	add(p.merged)
	if a := p.attempt; a != nil {
		add(a.full)
		for _, m := range a.round {
			runs = append(runs, m.run)
		}
	}
	return runs
}

// whole looks whether the roots that are left have all that they name: what cleaners leave is never a root whose runs are gone.
func (c *checker) whole() {
	infos, err := c.repo.List(context.Background())
	if err != nil {
		c.w.violation("I16", "the directory at rest: %v", err)
		return
	}
	for _, info := range infos {
		if info.Err != nil {
			c.w.violation("I16", "root %s: %v", info.Ref.Path, info.Err)
			return
		}
		if c.besideALiving(c.w.disk.files[info.Ref.Path]) {
			continue // its data was there without a root when the one that lives looked, and went
		}
		for file := range filesOf(info.Root) {
			if c.w.disk.files[file] == nil {
				c.w.violation("I16", "root %s names %s, which is gone", info.Ref.Path, file)
				return
			}
		}
	}
}
