package sim

import (
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// faultPlan holds what is to go wrong: at times that were drawn, and at the next step of a kind.
type faultPlan struct {
	left    int // faults that have not happened yet
	net     []netFault
	crash   *crashPoint
	hasty   int // revokes that get next to no time
	slow    int // transactions whose markers take long
	horizon time.Duration
}

// netFault waits for the next requests of a kind.
type netFault struct {
	kind  netKind
	match kind // kRequest = any that can be repeated
	code  int16
	count int
	p     *process // nil = whoever comes
}

// crashPoint waits for a step of a kind; the process that does it, or for which the broker does it, dies before or
// after, or stands still there.
type crashPoint struct {
	match  kind
	before bool
	power  bool
	keep   float64
	pause  time.Duration // not 0: it does not die
	bounce bool          // nor with this: a partition goes to another member and comes back
}

// planFaults draws at least five faults.
func (w *world) planFaults() {
	f := &w.faults
	if w.cfg.script != nil {
		return
	}
	if w.cfg.directives != nil {
		w.healAt = 150 * time.Millisecond
		return
	}
	f.horizon = 50*time.Millisecond + w.lag(60*time.Millisecond)
	f.left = 5 + w.rng.IntN(5)
	if w.long { // so long that what instances have left becomes old
		f.horizon = cleanGrace + w.lag(200*time.Millisecond)
		f.left += 4
	}
	w.healAt = f.horizon
	for range f.left {
		w.outside(nil, w.lag(f.horizon), kFault, func() {
			f.left--
			w.counts.Faults++
			w.strike()
		})
	}
}

// keeps are the shares of unsynced data that a loss of power leaves.
var keeps = [...]float64{0, 0.5, 1}

// crashKinds are the steps at which it is worth dying.
var crashKinds = [...]kind{kFsync, kLink, kSyncDir, kWrite, kApplyEnd, kApplyEnd, kApplyOffsets, kApplyInit, kApplyProduce, kLoop, kTask,
	kRestore, kDelete, kWorker, kCommit, kReply, kApplyFetchOffsets, kSend}

// strike makes one fault.
func (w *world) strike() {
	f := &w.faults
	p := w.victim()
	keep := keeps[w.rng.IntN(3)]
	switch n := w.rng.IntN(24); {
	case n < 2 && p != nil:
		p.die(w.chance(60), keep)
	case n < 6 && f.crash == nil:
		f.crash = &crashPoint{match: crashKinds[w.rng.IntN(len(crashKinds))], before: w.chance(50), power: w.chance(60), keep: keep}
		w.tracef(nil, "FAULT: crash at the next %s (before: %v)", f.crash.match, f.crash.before)
	case n < 7 && p != nil:
		w.pause(p)
	case n < 9 && f.crash == nil:
		w.armPause()
	case n < 14:
		w.strikeNetwork()
	case n < 15:
		w.strikeDisk()
	case n < 17:
		f.slow += 1 + w.rng.IntN(3)
		w.tracef(nil, "FAULT: markers take long")
	case n < 18 && p != nil && !p.draining:
		p.draining = true
		w.tracef(p, "FAULT: asked to stop")
		if a := p.attempt; a != nil {
			a.wakeLoop()
		} else {
			p.next(0)
		}
	case n < 21 && f.crash == nil && w.cfg.Instances > 1:
		f.crash = &crashPoint{match: [...]kind{kCommit, kRestore, kRestore}[w.rng.IntN(3)], before: true, bounce: true}
		w.tracef(nil, "FAULT: at the next %s a partition goes away and comes back", f.crash.match)
	case w.broker.group.move():
		w.tracef(nil, "FAULT: a partition moves to another member")
		if w.chance(60) { // at a bad moment: in the middle of a commit
			w.arm(netFault{kind: netCode, match: kApplyOffsets, code: kerr.NotCoordinator.Code, count: 2 + w.rng.IntN(5)})
		}
	default:
		w.strikeNetwork()
	}
}

// victim draws a process, rather one that works.
func (w *world) victim() *process {
	if len(w.procs) == 0 {
		return nil
	}
	p := w.procs[w.rng.IntN(len(w.procs))]
	for _, o := range w.procs {
		if o.attempt != nil && w.chance(60) {
			p = o
		}
	}
	return p
}

// pause stops a process as SIGSTOP does, from a hiccup up to beyond session and transaction. Sometimes another process
// takes its place meanwhile, so that it is a zombie when it wakes.
func (w *world) pause(p *process) {
	w.halt(p, []time.Duration{5, 20, 70, 110, 250}[w.rng.IntN(5)]*time.Millisecond, 40)
}

// halt stops a process; with some chance another one is started in its place meanwhile.
func (w *world) halt(p *process, d time.Duration, replaced int) {
	p.pausedUntil = max(p.pausedUntil, w.now+d)
	w.tracef(p, "FAULT: stands still for %v", d)
	if w.chance(replaced) {
		w.outside(nil, w.lag(10*time.Millisecond), kSupervise, func() {
			if !p.dead && p.pausedUntil > w.now {
				w.supervise(p.name)
			}
		})
	}
}

// armPause lets a process become a zombie in the middle of a commit: it stands still until its session is over and
// somebody else owns the partitions.
func (w *world) armPause() {
	at := [...]kind{kCommit, kCommit, kCommit, kApplyOffsets, kApplyEnd, kApplyEnd, kSyncDir, kWrite, kDelete, kApplyProduce, kApplyFetchOffsets}
	c := &crashPoint{match: at[w.rng.IntN(len(at))], pause: 60*time.Millisecond + w.lag(90*time.Millisecond)}
	if w.chance(40) {
		c.pause = 15*time.Millisecond + w.lag(30*time.Millisecond) // only a twin takes over so fast
	}
	c.before = c.match == kCommit
	w.faults.crash = c
	if w.chance(50) {
		w.faults.slow++
	}
	w.tracef(nil, "FAULT: stands still for %v at the next %s", c.pause, c.match)
}

// strikeNetwork lets one request, or a few, go wrong.
func (w *world) strikeNetwork() {
	targets := [...]kind{kApplyEnd, kApplyEnd, kApplyEnd, kApplyOffsets, kApplyOffsets, kApplyProduce, kApplyProduce, kApplyInit, kApplyFetchOffsets, kApplyFetch}
	f := netFault{kind: netKind(1 + w.rng.IntN(int(netCode))), match: targets[w.rng.IntN(len(targets))], count: 1}
	if f.match == kApplyEnd && w.chance(40) {
		f.kind = netLoseReply // the classic: committed, and nobody knows
	}
	switch {
	case f.kind == netLoseRequest, f.kind == netLoseReply, f.kind == netLate:
		if f.match == kApplyProduce {
			f.count = 1 + w.rng.IntN(maxTries+1) // few are repeated, many fail the record
		}
	case f.kind == netCode:
		f.count = 1 + w.rng.IntN(6)
		f.code = kerr.NotCoordinator.Code
		if f.match != kApplyFetchOffsets && w.chance(50) {
			f.code = kerr.ConcurrentTransactions.Code
		}
		if f.match == kApplyFetch {
			f.match = kApplyOffsets
		}
	}
	w.arm(f)
}

func (w *world) arm(f netFault) {
	w.tracef(nil, "FAULT: %s, the next %d of %s", f.kind, f.count, f.match)
	w.faults.net = append(w.faults.net, f)
}

// strikeDisk lets writes fail or take long.
func (w *world) strikeDisk() {
	d := w.disk
	switch w.rng.IntN(3) {
	case 0:
		d.full += 1 + w.rng.IntN(2)
	case 1:
		d.broken += 1 + w.rng.IntN(2)
	case 2:
		d.slow++
	}
	w.tracef(nil, "FAULT: disk: full %d, broken %d, slow %d", d.full, d.broken, d.slow)
}

// take gives the fault that a request meets.
func (f *faultPlan) take(p *process, k kind) netFault {
	for i := range f.net {
		if n := &f.net[i]; n.match == k && n.count > 0 && (n.p == nil || n.p == p) {
			n.count--
			return *n
		}
	}
	return netFault{}
}

// markerLag is how long the markers of a transaction may take.
func (f *faultPlan) markerLag() time.Duration {
	if f.slow > 0 {
		f.slow--
		return 60 * time.Millisecond
	}
	return 1500 * time.Microsecond
}

// bounce takes a partition from a process that is about to commit, while the coordinator keeps refusing the offsets, or
// that restores a state, which takes long. As soon as the next owner has committed the partition, it comes back. It
// reports that the step does not happen yet.
func (w *world) bounce(it *work) bool {
	g, p := w.broker.group, it.p
	for i := range w.cfg.Partitions {
		if it.kind == kRestore && !p.attempt.onTheWay().has(i) {
			continue
		}
		if g.owner[i] == nil || g.owner[i].id != p.member || !g.moveOne(i) {
			continue
		}
		w.tracef(p, "FAULT: in/%d goes away and comes back", i)
		g.back[i] = p.name
		w.faults.hasty++
		if it.kind == kRestore {
			it.at = w.now + 60*time.Millisecond + w.lag(100*time.Millisecond)
			w.push(*it)
			w.wait = max(w.wait, it.at+30*time.Millisecond)
			return true
		}
		w.arm(netFault{kind: netCode, match: kApplyOffsets, code: kerr.NotCoordinator.Code, count: 5 + w.rng.IntN(3), p: p})
		return false
	}
	return false
}

func (f *faultPlan) disarm() { f.net, f.crash, f.slow = nil, nil, 0 }

// crashHere lets the process of a step die before or after it, and reports that the step does not happen.
func (w *world) crashHere(it *work, before bool) bool {
	if w.cfg.script != nil {
		return w.scriptedCrash(it, before)
	}
	if w.cfg.directives != nil {
		w.lastBefore = before
		return w.direct(it, before)
	}
	c := w.faults.crash
	if c == nil || c.match != it.kind || c.before != before || it.p == nil || it.p.dead {
		return false
	}
	w.faults.crash = nil
	if c.bounce {
		return w.bounce(it)
	}
	if c.pause > 0 {
		w.halt(it.p, c.pause, 50)
		if !it.bound || !before {
			return false
		}
		it.at = it.p.pausedUntil
		w.push(*it)
		return true
	}
	it.p.die(c.power, c.keep)
	return it.bound && before
}
