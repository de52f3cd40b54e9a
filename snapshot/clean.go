package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
)

// CleanReport says what Clean did.
type CleanReport struct {
	Retained     []element.CheckpointName // checkpoints of this instance that are kept as committed, newest first
	Deleted      int                      // files
	DeletedBytes int64
	KeptBytes    int64 // of this instance's files
}

// Clean deletes what nothing needs of this instance's files. Kept are: the NumRetained newest committed checkpoints;
// everything newer than the newest committed one; older ones that hold a task for which no newer committed root of
// any instance exists (it moved, and its new owner has not committed yet); everything that those roots, the roots of
// other instances (a partition that moved takes its chain along) and the roots in committed name; merged runs
// that no committed root names yet; and the files of a successor, if this process was replaced and goes on for a while.
//
// committed holds the roots that the group's committed handles name, as far as the caller knows them; those of this
// instance count as committed without a marker. They must have been read before the call. When a root or a marker
// cannot be read nothing is deleted and the error says which. Files that are not ours are not touched. What is left
// of interrupted writes goes too.
func (r *Repository) Clean(ctx context.Context, committed []RootRef) (CleanReport, error) {
	inv, err := r.inventory(ctx) // before any root is read: what appears later is not judged
	if err != nil {
		return CleanReport{}, err
	}
	c := &cleaner{r: r, ctx: ctx, inv: inv, roots: map[string]cleanRoot{}, committed: map[string]bool{}, needed: map[string]bool{}}
	if err := c.read(committed); err != nil {
		return CleanReport{}, fmt.Errorf("nothing is deleted: %w", err)
	}
	c.judgeRoots()
	c.settleMerged()
	return r.deleteAll(ctx, c.judgeFiles())
}

// cleaner decides completely before the first deletion.
type cleaner struct {
	r         *Repository
	ctx       context.Context
	inv       *inventory
	roots     map[string]cleanRoot // all of the application, by path
	committed map[string]bool      // paths of roots
	needed    map[string]bool      // files

	newest element.CheckpointID // this instance's newest committed
	report CleanReport
}

type cleanRoot struct {
	ref  RootRef
	root *Root
}

// read reads all roots and finds out which are committed: marked, named by a handle, or named as predecessor by one
// that is.
func (c *cleaner) read(handles []RootRef) error {
	for i := range handles {
		if err := c.load(handles[i].Path, &handles[i]); err != nil {
			return err
		}
		c.committed[handles[i].Path] = true
		c.need(handles[i].Path)
	}
	for _, in := range c.inv.instances {
		for _, p := range in.roots {
			if err := c.readOne(p); err != nil {
				if in.dir != c.r.dir && errors.Is(err, fs.ErrNotExist) && !c.committed[p.String()] {
					delete(c.roots, p.String())
					continue // its own cleaner was faster
				}
				return err
			}
		}
	}
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
	return nil
}

// readOne reads a root and, when it has one, its marker.
func (c *cleaner) readOne(p filePath) error {
	path := p.String()
	if !c.inv.marked[path] {
		return c.load(path, nil)
	}
	ref, err := c.r.readMarker(c.ctx, p)
	if err != nil {
		return err
	}
	if err := c.load(path, &ref); err != nil {
		return err
	}
	c.committed[path] = true
	return nil
}

// load reads a root, once: a name never changes its content. want is what it must be, nil when that is not known.
func (c *cleaner) load(path string, want *RootRef) error {
	if have, ok := c.roots[path]; ok && (want == nil || have.ref == *want) {
		return nil
	}
	c.r.mu.Lock()
	have, ok := c.r.parsed[path]
	c.r.mu.Unlock()
	if !ok || (want != nil && have.ref != *want) {
		var err error
		if want != nil {
			have.ref = *want
			have.root, err = c.r.ReadRoot(c.ctx, *want)
		} else {
			have.root, have.ref, err = c.r.loadRoot(c.ctx, path)
		}
		if err != nil {
			return err
		}
	}
	c.roots[path] = have
	return nil
}

// need keeps a root and all that it names.
func (c *cleaner) need(path string) {
	c.needed[path] = true
	for _, e := range c.roots[path].root.Tasks {
		for _, run := range e.Runs {
			c.needed[run.File] = true
		}
	}
}

// judgeRoots marks the files that are needed.
func (c *cleaner) judgeRoots() {
	last := map[element.TaskID]element.CheckpointID{} // newest committed root of a task, of all instances
	for path := range c.committed {
		r := c.roots[path]
		for i := range r.root.Tasks {
			id := r.root.Tasks[i].Task
			last[id] = max(last[id], r.ref.Name.ID)
		}
		if parseFilePath(path).dir == c.r.dir {
			c.newest = max(c.newest, r.ref.Name.ID)
		}
	}
	for _, in := range c.inv.instances {
		kept := 0
		for _, p := range in.roots { // newest first
			path := p.String()
			switch {
			case c.roots[path].root == nil:
			case in.dir != c.r.dir:
				c.need(path) // the other instance decides what of it goes
			case c.committed[path] && kept < c.r.retain:
				kept++
				c.report.Retained = append(c.report.Retained, p.name)
				c.need(path)
			case p.name.ID > c.newest, c.isLast(path, last):
				c.need(path)
			}
		}
	}
}

// isLast reports whether a root holds a task that no newer committed root holds. Checkpoint ids grow along a task's
// history, wherever the task lives. A root that is not known to be committed counts too: the marker may be missing.
func (c *cleaner) isLast(path string, last map[element.TaskID]element.CheckpointID) bool {
	r := c.roots[path]
	for i := range r.root.Tasks {
		newest, ok := last[r.root.Tasks[i].Task]
		if !ok || newest < r.ref.Name.ID || (newest == r.ref.Name.ID && c.committed[path]) {
			return true
		}
	}
	return false
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
			for _, e := range r.root.Tasks {
				for _, run := range e.Runs {
					named[run.File] = true
				}
			}
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

// judgeFiles condemns this instance's files that are neither needed nor newer than the newest committed checkpoint, nor
// of an incarnation that came after this one: a successor's merged run is named by no root yet, and only the successor
// knows of it.
// Roots come first, oldest first, then markers, then data: what an interrupted Clean leaves is never a root whose runs
// are gone, nor a marker without its root that is newer than a root.
func (c *cleaner) judgeFiles() *cleanPlan {
	var roots, markers, data []FileInfo
	for _, in := range c.inv.instances {
		if in.dir != c.r.dir {
			continue
		}
		for _, f := range in.all {
			p := parseFilePath(f.Name)
			key := p
			if p.kind == markerFile { // lives as long as its root
				key.kind = rootFile
			}
			if c.needed[key.String()] || p.name.ID > c.newest || !c.r.owns(p.name) {
				c.report.KeptBytes += f.Length
				continue
			}
			switch p.kind {
			case rootFile:
				roots = append(roots, f)
			case markerFile:
				markers = append(markers, f)
			default:
				data = append(data, f)
			}
		}
	}
	slices.SortFunc(roots, func(a, b FileInfo) int { return compareNames(parseFilePath(a.Name).name, parseFilePath(b.Name).name) })
	return &cleanPlan{report: c.report, doomed: append(append(roots, markers...), data...)}
}

type cleanPlan struct {
	report CleanReport
	doomed []FileInfo
}

func (r *Repository) deleteAll(ctx context.Context, plan *cleanPlan) (CleanReport, error) {
	rep := plan.report
	r.mu.Lock()
	clear(r.files) // others may delete too: look again
	r.mu.Unlock()
	for _, f := range plan.doomed {
		if err := failpoint.Err(failpoint.CleanBefore); err != nil {
			return rep, err
		}
		if err := r.st.Delete(ctx, f.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return rep, err
		}
		rep.Deleted++
		rep.DeletedBytes += f.Length
		if err := failpoint.Err(failpoint.CleanAfter); err != nil {
			return rep, err
		}
	}
	_, err := r.st.Sweep(ctx, r.dir+"/") // of writes whose own cleaning up failed
	return rep, err
}
