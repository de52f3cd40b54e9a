package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/millweir/millweir/element"
)

// RootInfo is a root on disk.
type RootInfo struct {
	Ref      RootRef // Digest is set when Root is
	Instance string
	// Committed: a marker says so, or a committed root names it as predecessor. Otherwise it is not known whether
	// its transaction was committed: only the group's offsets tell.
	Committed bool
	// Marked: there is a marker, readable or not.
	Marked bool
	Root   *Root // nil when Err is set
	Err    error // CorruptError; of Look also UnreadableError
	alone  bool  // of CommittedAfter: the marker has no root
}

// List gives the roots of all instances of the application, newest first within an instance, for tools and for the
// question whether the store knows a task. Damaged roots are listed with their error, and so is a root that is gone
// while its marker is there.
//
// A root that goes while it is listed, because a running service cleans, is not damage and is left out.
//
// What cannot be read for lack of the right to is an error, an UnreadableError: it may be whole.
func (r *Repository) List(ctx context.Context) ([]RootInfo, error) {
	infos, err := r.Look(ctx)
	for i := range infos {
		if errors.As(infos[i].Err, new(*UnreadableError)) {
			return nil, infos[i].Err
		}
	}
	return infos, err
}

// Look is List for tools that go on to the next: RootInfo.Err may be an UnreadableError.
func (r *Repository) Look(ctx context.Context) ([]RootInfo, error) {
	inv, err := r.inventory(ctx)
	if err != nil {
		return nil, err
	}
	var out []RootInfo
	for _, in := range inv.instances {
		roots := slices.Concat(in.roots, in.missingRoots())
		slices.SortFunc(roots, func(a, b filePath) int { return compareNames(b.name, a.name) })
		for _, p := range roots {
			info, err := r.describe(ctx, inv, p)
			if err != nil {
				return nil, err
			}
			if errors.Is(info.Err, fs.ErrNotExist) && !r.markerStands(ctx, p) {
				continue
			}
			out = append(out, info)
		}
	}
	if err := r.judgeCommitted(ctx, inv, out); err != nil {
		return nil, err
	}
	return out, nil
}

// CommittedAfter gives the roots that have a marker and are newer than a checkpoint, for ResolveInput.Listing. Nothing
// but their names is read of the others, so that it costs a start next to nothing.
//
// Markers without a root do not tell of which tasks, and with several instances the ids say nothing about that: mayHold says where
// they count. Cleaners remove a root when every task in it has newer ones, and a marker may be there without it: while it
// is being removed; of a process that was replaced right after its commit and marks it when it wakes up; after a loss of
// power that took back the removal of the one and not of the other.
//
// Where records may repeat (Config.Repeats), the roots that these follow are among them, marked or not: which tasks one has tells
// whether a delayed copy has set the group back to the start position of a task, see nextAfter.
func (r *Repository) CommittedAfter(ctx context.Context, after element.CheckpointID) ([]RootInfo, error) {
	infos, err := r.listAfter(ctx, after, true)
	if err != nil || !r.repeats {
		return infos, err
	}
	for _, info := range slices.Clone(infos) {
		if info.Root == nil || info.Root.Predecessor == nil {
			continue
		}
		pred := *info.Root.Predecessor
		if pred.Name.ID <= after || slices.ContainsFunc(infos, func(i RootInfo) bool { return i.Ref.Path == pred.Path }) {
			continue
		}
		root, ref, err := r.loadRoot(ctx, pred.Path)
		switch {
		case errors.As(err, new(*UnreadableError)):
			return nil, err
		case err == nil && ref == pred: // of one that is damaged or gone nothing is known
			infos = append(infos, RootInfo{Ref: ref, Instance: r.instanceOf(parseFilePath(ref.Path).dir), Root: root})
		case err != nil && !isOfFile(err):
			return nil, err
		}
	}
	return infos, nil
}

// UnmarkedAfter gives the roots without a marker that are newer than a checkpoint, but for damaged ones. Whether they were committed
// the group's offsets tell: see ResolveInput.Doubtful.
func (r *Repository) UnmarkedAfter(ctx context.Context, after element.CheckpointID) ([]RootInfo, error) {
	infos, err := r.listAfter(ctx, after, false)
	return slices.DeleteFunc(infos, func(i RootInfo) bool { return i.Root == nil }), err
}

func (r *Repository) listAfter(ctx context.Context, after element.CheckpointID, marked bool) ([]RootInfo, error) {
	inv, err := r.inventory(ctx)
	if err != nil {
		return nil, err
	}
	var out []RootInfo
	for _, in := range inv.instances {
		for _, p := range in.roots {
			if p.name.ID <= after || inv.marked[p.String()] != marked {
				continue
			}
			info, err := r.describe(ctx, inv, p)
			if err != nil {
				return nil, err
			}
			switch {
			case errors.Is(info.Err, fs.ErrNotExist):
				continue
			case errors.As(info.Err, new(*UnreadableError)):
				return nil, info.Err
			}
			info.Committed = marked
			out = append(out, info)
		}
		for _, p := range in.missingRoots() {
			if marked && p.name.ID > after && r.markerStands(ctx, p) {
				err := corrupt(p.name.String(), p.String(), "root", fs.ErrNotExist)
				out = append(out, RootInfo{Ref: RootRef{Name: p.name, Path: p.String()}, Instance: r.instanceOf(in.dir), Marked: true, Committed: true, Err: err, alone: true})
			}
		}
	}
	return out, nil
}

// markerStands tells a root that is lost from one that was removed since it was listed: cleaners remove the marker first.
// One that cannot be opened for another reason counts as there.
func (r *Repository) markerStands(ctx context.Context, root filePath) bool {
	root.kind = markerFile
	return r.exists(ctx, root.String())
}

// describe reads one root for a listing.
func (r *Repository) describe(ctx context.Context, inv *inventory, p filePath) (RootInfo, error) {
	info := RootInfo{Ref: RootRef{Name: p.name, Path: p.String()}, Instance: r.instanceOf(p.dir), Marked: inv.marked[p.String()]}
	root, ref, err := r.loadRoot(ctx, p.String())
	switch {
	case err == nil:
		info.Root, info.Ref = root, ref
	case isOfFile(err):
		info.Err = err
	default:
		return info, err
	}
	return info, nil
}

// isOfFile reports whether an error is that of one file, and says nothing about the others.
func isOfFile(err error) bool {
	return errors.As(err, new(*CorruptError)) || errors.As(err, new(*UnreadableError))
}

// judgeCommitted fills in Committed: by marker, then backwards along predecessors.
func (r *Repository) judgeCommitted(ctx context.Context, inv *inventory, infos []RootInfo) error {
	at := make(map[string]int, len(infos))
	for i := range infos {
		at[infos[i].Ref.Path] = i
	}
	for i := range infos {
		p := parseFilePath(infos[i].Ref.Path)
		if !infos[i].Marked {
			continue
		}
		ref, err := r.readMarker(ctx, p)
		switch {
		case err == nil && (infos[i].Root == nil || ref.Digest == infos[i].Ref.Digest):
			infos[i].Committed = true
		case err == nil:
			p.kind = markerFile
			infos[i].Err = corrupt(p.name.String(), p.String(), "marker", formatf("it marks another root of that name"))
		case errors.Is(err, fs.ErrNotExist) && !r.markerStands(ctx, p):
			infos[i].Marked = false // a cleaner has begun to remove it
		case isOfFile(err):
			if infos[i].Err == nil {
				infos[i].Err = err
			}
		default:
			return err
		}
	}
	checkLineage(infos, at)
	spreadCommitted(infos, at)
	return nil
}

// Confirm fills in Committed of what Look gave by the roots that committed handles name, and by those that they follow.
func Confirm(infos []RootInfo, named []RootRef) {
	at := make(map[string]int, len(infos))
	for i := range infos {
		at[infos[i].Ref.Path] = i
	}
	for _, ref := range named {
		if i, ok := at[ref.Path]; ok && infos[i].Ref.Digest == ref.Digest {
			infos[i].Committed = true
		}
	}
	spreadCommitted(infos, at)
}

// spreadCommitted goes from committed roots backwards along predecessors; at is the place of each path.
func spreadCommitted(infos []RootInfo, at map[string]int) {
	for i := range infos {
		for j := i; infos[j].Committed && infos[j].Root != nil && infos[j].Root.Predecessor != nil; {
			next, ok := at[infos[j].Root.Predecessor.Path]
			if !ok || infos[next].Committed || infos[next].Ref.Digest != infos[j].Root.Predecessor.Digest {
				break
			}
			infos[next].Committed = true
			j = next
		}
	}
}

// checkLineage finds roots that are whole but not the ones that a later root was written after.
func checkLineage(infos []RootInfo, at map[string]int) {
	for i := range infos {
		if infos[i].Root == nil || infos[i].Root.Predecessor == nil {
			continue
		}
		pred := infos[i].Root.Predecessor
		j, ok := at[pred.Path]
		if ok && infos[j].Root != nil && infos[j].Err == nil && infos[j].Ref.Digest != pred.Digest {
			infos[j].Err = corrupt(pred.Name.String(), pred.Path, "root", formatf("it is not the root that checkpoint %s followed", infos[i].Ref.Name))
		}
	}
}

// readMarker reads the marker beside a root.
func (r *Repository) readMarker(ctx context.Context, root filePath) (RootRef, error) {
	m := root
	m.kind = markerFile
	b, err := readAll(ctx, r.st, m.String(), int64(markerSize))
	if err != nil {
		return RootRef{}, r.readError(ctx, root.name.String(), m.String(), "marker", err)
	}
	ref, err := decodeMarker(b)
	if err == nil && ref.Name != root.name {
		err = formatf("it is the marker of %s", ref.Name)
	}
	if err != nil {
		return RootRef{}, corrupt(root.name.String(), m.String(), "marker", err)
	}
	ref.Path = root.String()
	return ref, nil
}

// inventory is what lies in the directories of the application, ours only, read in one listing.
type inventory struct {
	instances []instanceFiles // sorted by directory
	marked    map[string]bool // paths of roots that have a marker
}

type instanceFiles struct {
	dir   string
	roots []filePath // newest first
	all   []FileInfo // our files, but for the announcement and for what is no file
	// announced is the instance's announcement; its Name is empty without one.
	announced FileInfo
}

func (r *Repository) inventory(ctx context.Context) (*inventory, error) {
	files, err := r.st.List(ctx, r.app+"/")
	if err != nil {
		return nil, err
	}
	inv := &inventory{marked: map[string]bool{}}
	for _, f := range files {
		p := parseFilePath(f.Name)
		announcer, announced := announcedBy(f.Name)
		if announced {
			p.dir = announcer
		} else if p.kind == foreignFile {
			continue
		}
		if n := len(inv.instances); n == 0 || inv.instances[n-1].dir != p.dir {
			inv.instances = append(inv.instances, instanceFiles{dir: p.dir})
		}
		in := &inv.instances[len(inv.instances)-1]
		if announced {
			in.announced = f
			continue
		}
		if f.NotFile == "" {
			in.all = append(in.all, f)
		}
		switch p.kind {
		case rootFile:
			in.roots = append(in.roots, p)
		case markerFile:
			p.kind = rootFile
			inv.marked[p.String()] = true
		}
	}
	for i := range inv.instances {
		slices.SortFunc(inv.instances[i].roots, func(a, b filePath) int { return compareNames(b.name, a.name) })
	}
	return inv, nil
}

// missingRoots gives the roots of an instance of which only the marker is left. A marker that is older than all roots
// says nothing: it comes back when the power fails before its removal is durable, with a Storage that cannot tell.
func (in *instanceFiles) missingRoots() []filePath {
	var out []filePath
	for _, f := range in.all {
		p := parseFilePath(f.Name)
		if p.kind != markerFile {
			continue
		}
		p.kind = rootFile
		n := len(in.roots)
		if !slices.Contains(in.roots, p) && (n == 0 || compareNames(in.roots[n-1].name, p.name) < 0) {
			out = append(out, p)
		}
	}
	return out
}

func compareNames(a, b element.CheckpointName) int {
	switch {
	case a.ID != b.ID:
		if a.ID < b.ID {
			return -1
		}
		return 1
	case a.Incarnation < b.Incarnation:
		return -1
	case a.Incarnation > b.Incarnation:
		return 1
	}
	return 0
}
