package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/millweir/millweir/element"
)

// GroupRoots gives the roots that the group's committed handles name, those of all partitions, read stable: no open
// transaction has offsets of the group in it. With an error that wraps ErrHandlesUnread they are those of the handles that could be
// read.
type GroupRoots func(ctx context.Context) ([]RootRef, error)

// collectTries bounds the listings of collect. Where roots appear faster than they are listed the group is asked, and its word
// is enough.
const collectTries = 8

// handleTries bounds how often the group is asked because a root that it named was removed before it was read: its task had
// gone on.
const handleTries = 3

// ErrHandlesUnread says that a committed handle cannot be read, or is of another checkpoint directory: what it named is not known.
var ErrHandlesUnread = errors.New("not all can be read")

var (
	errTooFast    = errors.New("checkpoints of other instances appear faster than they are read")
	errUnanswered = errors.New("the group's committed handles")
)

// carryOut does what Clean and CleanFailed have to do when it is known what is committed.
func (c *cleaner) carryOut() (CleanReport, error) {
	plan, kept := c.decide()
	if plan == nil {
		return CleanReport{}, fmt.Errorf("nothing is deleted: %w", kept)
	}
	rep, err := c.r.deleteAll(c.ctx, plan)
	if err == nil && kept != nil {
		err = fmt.Errorf("data whose own root is gone is not deleted: %w", kept)
	}
	return rep, err
}

// decide makes the plan of Clean and CleanFailed. With a plan an error says why it lacks what needs the group's word.
//
// A listing is no moment: it reads one directory after the other, and a slow or stopped process may take any time between
// two of them. A task T may move meanwhile and its new owner commit; then the roots in the directory that it left go, and
// with CleanGone and CleanIdle the directory itself. However many listings there are, none need show a root of T, and files
// of this instance in its chain look like garbage.
//
// What goes without asking the group had a root Q that was read: a pack the one of its name, which has every task that wrote
// to it (another root that names it may lack one that has moved), a merged run, which is of one task, any. Since Q is not
// needed, of each of its tasks newer committed roots were read; a chain only loses old runs, so what Q has and the newest
// of them has not, no later root has. Or Q failed, and nobody else has what it led to.
//
// For anything else the group is asked, after the listings. Let H be the root that the handle of T names then: it is read and
// kept with all that it names. Of the files in the first listing, T's later roots name those that H names, and no others:
//
//   - What T's owner writes itself is new and in its own directory. If that is this one: what was written when it was
//     listed, and is in no committed root, is in progress or a protected merged run; that of a successor is not judged.
//   - A restore in flight is from H: the handle was read when nobody but the reader could commit any more. Only the reader
//     did since.
//   - A zombie cannot commit. It may merge; who names a merged run looks whether it is there (WriteRoot).
//
// Asked before the first listing it would be wrong: this process commits, loses T, and T's new owner commits on top; the
// listing has the file that H has not.
//
// Where records may repeat nothing goes without asking: the offsets of Q's successors may have been committed in part, so that the
// task T is in newer roots that count as committed and stands at Q all the same. What H names is kept then, whatever the roots say.
func (c *cleaner) decide() (*cleanPlan, error) {
	if c.r.repeats {
		return c.decideAsked()
	}
	var sure *cleanPlan
	switch err := c.collect(false); {
	case err == nil:
		sure = c.judge()
		if !c.leaveBlind(sure) {
			return sure, nil
		}
	case !errors.Is(err, errTooFast):
		return nil, err
	}
	switch err := c.collect(true); {
	case err == nil:
		return c.judge(), nil
	case errors.Is(err, errUnanswered):
		return sure, err
	default:
		return nil, err
	}
}

// decideAsked is decide where nothing goes without the group's word. Beside handles that cannot be read what roots tell of goes.
func (c *cleaner) decideAsked() (*cleanPlan, error) {
	switch err := c.collect(true); {
	case err == nil:
		return c.judge(), nil
	case errors.Is(err, ErrHandlesUnread):
		plan := c.judge()
		c.leaveBlind(plan)
		return plan, err
	default:
		return nil, err
	}
}

func (c *cleaner) judge() *cleanPlan {
	c.judgeCommitted()
	c.judgeOwn()
	c.settleMerged()
	return c.judgeFiles()
}

// leaveBlind takes the data of which no root that was read tells whose it was out of a plan, and reports whether there was any.
func (c *cleaner) leaveBlind(plan *cleanPlan) bool {
	named := map[string]bool{}
	for _, r := range c.roots {
		markFiles(r.root, named)
	}
	all := len(plan.data)
	plan.data = slices.DeleteFunc(plan.data, func(f FileInfo) bool {
		p := parseFilePath(f.Name)
		blind := !named[f.Name]
		if p.kind != fullFile {
			p.kind = rootFile
			blind = c.roots[p.String()].root == nil
		}
		if blind {
			plan.report.KeptBytes += f.Length
		}
		return blind
	})
	return len(plan.data) < all
}

// collect reads the roots of all instances until a listing shows none that was not known, and when the group is asked, its
// handles name none either. What was read counts as needed even if it has gone meanwhile.
//
// Then, if any committed root of a task is known, so are the marked ones among its NumRetained newest that are older, from which
// it is recovered when newer ones are damaged. What is known was known when the last listing began; so they were there, and
// no cleaner removes them, so that listing shows them. Where roots appear too fast for that, the group's word is enough for
// all that a handle needs.
func (c *cleaner) collect(ask bool) error {
	inv := c.first
	for try := 0; ; try++ {
		news, err := c.readAll(inv)
		if ask && err == nil && (news == 0 && try > 0 || try == collectTries) {
			news, err = c.readHandles()
		}
		switch {
		case err != nil:
			return err
		case news == 0 && try > 0, ask && try == collectTries:
			return nil
		case try == collectTries:
			return errTooFast
		}
		if inv, err = c.r.inventory(c.ctx); err != nil {
			return err
		}
	}
}

// readHandles reads the roots that the group's handles name, and gives the number of those that were not known.
func (c *cleaner) readHandles() (news int, err error) {
	for try := 1; ; try++ {
		handles, unread := c.group(c.ctx)
		if unread != nil {
			unread = fmt.Errorf("%w: %w", errUnanswered, unread)
		}
		if unread != nil && !errors.Is(unread, ErrHandlesUnread) {
			return 0, unread
		}
		for _, h := range handles {
			if c.roots[h.Path].root == nil {
				news++
			}
		}
		if err = c.loadAll(handles); err == nil {
			return news, unread
		} else if !errors.Is(err, fs.ErrNotExist) || try == handleTries {
			return news, err
		}
	}
}

// loadAll reads the roots that committed handles name. They are needed.
func (c *cleaner) loadAll(handles []RootRef) error {
	for i := range handles {
		if err := c.load(handles[i].Path, &handles[i]); err != nil {
			return err
		}
		c.committed[handles[i].Path] = true
		c.named = append(c.named, handles[i].Path)
		c.need(handles[i].Path)
	}
	return nil
}

// readAll reads the roots of a listing that are not known, and gives their number.
func (c *cleaner) readAll(inv *inventory) (news int, err error) {
	for i := range inv.instances {
		in := &inv.instances[i]
		for _, p := range in.roots {
			if _, ok := c.roots[p.String()]; ok && c.committed[p.String()] == inv.marked[p.String()] {
				continue
			} else if !ok {
				news++
			}
			if err := c.readOne(p, inv.marked[p.String()]); err != nil {
				if errors.Is(err, fs.ErrNotExist) && !c.committed[p.String()] && (in.dir != c.own || c.discards(inv, p)) {
					continue // its own cleaner was faster
				}
				return news, err
			}
		}
		if in.dir == c.own {
			continue
		}
		for _, p := range in.missingRoots() { // it may name anything
			if in.lost(p, inv.marked) && c.r.markerStands(c.ctx, p) {
				return news, corrupt(p.name.String(), p.String(), "root", fs.ErrNotExist)
			}
		}
	}
	return news, nil
}

// discards reports whether Discard may remove a root of this directory while it is read.
func (c *cleaner) discards(inv *inventory, p filePath) bool {
	return !c.started && !inv.marked[p.String()] && c.r.writes(p.name)
}

// lost reports whether a root of which only the marker is there was the newest that the instance committed. One that is older
// is superseded; its process may have been stopped before it wrote the marker, until the root was removed.
func (in *instanceFiles) lost(root filePath, marked map[string]bool) bool {
	return !slices.ContainsFunc(in.roots, func(p filePath) bool { return p.name.ID > root.name.ID && marked[p.String()] })
}

// readOne reads a root and, when it has one, its marker. A marker that has gone since it was listed was removed with its
// root, by a cleaner who knows that it is not needed.
func (c *cleaner) readOne(p filePath, marked bool) error {
	path := p.String()
	var want *RootRef
	if marked {
		ref, err := c.r.readMarker(c.ctx, p)
		switch {
		case err == nil:
			want = &ref
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	if err := c.load(path, want); err != nil {
		return err
	}
	if want != nil {
		c.committed[path] = true
	}
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

// claim notes that files of this name are ours to delete, and whether this process writes under it.
func (r *Repository) claim(name element.CheckpointName, writes bool) {
	r.mu.Lock()
	r.own[name.Incarnation] = r.own[name.Incarnation] || writes
	r.mu.Unlock()
}

// owns reports whether files of the name are ours to delete.
func (r *Repository) owns(name element.CheckpointName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.own[name.Incarnation]
	return ok
}

// writes reports whether this process writes under the name's incarnation. Its ids grow.
func (r *Repository) writes(name element.CheckpointName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.own[name.Incarnation]
}
