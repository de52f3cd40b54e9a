package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// savepoints is what some runs have behind their end: a savepoint is cut while records come, more are processed behind it, and
// everybody dies. Who comes up then starts from it, and so does who comes after a crash: the flag stays. Positions and states are
// those of the savepoint, what was put out behind it is put out once more, and from there on all is exact. Of what was committed
// before nothing is left, or the files, or all.
type savepoints struct {
	rng     *rand.Rand
	stage   savepointStage
	asked   int // how many times; parts of different requests are no savepoint
	parts   []*snapshot.Savepoint
	saved   [maxPartitions]*saved
	left    keptBack
	crashes int  // that are still to come
	begun   mask // the partitions that have a checkpoint since
	from    int  // the step at which everybody starts from it
}

type savepointStage int

const (
	unsaved savepointStage = iota
	saving
	behind
	importing
)

// keptBack is what is left of what the group and the directory had.
type keptBack int

const (
	keptAll keptBack = iota
	keptFiles
	keptNothing // as after a reset, and as a fork has it: the start is without the consent that outputs repeat
)

// String names it.
func (k keptBack) String() string {
	return [...]string{"with all that was committed", "without offsets", "without anything"}[k]
}

// saved is what a savepoint has of a partition.
type saved struct {
	offset int64
	state  map[byte]int64
}

// savepointEvery is how many runs there are to one that has it.
const savepointEvery = 8

// drawSavepoints decides whether a run has it, with dice of its own: runs without an exchange, and without another ending.
func (w *world) drawSavepoints() {
	s := newSavepoints(w.cfg.Seed, 0)
	if w.x == nil && w.rest == nil && w.damage == nil && s.rng.IntN(savepointEvery) == 0 {
		s.left, s.crashes = keptBack(s.rng.IntN(3)), s.rng.IntN(4)
		w.saves = s
	}
}

func newSavepoints(seed uint64, left keptBack) *savepoints {
	return &savepoints{rng: rand.New(rand.NewPCG(seed, 0x73617665)), left: left}
}

// over goes on where all is quiet, and reports that it has come to its end.
func (s *savepoints) over(w *world) bool {
	switch s.stage {
	case unsaved:
		s.stage = saving
		w.broker.oneMore()
		s.ask(w)
	case behind:
		s.restart(w)
	case importing:
		return true // see unfinished
	}
	return false
}

// unfinished reports that the offsets are still those from before.
func (s *savepoints) unfinished(w *world) bool {
	return s != nil && s.stage == importing && s.begun != 1<<w.cfg.Partitions-1
}

// request is the id of the present one.
func (s *savepoints) request() string { return fmt.Sprintf("request-%d", s.asked) }

// ask has every process cut a savepoint, and looks later whether it has come about: partitions may have moved meanwhile.
func (s *savepoints) ask(w *world) {
	s.asked++
	s.parts, s.saved = nil, [maxPartitions]*saved{}
	for _, p := range w.procs {
		w.do(p, w.lag(4*time.Millisecond), kLoop, func() {
			a := p.attempt
			if a == nil || !a.ready || a.over {
				return
			}
			if err := a.execute(a.co.RequestSavepoint(w.now, s.request())); err != nil {
				a.end(err)
				return
			}
			a.arm()
		})
	}
	if s.rng.IntN(2) == 0 {
		w.broker.oneMore()
	}
	w.outside(nil, sessionTimeout, kFault, func() {
		if s.stage == saving {
			s.ask(w)
		}
	})
}

// wanted reports whether a checkpoint serves the present request.
func (s *savepoints) wanted(ids []string) bool {
	return s != nil && s.stage == saving && slices.Contains(ids, s.request())
}

// cut takes the part of an instance, when its checkpoint is committed. Its state has to be that of the positions.
func (s *savepoints) cut(a *attempt, p *pending) {
	w := a.p.w
	if s == nil || !p.saves || s.stage != saving {
		return
	}
	root := &snapshot.Root{Name: p.name, Application: application, Instance: a.p.name, ClusterID: clusterID, StoreID: a.p.repo.StoreID()}
	for _, entry := range p.root.Tasks {
		ack, part := p.acks[entry.Task], entry.Task.Partition
		if s.saved[part] != nil {
			return // it has moved meanwhile: the next request
		}
		root.Tasks = append(root.Tasks, snapshot.TaskEntry{Task: entry.Task, Positions: []element.Position{ack.position}, States: stateInfo})
		s.saved[part] = &saved{ack.position.Offset, ack.frozen.full}
		if want := w.check.fold(int(part), ack.position.Offset); !equal(want, ack.frozen.full) {
			w.violation("I18", "the savepoint of checkpoint %v has %s of in/%d at %d, the inputs give %s", p.name, show(ack.frozen.full), part, ack.position.Offset, show(want))
		}
	}
	ref := snapshot.SavepointRef{ID: s.request(), Path: "/savepoints/savepoint-" + application + "-" + p.name.String()}
	binary.BigEndian.PutUint64(ref.Digest[:], uint64(p.name.Incarnation))
	binary.BigEndian.PutUint64(ref.Digest[8:], uint64(p.name.ID))
	s.parts = append(s.parts, &snapshot.Savepoint{Ref: ref, Root: root, Requests: []string{s.request()}})
	w.tracef(a.p, "  savepoint %v, part %d", p.name, len(s.parts))
	if !slices.Contains(s.saved[:w.cfg.Partitions], nil) {
		s.stage = behind
		for range 1 + s.rng.IntN(3) {
			w.broker.oneMore()
		}
	}
}

// restart has everybody start from the savepoint.
func (s *savepoints) restart(w *world) {
	w.everybodyDies()
	s.stage, s.from = importing, w.steps
	w.counts.SavepointStarts++
	w.tracef(nil, "START from the savepoint, %v", s.left)
	g := w.broker.group
	if s.left != keptAll {
		clear(g.committed)
		w.counts.SavepointForks++
	}
	if s.left == keptNothing {
		w.disk.ghosts = nil
		maps.DeleteFunc(w.disk.files, func(name string, _ *file) bool { return strings.HasPrefix(name, application+"/") })
		w.counts.SavepointResets++
	}
	clear(w.check.needed)
	for _, l := range w.broker.out {
		l.again, l.back = len(l.entries), map[byte]int64{}
	}
	for i := range w.broker.in {
		for k := range w.check.fold(i, int64(len(w.broker.in[i].recs))) {
			w.broker.out[int(k)%markerPartition].back[k] = s.saved[i].state[k]
		}
	}
	if s.rng.IntN(2) == 0 {
		w.broker.oneMore()
	}
	for _, name := range w.names {
		w.start(name, w.lag(2*sessionTimeout))
	}
	s.strike(w)
}

// importKinds are the steps of an import at which it is worth dying.
var importKinds = [...]kind{kWrite, kFsync, kLink, kSyncDir, kRestore, kSend, kReply, kApplyInit, kApplyProduce, kApplyOffsets, kApplyEnd, kLoop, kTask,
	kCommit, kApplyFetchOffsets, kDelete}

// strike has processes die or stand still at any step of the import, until the first checkpoints are committed.
func (s *savepoints) strike(w *world) {
	w.outside(nil, w.lag(sessionTimeout), kFault, func() {
		if s.crashes == 0 || !s.unfinished(w) {
			return
		}
		if w.faults.crash == nil {
			s.crashes--
			c := &crashPoint{match: importKinds[s.rng.IntN(len(importKinds))], before: s.rng.IntN(2) == 0, power: s.rng.IntN(2) == 0, keep: keeps[s.rng.IntN(3)]}
			if s.rng.IntN(4) == 0 {
				c.pause = time.Duration(20+s.rng.IntN(120)) * time.Millisecond
			}
			w.faults.crash = c
			w.tracef(nil, "FAULT: crash at the next %s (before: %v, pause %v)", c.match, c.before, c.pause)
		}
		s.strike(w)
	})
}

// moved judges the first change of the offsets since the start from the savepoint: of which partitions it is that.
func (s *savepoints) moved(w *world, before, after []committed) (back mask) {
	if s == nil || s.stage != importing {
		return 0
	}
	for i, o := range after {
		if s.begun.has(i) || o.metadata == before[i].metadata {
			continue
		}
		h, err := snapshot.ParseHandle(o.metadata)
		var root *snapshot.Root
		if err == nil {
			root, err = w.check.repo.ReadRoot(context.Background(), h.Root)
		}
		if err != nil || !snapshot.SameOrigin(root.Origin, snapshot.OriginOf(s.parts)) || o.offset < s.saved[i].offset {
			w.violation("I18", "in/%d goes on at %d (%v) and not from the savepoint at %d: %v", i, o.offset, h.Root.Name, s.saved[i].offset, err)
			return 0
		}
		back |= bit(i)
		w.counts.Imported++
	}
	s.begun |= back
	return back
}

// fetched judges where a partition is read before it has a checkpoint since.
func (s *savepoints) fetched(w *world, part int, from int64) {
	if s != nil && s.stage == importing && !s.begun.has(part) && from < s.saved[part].offset {
		w.violation("I18", "in/%d is read from %d, the savepoint stands at %d", part, from, s.saved[part].offset)
	}
}

// wish is what a process that starts now is told to start from.
func (s *savepoints) wish() *savepoints {
	if s == nil || s.stage != importing {
		return nil
	}
	return s
}
