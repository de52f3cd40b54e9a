package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/millweir/millweir/element"
)

// collectTries bounds the listings of collect. Where roots appear faster than they are listed, a later Clean has more luck.
const collectTries = 8

// collect reads the roots of all instances until a listing shows none that was not known. What was read counts as needed
// even if it has gone meanwhile.
//
// A listing is no moment: it reads one directory after the other, and a slow or stopped process may take any time between
// two of them. A task may move meanwhile, from a directory that is still to be read to one that was read already, its
// new owner commits, its old one cleans up, and the listing shows no root of it at all. Its chain would be taken for
// garbage.
//
// So it goes on to the first listing that shows nothing new. Let R be the newest committed root of a task when that
// listing begins, in directory D. Everything that the task's later roots name of ours, R names: it is enough to know R.
// If R is still in D when the listing comes to D, it is known. If not, D's owner has removed it: in a Clean after a commit
// newer than R, and the root of its newest commit stays. That root is listed, so it was known, so it was there when D was
// listed before; and R, being older, was too, and still, since it goes only after the present listing has begun. So R
// is known. CleanFailed comes without a commit: it leaves R where no newer committed root of its tasks is in D; see outlived.
//
// With one directory only there is nothing between two of which a task could be missed.
func (c *cleaner) collect(handles []RootRef) error {
	if err := c.loadAll(handles); err != nil {
		return err
	}
	inv := c.first
	for try := 0; ; try++ {
		news, err := c.readAll(inv)
		switch {
		case err != nil:
			return err
		case len(inv.instances) == 1 && inv.instances[0].dir == c.r.dir && try == 0, news == 0 && try > 0:
			return nil
		case try == collectTries:
			return fmt.Errorf("checkpoints of other instances appear faster than they are read")
		}
		if inv, err = c.r.inventory(c.ctx); err != nil {
			return err
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
