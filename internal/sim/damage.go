package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/millweir/millweir/snapshot"
)

// damage is what some runs have behind their end: all processes die, something of what a start needs is damaged or lost, and more
// records come. Whoever needs it has to refuse, naming it, and nothing may go on without it; then a person does what the message
// says. The start goes back to the newest checkpoint that is committed and whole, what was committed since appears once more, and
// from there on all is exact again.
type damage struct {
	rng   *rand.Rand
	stage damageStage
	file  string // that is damaged; "" where it is an offset or its metadata
	until time.Duration
	// broken are handles that nobody may go on from, by what the group has as their metadata; way is where each partition goes back to.
	broken  map[string]bool
	way     [maxPartitions]*past
	deleted bool                       // the offsets, as a message has asked for
	harmed  func(snapshot.RunRef) bool // of runs in the file
}

type damageStage int

const (
	sound damageStage = iota
	refusing
	recovering
	recovered
)

// past is a checkpoint of a partition that was committed.
type past struct {
	committed
	path string
}

// damageEvery is how many runs there are to one that has it.
const damageEvery = 4

// drawDamage decides whether a run has it, with dice of its own. Runs with an exchange go without, and those that have a rest.
func (w *world) drawDamage() {
	if rng := rand.New(rand.NewPCG(w.cfg.Seed, 0x64616d616765)); w.x == nil && w.rest == nil && rng.IntN(damageEvery) == 0 {
		w.damage = &damage{rng: rng}
	}
}

// over goes on where all is quiet, and reports that it has come to its end.
func (d *damage) over(w *world) bool {
	switch d.stage {
	case sound:
		return !d.begin(w)
	case recovered:
		return true
	}
	return false // the refused ones have something to process
}

// begin does it, where every partition has a checkpoint.
func (d *damage) begin(w *world) bool {
	for i, o := range w.broker.group.committed {
		if n := len(w.check.history[i]); n == 0 || w.check.history[i][n-1].metadata != o.metadata {
			return false
		}
	}
	w.everybodyDies()
	d.stage, d.until, d.broken = refusing, w.now+time.Second, map[string]bool{}
	d.harm(w)
	w.counts.Damages++
	w.broker.oneMore()
	w.broker.oneMore()
	for _, name := range w.names {
		w.start(name, w.lag(2*sessionTimeout))
	}
	d.watch(w)
	return true
}

// watch sees to it that those who have to refuse do.
func (d *damage) watch(w *world) {
	w.outside(nil, 10*time.Millisecond, kFault, func() {
		if d.stage == refusing && w.now > d.until {
			w.violation("I17", "nobody refuses to start without %s", d.what())
		}
		if d.stage == refusing {
			d.watch(w)
		}
	})
}

func (d *damage) what() string {
	if d.file == "" {
		return "the offsets that are lost"
	}
	return d.file
}

// harm damages something.
func (d *damage) harm(w *world) {
	g := w.broker.group
	handle := func(i int) { d.broken[g.committed[i].metadata] = true }
	part := d.rng.IntN(len(g.committed))
	switch d.rng.IntN(5) {
	case 0:
		for i := range g.committed {
			g.committed[i] = committed{}
		}
		d.broken[""] = true
		w.tracef(nil, "FAULT: the offsets are lost")
		return
	case 1:
		o := &g.committed[part]
		o.metadata = o.metadata[:d.rng.IntN(len(o.metadata))]
		handle(part)
		w.tracef(nil, "FAULT: the handle of in/%d is cut to %d bytes", part, len(o.metadata))
		return
	}
	h, _ := snapshot.ParseHandle(g.committed[part].metadata)
	root, err := w.check.repo.ReadRoot(context.Background(), h.Root)
	if err != nil {
		w.violation("I7", "the committed handle of in/%d does not open: %v", part, err)
		return
	}
	var runs []snapshot.RunRef
	for i := range root.Tasks {
		for _, run := range root.Tasks[i].Runs {
			if root.Tasks[i].Task == taskID(part) && !run.IsInline() {
				runs = append(runs, run)
			}
		}
	}
	from, to := int64(0), int64(len(w.disk.files[h.Root.Path].data))
	d.file = h.Root.Path
	if n := len(runs); n > 0 && d.rng.IntN(4) > 0 {
		run := runs[d.rng.IntN(n)]
		d.file, from, to = run.File, run.Offset, run.Offset+run.Length
	}
	d.spoil(w, from+d.rng.Int64N(to-from))
	for i := range g.committed {
		if h, err := snapshot.ParseHandle(g.committed[i].metadata); err == nil && !d.opens(w, h, i) {
			handle(i)
		}
	}
}

// spoil deletes the file, cuts it, or flips a bit of a byte.
func (d *damage) spoil(w *world, at int64) {
	f := *w.disk.files[d.file]
	switch d.rng.IntN(3) {
	case 0:
		w.tracef(nil, "FAULT: %s is gone", d.file)
		delete(w.disk.files, d.file)
		d.harmed = func(snapshot.RunRef) bool { return true }
		return
	case 1:
		w.tracef(nil, "FAULT: %s is cut to %d bytes", d.file, at)
		f.data = f.data[:at]
		d.harmed = func(snapshot.RunRef) bool { return true }
	default:
		w.tracef(nil, "FAULT: a bit of byte %d of %s is another one", at, d.file)
		f.data = slices.Clone(f.data)
		f.data[at] ^= 1 << d.rng.IntN(8)
		d.harmed = func(run snapshot.RunRef) bool { return at >= run.Offset && at < run.Offset+run.Length }
	}
	w.disk.files[d.file] = &f
}

// opens reports whether a task can be restored from a root in spite of the damage.
func (d *damage) opens(w *world, h snapshot.Handle, part int) bool {
	if h.Root.Path == d.file {
		return false
	}
	root, err := w.check.repo.ReadRoot(context.Background(), h.Root)
	return err == nil && !d.spoiled(root, func(e *snapshot.TaskEntry) bool { return e.Task == taskID(part) })
}

// spoiled reports whether a run of some tasks of a root is damaged.
func (d *damage) spoiled(root *snapshot.Root, of func(*snapshot.TaskEntry) bool) bool {
	for i := range root.Tasks {
		e := &root.Tasks[i]
		if of(e) && slices.ContainsFunc(e.Runs, func(run snapshot.RunRef) bool { return !run.IsInline() && run.File == d.file && d.harmed(run) }) {
			return true
		}
	}
	return false
}

// skips reports whether a handle is one of those that cannot be verified.
func (d *damage) skips(o committed) bool {
	return d != nil && d.stage != recovered && d.broken[o.metadata]
}

// moved judges a change of the offsets while something is damaged, and reports that it is the way back.
func (d *damage) moved(w *world, before, after []committed) bool {
	if d == nil || d.stage == sound || d.stage == recovered {
		return false
	}
	back := false
	for i := range after {
		if d.broken[before[i].metadata] && before[i].metadata != after[i].metadata {
			if d.stage == refusing {
				w.violation("I17", "in/%d goes on at %d without %s, and nobody was asked", i, after[i].offset, d.what())
				return false
			}
			back = true
		}
	}
	if !back {
		return false
	}
	for i, way := range d.way {
		if i < len(after) && (way == nil || after[i].offset != way.offset) {
			w.violation("I17", "in/%d goes back to %d, the newest checkpoints that are whole: %s", i, after[i].offset, d.ways())
			return false
		}
	}
	d.goneBack(w)
	return true
}

// goneBack lets the checker follow: behind what is in the outputs by now the counts go on from where the partitions stand.
func (d *damage) goneBack(w *world) {
	d.stage = recovered
	w.counts.Recovered++
	for _, l := range w.broker.out {
		l.again, l.back = len(l.entries), map[byte]int64{}
	}
	for i := range w.broker.in {
		then := w.check.fold(i, d.way[i].offset)
		for k := range w.check.fold(i, int64(len(w.broker.in[i].recs))) {
			w.broker.out[int(k)%markerPartition].back[k] = then[k]
		}
	}
	for _, p := range w.procs {
		p.recover = false // offsets are valid again: the wish means nothing
	}
	for _, name := range w.names {
		w.outside(nil, w.lag(5*time.Millisecond), kSupervise, func() { w.supervise(name) })
	}
}

// attended reports that it is for a person to start processes. One that dies on its way back is started again as it was.
func (d *damage) attended(w *world) bool {
	return d != nil && (d.stage == refusing || d.stage == recovering && len(w.procs) > 0)
}

// refused takes the end of a process that refuses to start, and reports that it had to.
func (d *damage) refused(p *process, err error) bool {
	w := p.w
	if d == nil || d.stage == sound || d.stage == recovered || !refusal(err) {
		return false
	}
	if p.refused {
		return true
	}
	p.refused = true
	w.counts.Refused++
	text := err.Error()
	switch {
	case d.stage == refusing && d.file != "" && !strings.Contains(text, d.file):
		w.violation("I17", "%s refuses and does not name %s: %v", p.label, d.file, err)
	case d.stage == refusing && len(w.procs) == 0:
		d.recover(w)
	case d.stage == refusing:
	case strings.Contains(text, "the store has no committed checkpoint of") && slices.Contains(d.way[:w.cfg.Partitions], nil):
		w.counts.NoWayBack++
		w.stopped = true
	case deletes(text) && !d.deleted:
		clear(d.broken)
		d.broken[""], d.deleted = true, true
		for i := range w.broker.group.committed {
			w.broker.group.committed[i] = committed{}
		}
		d.recover(w)
	default:
		w.violation("I17", "%s does not go back, %s: %v", p.label, d.ways(), err)
	}
	return true
}

// deletes reports whether a message says that the offsets have to be deleted.
func deletes(text string) bool {
	return strings.Contains(text, "delete all offsets of group "+application) || strings.Contains(text, "delete the group's offsets")
}

// recover starts one process that is to go back to the store, when the group knows nobody any more.
func (d *damage) recover(w *world) {
	d.stage = recovering
	infos, err := w.check.repo.List(context.Background())
	if err != nil {
		w.violation("I17", "the directory cannot be listed: %v", err)
		return
	}
	for i := range w.broker.in {
		d.way[i] = nil
		for _, was := range w.check.history[i] {
			j := slices.IndexFunc(infos, func(info snapshot.RootInfo) bool {
				return info.Ref.Path == was.path && info.Committed && info.Err == nil
			})
			if j >= 0 && !d.spoiled(infos[j].Root, func(*snapshot.TaskEntry) bool { return true }) {
				d.way[i] = &was
			}
		}
	}
	w.start(w.names[0], 2*sessionTimeout)
	if d.rng.IntN(2) == 0 {
		w.faults.crash = &crashPoint{match: recoveryKinds[d.rng.IntN(len(recoveryKinds))], before: d.rng.IntN(2) == 0, power: d.rng.IntN(2) == 0, keep: 1}
		w.tracef(nil, "FAULT: crash at the next %s (before: %v)", w.faults.crash.match, w.faults.crash.before)
	}
}

// recoveryKinds are the steps of a recovery at which it is worth dying.
var recoveryKinds = [...]kind{kWrite, kFsync, kLink, kSyncDir, kRestore, kSend, kReply, kApplyInit, kApplyOffsets, kApplyEnd, kLoop}

// ways says where the partitions are to go back to.
func (d *damage) ways() string {
	s := ""
	for i, way := range d.way {
		if way != nil {
			s += fmt.Sprintf("in/%d at %d (%s) ", i, way.offset, way.path)
		}
	}
	return s
}
