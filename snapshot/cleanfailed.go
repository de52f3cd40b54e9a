package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/millweir/millweir/element"
)

// CleanFailed is Clean at the start of an attempt. Clean needs a commit, and on a volume that what failed has filled there
// never is one. facts are what a stable read gave for the tasks of the attempt, made after all transactional ids of this
// instance were made its own and nothing of an earlier attempt runs any more. With transactions only: without, a commit of
// an earlier attempt may be on its way still: see CleanUnrooted.
//
// Beyond what Clean removes go the roots that failed, and the data that lies there without a root. What is superseded goes
// when it is so by a root that is here (outlived). Only two kinds of files are judged at all: those that this process has
// written, and those that were there when the Repository was opened. Everything else of this directory appeared beside
// this process. It is somebody's who lives. group is asked where the roots do not tell enough, as for Clean.
//
// A root R failed if the handle of every task of it that reads a partition is known and names an older checkpoint. One that
// is not known, because its partition is another instance's or has no committed offset, keeps R: an offset may have expired. Where
// the tasks without one start from a savepoint now (origin), and R is of a start from there and not known to be committed, they
// count as older: ResolveFrom has passed R over, the start begins again, and R is of no use whatever becomes of it. All offsets
// of R are in one transaction, and the ids that a task's handle names grow, so one would do. Why R is not committed later either:
//
//	this process, earlier       commits R; no answer; Abort             -> outcome unknown, the client is given up
//	this process, now           initialises the id: the broker ends R's transaction, this way or the other, and refuses
//	                            what comes late; the stable read waits for the end. R committed: the handles name R, it
//	                            is not older, it stays. R aborted: nobody has a transaction with it any more.
//	this process, earlier       Abort was answered                      -> the client stays, R's transaction is over
//	this process, earlier       never came to the Permit of R           -> nobody but this process knows R's handle
//
//	predecessor, killed         had sent R's commit: as above, the ids are the same. Had not: nobody does it
//	predecessor, stopped        wrote R before the Repository was opened
//	  this process              joins the group in its place, initialises the ids, reads
//	  predecessor, wakes up     commits R: the transactional id has been fenced, and the broker knows neither the member nor
//	                            the generation any more. The first suffices where it has as many ids as this process, the
//	                            second always. To go on it begins again, at the committed handle: with another checkpoint
//
// And why nobody else needs what goes: what R's runs lead to is led to by R alone. A successor of R exists only where R is
// committed; checkpoints that were in flight behind R were given up with it; another instance takes over what the
// committed handle names. Where a root of whatever instance does name a run of R, it is needed as it is for Clean.
//
// Data without a root is judged by the same order. Its root is written before the commit, and the listing is made after the
// read: a root that is not there now was not committed by the transactions that the ids were taken from, and those to
// come are of this process. That it was committed, superseded and removed is possible; then what of its data is in use is
// named by other roots. A merged run of a predecessor goes as well: this process has replaced it in the group, and who comes
// back names none that it had (Merge). One of this process that is still to be used is known (Forget).
//
// A data file that has a marker but no root stays: that root is lost, and it is not for this call to bury the rest.
func (r *Repository) CleanFailed(ctx context.Context, facts []TaskFacts, group GroupRoots, origin ...SavepointRef) (CleanReport, error) {
	return r.cleanFailed(ctx, facts, group, false, origin)
}

// CleanUnrooted is CleanFailed without transactions: facts are what was read after this instance had joined the group. All roots
// that are there stay, for the commit of one may be on its way, and everything that they name. Data without a root goes: whoever
// sends a commit has written the root before, so none of those that are on the way names this data. One that is still to be sent, by a
// predecessor that wakes up and writes the root now, is refused: its member is not in the group any more. And
// what was committed, superseded and removed shares its data only with roots that are here.
func (r *Repository) CleanUnrooted(ctx context.Context, facts []TaskFacts, group GroupRoots) (CleanReport, error) {
	return r.cleanFailed(ctx, facts, group, true, nil)
}

func (r *Repository) cleanFailed(ctx context.Context, facts []TaskFacts, group GroupRoots, unrooted bool, origin []SavepointRef) (CleanReport, error) {
	c, err := r.newCleaner(ctx)
	if err != nil {
		return CleanReport{}, err
	}
	c.own, c.group, c.started, c.unrooted, c.handles = r.dir, group, true, unrooted, map[lineage]element.CheckpointID{}
	c.origin, c.absent = origin, map[string]bool{}
	if err = c.loadAll(c.noteHandles(facts)); err != nil {
		return CleanReport{}, fmt.Errorf("nothing is deleted: %w", err)
	}
	if !c.leftovers() {
		return CleanReport{}, nil
	}
	return c.carryOut()
}

// noteHandles notes which checkpoint each committed handle names, and gives the roots. One that cannot be read, or leads to
// another directory, says nothing.
func (c *cleaner) noteHandles(facts []TaskFacts) (committed []RootRef) {
	for i := range facts {
		in := facts[i].Inputs
		if len(in) != 1 {
			continue
		}
		if !in[0].Found {
			c.absent[string(appendInput(nil, in[0].TopicID, in[0].Partition))] = true
			continue
		}
		h, err := ParseHandle(in[0].Metadata)
		if err != nil || h.StoreID != c.r.storeID {
			continue
		}
		c.handles[h.lineage()] = h.Root.Name.ID
		if h.Kind == HandleCheckpoint && !slices.Contains(committed, h.Root) {
			committed = append(committed, h.Root)
		}
	}
	return committed
}

// leftovers reports whether there is anything to judge: a start where the committed roots lead to all that is there reads no
// others.
func (c *cleaner) leftovers() bool {
	for _, in := range c.first.instances {
		if in.dir == c.own && slices.ContainsFunc(in.all, func(f FileInfo) bool {
			p := parseFilePath(f.Name)
			return c.dead(p) && !c.needed[p.rootOfMarker().String()] && !(c.unrooted && c.hasRoot(p))
		}) {
			return true
		}
	}
	return false
}

// hasRoot reports that a file was listed with the root of its checkpoint, or with its marker, so that CleanUnrooted leaves it. A merged
// run has the name of a checkpoint whose root knows nothing of it.
func (c *cleaner) hasRoot(p filePath) bool {
	if p.kind == fullFile {
		return false
	}
	p.kind = rootFile
	return c.first.marked[p.String()] || slices.ContainsFunc(c.first.instances, func(in instanceFiles) bool {
		return in.dir == p.dir && slices.Contains(in.roots, p)
	})
}

// dead reports that nobody is at work with a file at the start of an attempt.
func (c *cleaner) dead(p filePath) bool { return c.r.writes(p.name) || c.r.found[p.String()] }

// failed reports whether a root is surely not committed and never will be.
func (c *cleaner) failed(path string) bool {
	if !c.started || c.committed[path] || c.otherCluster(path) {
		return false
	}
	r, some := c.roots[path], false
	again := SameOrigin(c.origin, r.root.Origin)
	return !r.root.anySource(func(h lineage) bool {
		some = true
		id, ok := c.handles[h]
		return !ok && !(again && c.absent[h.inputs]) || id >= r.ref.Name.ID
	}) && some
}

// outlived reports whether a newer committed root of a task of this one is in this directory. Until then it stays, superseded
// or not, if it may be committed: without a root of its tasks other cleaners have to ask the group. Of those that outlive one
// another the last one stays.
func (c *cleaner) outlived(path string) bool {
	r := c.roots[path]
	return r.root.anySource(func(h lineage) bool { return c.here[h] > r.ref.Name.ID })
}

// inProgress reports whether a file that no root names, of an incarnation that is ours to clean up after, may be part of what
// is being written.
func (c *cleaner) inProgress(p filePath) bool {
	if !c.started {
		return c.r.writes(p.name) && p.name.ID > c.newest
	}
	root := p
	root.kind, root.task = rootFile, ""
	lost := c.roots[root.String()].root == nil && c.first.marked[root.String()]
	return !c.dead(p) || lost
}

// Discard removes what this process wrote for a checkpoint that was given up before its commit was begun: nobody else
// knows its name, and no other checkpoint builds on it. Nothing may be writing it any more. A checkpoint of which nothing is there
// is none of its business, and neither is one that has a marker.
func (r *Repository) Discard(ctx context.Context, name element.CheckpointName) (CleanReport, error) {
	if !r.writes(name) {
		return CleanReport{}, nil
	}
	marker, err := r.st.Open(ctx, filePath{dir: r.dir, kind: markerFile, name: name}.String())
	switch {
	case err == nil:
		marker.Close()
		return CleanReport{}, fmt.Errorf("discard %s: it is marked as committed", name)
	case !errors.Is(err, fs.ErrNotExist):
		return CleanReport{}, fmt.Errorf("discard %s: it stays, since its marker of a commit cannot be looked for: %w", name, err)
	}
	plan := &cleanPlan{}
	for _, kind := range []fileKind{rootFile, packFile} {
		p := filePath{dir: r.dir, kind: kind, name: name}
		o, err := r.st.Open(ctx, p.String())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return CleanReport{}, err
		}
		size, err := o.Size()
		o.Close()
		if err != nil {
			return CleanReport{}, err
		}
		plan.add(p, FileInfo{Name: p.String(), Length: size})
	}
	if len(plan.roots)+len(plan.data) == 0 {
		return CleanReport{}, nil
	}
	return r.deleteAll(ctx, plan)
}
