package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/millweir/millweir/element"
)

// CleanReport says what Clean did.
type CleanReport struct {
	Retained     []element.CheckpointName // committed checkpoints of this instance that are kept, newest first
	Deleted      int                      // files
	DeletedBytes int64
	KeptBytes    int64 // of this instance's files
}

// Clean deletes what nothing needs of this instance's files. Kept are: the NumRetained newest committed checkpoints,
// everything newer than the newest committed one, everything that is named by those roots, by the roots of other
// instances (a partition that moved takes its chain along), or by the roots in committed; and merged runs that no
// committed root names yet.
//
// committed holds the roots that the group's committed handles name, of all instances, as far as the caller knows
// them; those of this instance count as committed without a marker. They must have been read before the call. When
// a root cannot be read nothing is deleted and the error says which. Files that are not ours are not touched.
func (r *Repository) Clean(ctx context.Context, committed []RootRef) (CleanReport, error) {
	inv, err := r.inventory(ctx)
	if err != nil {
		return CleanReport{}, err
	}
	plan, err := r.planClean(ctx, inv, committed)
	if err != nil {
		return CleanReport{}, fmt.Errorf("nothing is deleted: %w", err)
	}
	return r.deleteAll(ctx, plan)
}

// cleanPlan is decided completely before the first deletion.
type cleanPlan struct {
	report CleanReport
	// roots, then markers, then data: what an interrupted Clean leaves is never a root whose runs are gone.
	doomed []FileInfo
}

func (r *Repository) planClean(ctx context.Context, inv *inventory, committed []RootRef) (*cleanPlan, error) {
	own, err := r.ownCommitted(ctx, inv, committed)
	if err != nil {
		return nil, err
	}
	var newest element.CheckpointID
	retained := map[string]bool{}
	plan := &cleanPlan{}
	for _, p := range own {
		newest = max(newest, p.name.ID)
		retained[p.String()] = true
		plan.report.Retained = append(plan.report.Retained, p.name)
	}
	needed := map[string]bool{} // files
	live := map[RootRef]*Root{} // for the cache
	use := func(path string, want *RootRef) error {
		root, ref, err := r.cachedRoot(ctx, path, want)
		if err != nil {
			return err
		}
		needed[path] = true
		live[ref] = root
		for i := range root.Tasks {
			for _, run := range root.Tasks[i].Runs {
				needed[run.File] = true
			}
		}
		return nil
	}
	for i := range committed {
		if err := use(committed[i].Path, &committed[i]); err != nil {
			return nil, err
		}
	}
	for _, in := range inv.instances {
		for _, p := range in.roots {
			path := p.String()
			if needed[path] || (in.dir == r.dir && !retained[path] && p.name.ID <= newest) {
				continue
			}
			err := use(path, nil)
			if errors.Is(err, fs.ErrNotExist) && in.dir != r.dir {
				continue // its own cleaner was faster
			}
			if err != nil {
				return nil, err
			}
		}
	}
	r.settleMerged(retained, live, needed)
	r.judgeFiles(inv, plan, needed, newest)
	return plan, nil
}

// ownCommitted gives this instance's newest committed roots, at most as many as are retained, newest first. Committed
// are those marked, named by a handle, or named as predecessor by one that is.
func (r *Repository) ownCommitted(ctx context.Context, inv *inventory, handles []RootRef) ([]filePath, error) {
	known := map[string]RootRef{}
	for _, ref := range handles {
		known[ref.Path] = ref
	}
	var out []filePath
	for _, in := range inv.instances {
		if in.dir != r.dir {
			continue
		}
		for _, p := range in.roots { // newest first, so a predecessor is met after its successor
			if len(out) == r.retain {
				break
			}
			ref, ok := known[p.String()]
			if !ok && inv.marked[p.String()] {
				var err error
				if ref, err = r.readMarker(ctx, p); err != nil {
					return nil, err
				}
				ok = true
			}
			if !ok {
				continue
			}
			root, _, err := r.cachedRoot(ctx, p.String(), &ref)
			if err != nil {
				return nil, err
			}
			out = append(out, p)
			if root.Predecessor != nil {
				known[root.Predecessor.Path] = *root.Predecessor
			}
		}
	}
	return out, nil
}

// cachedRoot reads a root once: a name never changes its content.
func (r *Repository) cachedRoot(ctx context.Context, path string, want *RootRef) (*Root, RootRef, error) {
	r.mu.Lock()
	for ref, root := range r.parsed {
		if ref.Path == path && (want == nil || *want == ref) {
			r.mu.Unlock()
			return root, ref, nil
		}
	}
	r.mu.Unlock()
	if want != nil {
		root, err := r.ReadRoot(ctx, *want)
		return root, *want, err
	}
	return r.loadRoot(ctx, path)
}

// settleMerged protects merged runs, drops those that a committed root names by now, and keeps only live roots in
// the cache.
func (r *Repository) settleMerged(retained map[string]bool, live map[RootRef]*Root, needed map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ref, root := range live {
		if !retained[ref.Path] {
			continue
		}
		for i := range root.Tasks {
			for _, run := range root.Tasks[i].Runs {
				delete(r.merged, run.File)
			}
		}
	}
	for path := range r.merged {
		needed[path] = true
	}
	r.parsed = live
}

// judgeFiles condemns this instance's files that are neither needed nor newer than the newest committed checkpoint.
func (r *Repository) judgeFiles(inv *inventory, plan *cleanPlan, needed map[string]bool, newest element.CheckpointID) {
	var roots, markers, data []FileInfo
	for _, in := range inv.instances {
		if in.dir != r.dir {
			continue
		}
		for _, f := range in.all {
			p := parseFilePath(f.Name)
			key := p
			if p.kind == markerFile { // lives as long as its root
				key.kind = rootFile
			}
			if needed[key.String()] || p.name.ID > newest {
				plan.report.KeptBytes += f.Length
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
	plan.doomed = append(append(roots, markers...), data...)
}

func (r *Repository) deleteAll(ctx context.Context, plan *cleanPlan) (CleanReport, error) {
	rep := plan.report
	r.mu.Lock()
	clear(r.files) // others may delete too: look again
	r.mu.Unlock()
	for _, f := range plan.doomed {
		if err := r.st.Delete(ctx, f.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return rep, err
		}
		rep.Deleted++
		rep.DeletedBytes += f.Length
	}
	_, err := r.st.Sweep(ctx, r.dir+"/") // of writes whose own cleaning up failed
	return rep, err
}
