package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
)

// CleanReport says what Clean or CleanGone did.
type CleanReport struct {
	Retained     []element.CheckpointName // Clean: checkpoints of this instance that are kept as committed, newest first
	Gone         []string                 // CleanGone: instances whose directory is empty now and removed
	Deleted      int                      // files
	DeletedBytes int64
	KeptBytes    int64 // of the files that were judged: this instance's, or those of the instances that are gone
}

// Clean deletes what nothing needs of this instance's files. Kept are, of every task, the NumRetained newest committed
// checkpoints of all instances, and the one that the newest follows if NumRetained is above 1; those that hold a task of
// which no newer one is known to be committed (it moved, and its new owner has not committed yet); everything newer than the newest that this process committed, and that one itself;
// everything that those roots, the roots of other instances (a partition that moved takes its chain along) and the roots
// in committed name; merged runs that no committed root names yet; and the files of a successor, if this process was
// replaced and goes on for a while.
//
// Ids are compared within the history of one task, where they grow whichever instance it lives on, and within what this
// process wrote. Others mean nothing to each other: an instance that starts again with other tasks may begin far below
// where it was, and a task of the same name in another cluster, or of another topic, is another one, and one of another name that
// reads the same is the same (lineage). Roots of other
// clusters are always kept.
//
// committed holds the roots that the group's committed handles name, as far as the caller knows them; those of this
// instance count as committed without a marker. They must have been read before the call. group is asked where the roots do
// not tell enough, see decide. When it cannot be asked, data without a root stays; when a root or a marker cannot be read,
// nothing is deleted; where records may repeat (Config.Repeats), when the group cannot be asked neither. The error says why. Files that are not ours are not touched. What is left of interrupted writes goes too.
//
// Why it is safe while tasks move between the others: see decide.
func (r *Repository) Clean(ctx context.Context, committed []RootRef, group GroupRoots) (CleanReport, error) {
	c, err := r.newCleaner(ctx)
	if err != nil {
		return CleanReport{}, err
	}
	c.own, c.group = r.dir, group
	if err = c.loadAll(committed); err != nil {
		return CleanReport{}, fmt.Errorf("nothing is deleted: %w", err)
	}
	rep, err := c.carryOut()
	if err != nil && !errors.Is(err, errUnanswered) {
		return rep, err
	}
	if _, swept := r.st.Sweep(ctx, r.dir+"/"); swept != nil { // of writes whose own cleaning up failed
		return rep, swept
	}
	return rep, err
}

// cleaner decides completely before the first deletion.
type cleaner struct {
	r         *Repository
	ctx       context.Context
	own       string               // Clean, CleanFailed: this instance's directory, whose roots nobody else removes while it lives
	group     GroupRoots           // asked after the first listing
	first     *inventory           // what may be deleted is in it
	roots     map[string]cleanRoot // all that were read, by path
	committed map[string]bool      // paths of roots
	needed    map[string]bool      // files
	named     []string             // paths of the roots that handles name

	// ids of the committed roots of each task that reads a partition, of all instances, newest first
	ids      map[lineage][]element.CheckpointID
	followed map[string]bool      // paths of the roots that the newest of a task follow, or newest
	newest   element.CheckpointID // that this process committed
	report   CleanReport

	// started: CleanFailed or, where unrooted says so, CleanUnrooted. handles has the id that the committed handle of each task names, here that of the newest committed
	// root of this directory.
	started, unrooted bool
	handles           map[lineage]element.CheckpointID
	absent            map[string]bool // inputs of the tasks without a committed offset
	origin            []SavepointRef  // that these start from
	here              map[lineage]element.CheckpointID
}

type cleanRoot struct {
	ref  RootRef
	root *Root
}

// newCleaner lists, before any root is read: what appears later is not judged. What this process has committed is noted before
// that: what is in progress in the listing must not look finished because it is committed before it is judged.
func (r *Repository) newCleaner(ctx context.Context) (*cleaner, error) {
	r.mu.Lock()
	newest := r.newest
	r.mu.Unlock()
	inv, err := r.inventory(ctx)
	return &cleaner{
		r: r, ctx: ctx, first: inv, newest: newest, roots: map[string]cleanRoot{}, committed: map[string]bool{}, needed: map[string]bool{},
		ids: map[lineage][]element.CheckpointID{}, followed: map[string]bool{}, here: map[lineage]element.CheckpointID{},
	}, err
}

// need keeps a root and all that it names.
func (c *cleaner) need(path string) {
	c.needed[path] = true
	markFiles(c.roots[path].root, c.needed)
}

// markFiles puts the files that a root names into a set.
func markFiles(root *Root, set map[string]bool) {
	for i := range root.Tasks {
		for file := range root.Tasks[i].files() {
			set[file] = true
		}
	}
}

// judgeCommitted finds the committed roots that have no marker, and notes the committed ids of every task, anew each time.
func (c *cleaner) judgeCommitted() {
	clear(c.ids)
	clear(c.here)
	for path := range c.roots {
		for c.committed[path] {
			pred := c.roots[path].root.Predecessor
			if pred == nil || c.committed[pred.Path] || c.roots[pred.Path].root == nil {
				break
			}
			path = pred.Path
			c.committed[path] = true
		}
	}
	for path := range c.committed {
		r := c.roots[path]
		mine := parseFilePath(path).dir == c.r.dir
		for id := range r.root.sourceTasks() {
			c.ids[id] = append(c.ids[id], r.ref.Name.ID)
			if mine {
				c.here[id] = max(c.here[id], r.ref.Name.ID)
			}
		}
		if mine && c.r.writes(r.ref.Name) {
			c.newest = max(c.newest, r.ref.Name.ID)
		}
	}
	for _, ids := range c.ids {
		slices.SortFunc(ids, func(a, b element.CheckpointID) int { return cmp.Compare(b, a) })
	}
	clear(c.followed)
	for path := range c.committed {
		r := c.roots[path]
		last := c.r.repeats && parseFilePath(path).dir == c.r.dir && c.r.writes(r.ref.Name) && r.ref.Name.ID == c.newest
		if r.root.Predecessor != nil && (last || r.root.anySource(c.newestOf(r))) {
			c.followed[r.root.Predecessor.Path] = true
		}
	}
}

// newestOf reports of tasks whether a root is their newest committed one.
func (c *cleaner) newestOf(r cleanRoot) func(lineage) bool {
	return func(h lineage) bool { return c.ids[h][0] == r.ref.Name.ID }
}

// judgeOwn marks the files that are needed.
func (c *cleaner) judgeOwn() {
	c.report = CleanReport{}
	mine := map[string]bool{} // of the first listing
	for _, in := range c.first.instances {
		if in.dir != c.r.dir {
			continue
		}
		for _, p := range in.roots { // newest first
			path := p.String()
			mine[path] = true
			switch retained := c.retained(path); {
			case c.roots[path].root == nil: // discarded meanwhile
			case retained:
				c.report.Retained = append(c.report.Retained, p.name)
				c.need(path)
			case c.unrooted, c.started && !c.dead(p):
				c.need(path)
			case c.failed(path):
			case c.started && !c.outlived(path):
				c.need(path)
			case c.r.writes(p.name) && p.name.ID >= c.newest, !c.r.owns(p.name), c.unsettled(path), c.otherCluster(path):
				c.need(path)
			}
		}
	}
	for path := range c.roots {
		if !mine[path] {
			c.need(path) // the other instance decides what of it goes
		}
	}
}

// retained reports whether a root is one of the NumRetained newest committed ones of one of its tasks. Where these are several, so
// is the one that the newest follows: where records may repeat, a delayed copy of its commit may set the group back to it, and
// if one has done so before, what was committed in between has an id above it. So is the one that the newest which this process has
// committed follows: a newer root of its tasks may be committed for others only, where the offsets of one have come in part.
func (c *cleaner) retained(path string) bool {
	switch {
	case !c.committed[path]:
		return false
	case c.r.retain > 1 && c.followed[path]:
		return true
	}
	r := c.roots[path]
	return r.root.anySource(func(h lineage) bool {
		ids := c.ids[h]
		return len(ids) <= c.r.retain || ids[c.r.retain-1] <= r.ref.Name.ID
	})
}

// unsettled reports whether a root that is not known to be committed may be the newest committed one of a task: the marker
// may be missing. A committed root of the same id or a newer one settles it: its process started from the newest
// committed one and took an id above that.
func (c *cleaner) unsettled(path string) bool {
	r := c.roots[path]
	return !c.committed[path] && r.root.anySource(func(h lineage) bool {
		ids := c.ids[h]
		return len(ids) == 0 || ids[0] < r.ref.Name.ID
	})
}

// otherCluster reports whether a root is of another cluster than this instance's: its handles are not known here.
func (c *cleaner) otherCluster(path string) bool {
	return c.r.cluster != "" && c.roots[path].root.ClusterID != c.r.cluster
}

// settleMerged protects merged runs, drops those that a committed root of ours names by now, and leaves the kept
// roots for the next time.
func (c *cleaner) settleMerged() {
	named, parsed := map[string]bool{}, map[string]cleanRoot{}
	for path, r := range c.roots {
		if !c.needed[path] {
			continue
		}
		parsed[path] = r
		if p := parseFilePath(path); p.dir == c.r.dir && c.committed[path] {
			markFiles(r.root, named)
		}
	}
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	for task, path := range c.r.merged {
		if named[path] {
			delete(c.r.merged, task)
		}
		c.needed[path] = true
	}
	c.r.parsed = parsed
}

// judgeFiles condemns this instance's files that are neither needed nor part of what this process has in progress, nor of
// an incarnation that came after this one: a successor's merged run is named by no root yet, and only the successor
// knows of it.
func (c *cleaner) judgeFiles() *cleanPlan {
	plan := &cleanPlan{}
	for _, in := range c.first.instances {
		if in.dir != c.r.dir {
			continue
		}
		for _, f := range in.all {
			p := parseFilePath(f.Name)
			switch {
			case c.needed[p.rootOfMarker().String()], !c.r.owns(p.name), c.inProgress(p):
				c.report.KeptBytes += f.Length
			default:
				plan.add(p, f)
			}
		}
	}
	plan.report = c.report
	return plan
}

// rootOfMarker gives the root beside a marker, which lives as long as that; of other files themselves.
func (p filePath) rootOfMarker() filePath {
	if p.kind == markerFile {
		p.kind = rootFile
	}
	return p
}

// cleanPlan is what goes. Markers go first, then, when they are gone for good, the roots, and when these are, the data: what
// an interruption leaves is never a root whose runs are gone, nor a marker without its root, which is what a lost root
// looks like.
type cleanPlan struct {
	report               CleanReport
	markers, roots, data []FileInfo
}

func (p *cleanPlan) add(path filePath, f FileInfo) {
	switch path.kind {
	case rootFile:
		p.roots = append(p.roots, f)
	case markerFile:
		p.markers = append(p.markers, f)
	default:
		p.data = append(p.data, f)
	}
}

// deleteAll carries a plan out, the oldest first.
func (r *Repository) deleteAll(ctx context.Context, plan *cleanPlan) (CleanReport, error) {
	rep := plan.report
	r.mu.Lock()
	clear(r.files) // others may delete too: look again
	r.mu.Unlock()
	listed := map[string]bool{}
	for _, f := range plan.markers {
		listed[f.Name] = true
	}
	for i, files := range [][]FileInfo{plan.markers, plan.roots, plan.data} {
		slices.SortStableFunc(files, func(a, b FileInfo) int { return compareNames(parseFilePath(a.Name).name, parseFilePath(b.Name).name) })
		for _, f := range files {
			if err := failpoint.Err(failpoint.CleanBefore); err != nil {
				return rep, err
			}
			if err := r.st.Delete(ctx, f.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return rep, err
			}
			if i == 1 {
				if err := r.deleteLateMarker(ctx, f, listed); err != nil {
					return rep, err
				}
			}
			rep.Deleted++
			rep.DeletedBytes += f.Length
			if err := failpoint.Err(failpoint.CleanAfter); err != nil {
				return rep, err
			}
		}
		if i == 2 {
			break // data that comes back is removed again
		}
		if err := r.syncRemovals(ctx, files); err != nil {
			return rep, err
		}
	}
	return rep, nil
}

// deleteLateMarker removes the marker that was written beside a root since the listing. Who writes one later finds that the
// root is gone. That the call is over when the root has just gone must not leave one: it would stand for a lost root.
func (r *Repository) deleteLateMarker(ctx context.Context, root FileInfo, listed map[string]bool) error {
	p := parseFilePath(root.Name)
	p.kind = markerFile
	marker := p.String()
	if listed[marker] {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateMarkerTimeout)
	defer cancel()
	if err := r.st.Delete(ctx, marker); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// lateMarkerTimeout bounds a removal that goes on behind the end of the call.
const lateMarkerTimeout = 5 * time.Second

// syncRemovals makes the removal of files durable.
func (r *Repository) syncRemovals(ctx context.Context, files []FileInfo) error {
	st, ok := r.st.(Directories)
	synced := map[string]bool{}
	for _, f := range files {
		dir := f.Name[:strings.LastIndexByte(f.Name, '/')+1]
		if !ok || synced[dir] {
			continue
		}
		synced[dir] = true
		if err := st.SyncDir(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}
