package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// GoneInput is what CleanGone has to know of the group.
type GoneInput struct {
	// Live names the instances that are in the group. It is asked after the listing, and again before an instance is
	// forgotten. This instance counts as one of them in any case.
	Live func(ctx context.Context) ([]string, error)
	// Committed gives the roots that the group's committed handles name, those of all partitions, read stable: no open
	// transaction has offsets of the group in it. It is asked after Live.
	Committed GroupRoots
	// Grace is how old a file has to be of which nothing tells that it is superseded.
	Grace time.Duration
	// Now is compared with the time that the Storage gives a file. A clock that is ahead of the Storage's shortens Grace by
	// the difference, one behind it lengthens it.
	Now time.Time
	// Busy: CleanIdle is called by an instance that has tasks.
	Busy bool
}

// CleanGone deletes what nothing needs in the directories of instances that are neither this one nor in the group, and
// the directories that it leaves empty. One instance of the application calls it; that another one does so too, since both
// believe to be the one, does no harm. Nothing is deleted when a root or a marker cannot be read or is lost, or when Live
// or Committed fail; the error says which. Files that are not ours are not touched.
//
// Needed is, with all that it names: what Committed names; every root of an instance that is not gone; of every task the
// NumRetained newest committed roots of all instances, and the one that the newest follows as for Clean. Instances of other clusters are not judged; see Clean for which
// checkpoints count for a task. What is not needed goes
//
//   - at once when it is known to be superseded: a root all of whose tasks have NumRetained newer committed ones (one is
//     enough for a root that is not known to be committed itself), and the files that only such roots name;
//   - after Grace otherwise: a root that is not known to be committed and newer than all of a task that are, if the group
//     knows all its tasks; the data of a checkpoint without a root; a merged run;
//   - in no case a merged run, as long as the chain that it was merged from is still in use.
//
// Why nothing is lost that a committed handle needs, now or later. Let H be the root that the handle of a task T names
// when Committed is asked. H and all that it names is kept. Every root that T's owner, whoever that is, commits later
// names runs of H, runs that it has written itself since it took T over, or a merged run in place of runs of H.
//
//   - A new owner that is restoring from a root of the gone instance restores from H, or it has committed one since, which
//     then is H.
//   - What the owner writes lies in its directory. If it was in the group when Live was asked, that is not judged. If it
//     joined later, it wrote after that, so after the listing. That holds also for a process that returns under the gone
//     instance's name. It finds its directory again or makes it anew: only an empty one is removed.
//   - A zombie of the gone instance, stopped before it committed a root that was listed, cannot commit it any more. If it had
//     sent the offsets when Live was asked, they are in its transaction, and Committed waits for the end of that: either the
//     root is H then, or it was aborted. If it had not, the broker refuses them, for it is no member. When it joins again it
//     starts from H as everybody does, and forgets what it has merged (see Merge). In case it does not, merged runs stay while
//     they can still take the place of runs of T's newest committed root, also when roots that name them are superseded.
//   - A zombie of a process that cleans up deletes by what it has decided before it was stopped. That is true for ever: of
//     what T's later roots name, H names all that was listed. The same holds for two that clean up at once.
//   - Recovery from the store takes the newest usable committed root of a task. As long as one of the NumRetained newest is
//     usable it takes one of these, and none of these has ever been in a plan: there are NumRetained newer ones of what is.
//     They are known, see collect.
//     It never takes an unconfirmed root, but tells how far they came: those of a task of which no handle is left stay.
//
// Where Committed cannot read the handle of T, no root goes by its age, for any may hold T, and no data of which no root that was
// read tells whose it was. What is superseded goes: ids of T grow, so what its handle named is not older than the newest committed root
// of T that was read, and a chain only loses old runs (see decide, which does without the group for the same reason). The error
// says which handles. One that is of another directory proves no more: this directory may have got another identity.
//
// Grace is for none of these. It is for what the argument leaves to others: that a broker really ends transactions, and
// that what was written just before an instance went is there for somebody who wants to look.
//
// What starts of whatever application have left at the top of the directory goes first, after Grace.
func (r *Repository) CleanGone(ctx context.Context, in GoneInput) (CleanReport, error) {
	top, swept := 0, error(nil)
	if st, ok := r.st.(Directories); ok {
		top, swept = st.SweepTop(ctx, in.Now.Add(-in.Grace))
	}
	rep, err := r.cleanGone(ctx, in)
	rep.Deleted += top
	if err == nil {
		err = swept
	}
	return rep, err
}

func (r *Repository) cleanGone(ctx context.Context, in GoneInput) (CleanReport, error) {
	g, err := r.newGoneCleaner(ctx, in)
	if err != nil {
		return CleanReport{}, err
	}
	if err := g.ask(); err != nil {
		return CleanReport{}, fmt.Errorf("nothing is deleted of instances that are gone: %w", err)
	}
	if len(g.gone) == 0 {
		return CleanReport{}, nil
	}
	plan := g.judge()
	rep, err := r.deleteAll(ctx, plan)
	if err != nil {
		return rep, err
	}
	if rep, err = g.retire(rep, slices.Concat(plan.markers, plan.roots, plan.data)); err == nil && g.unread != nil {
		err = fmt.Errorf("of instances that are gone only what cannot be named is deleted: %w", g.unread)
	}
	return rep, err
}

// CleanIdle deletes what nothing needs in the directory of this instance, which has no task and writes nothing before this
// returns: it would not come to a Clean, and no CleanGone takes it for gone. Live is not asked. What goes, and when, is as in
// CleanGone, and so is why nothing is lost, also when this process is stopped on the way and others go on meanwhile. It may
// have been replaced without knowing it: what its successor writes is not judged, since that one may be at work on it, however
// old it is. The directory and the announcement stay.
//
// Where in.Busy says so the instance has tasks, checkpoints may be written and committed meanwhile, and only Clean and Merge must
// not run: an instance whose partitions are quiet comes to no Clean either. Then what may still be named by a root of this
// process stays as well: everything of checkpoints newer than the newest that it is known to have committed, and its merged runs until
// Forget. What those checkpoints name of older files, the handles or the merged runs name, too.
func (r *Repository) CleanIdle(ctx context.Context, in GoneInput) (CleanReport, error) {
	g, err := r.newGoneCleaner(ctx, in)
	if err != nil {
		return CleanReport{}, err
	}
	if in.Busy {
		g.own = r.dir
	}
	for i := range g.first.instances {
		if own := g.first.instances[i]; own.dir == r.dir {
			own.all = slices.DeleteFunc(slices.Clone(own.all), func(f FileInfo) bool { return !r.owns(parseFilePath(f.Name).name) })
			g.gone = append(g.gone, &own)
		}
	}
	if len(g.gone) == 0 || len(g.gone[0].all) == 0 {
		return CleanReport{}, nil
	}
	if err := g.read(); err != nil {
		return CleanReport{}, fmt.Errorf("nothing is deleted of this instance, which has committed nothing for a while: %w", err)
	}
	rep, err := r.deleteAll(ctx, g.judge())
	if err == nil && g.unread != nil {
		err = fmt.Errorf("of this instance, which has committed nothing for a while, only what cannot be named is deleted: %w", g.unread)
	}
	return rep, err
}

func (r *Repository) newGoneCleaner(ctx context.Context, in GoneInput) (*goneCleaner, error) {
	c, err := r.newCleaner(ctx)
	c.group = in.Committed
	return &goneCleaner{cleaner: c, in: in, superseded: map[string]bool{}, known: map[lineage]bool{}}, err
}

// judge decides what goes.
func (g *goneCleaner) judge() *cleanPlan {
	g.judgeCommitted()
	if g.in.Busy {
		g.spareWork()
	}
	g.judgeRoots()
	plan := g.judgeFiles()
	if g.unread != nil {
		g.leaveBlind(plan)
	}
	return plan
}

// spareWork takes what this process may be at work on out of what is judged.
func (g *goneCleaner) spareWork() {
	g.r.mu.Lock()
	merged := slices.Collect(maps.Values(g.r.merged))
	g.r.mu.Unlock()
	for _, in := range g.gone { // this one
		in.all = slices.DeleteFunc(in.all, func(f FileInfo) bool {
			p := parseFilePath(f.Name)
			if p.kind == fullFile {
				return slices.Contains(merged, f.Name)
			}
			return g.r.writes(p.name) && p.name.ID > g.newest
		})
	}
}

// goneCleaner is a cleaner of other instances' directories.
type goneCleaner struct {
	*cleaner
	in         GoneInput
	gone       []*instanceFiles
	known      map[lineage]bool // tasks in roots that handles name
	superseded map[string]bool  // roots, and the files that they name
	unread     error            // of handles
}

// ask asks the group, then reads all roots. When nobody is gone it reads nothing.
func (g *goneCleaner) ask() error {
	others := slices.ContainsFunc(g.first.instances, func(in instanceFiles) bool { return in.dir != g.r.dir })
	if !others {
		return nil
	}
	live, err := g.in.Live(g.ctx)
	if err != nil {
		return fmt.Errorf("who is in the group: %w", err)
	}
	for i := range g.first.instances {
		in := &g.first.instances[i]
		if in.dir != g.r.dir && !slices.Contains(live, g.r.instanceOf(in.dir)) {
			g.gone = append(g.gone, in)
		}
	}
	if len(g.gone) == 0 {
		return nil
	}
	return g.read()
}

// read reads all roots, and what the handles name.
func (g *goneCleaner) read() error {
	err := g.collect(true)
	if errors.Is(err, ErrHandlesUnread) {
		g.unread = err
		err = g.collect(false)
	}
	if err != nil {
		return err
	}
	for _, path := range g.named {
		for id := range g.roots[path].root.sourceTasks() {
			g.known[id] = true
		}
	}
	return g.spareOtherClusters()
}

// spareOtherClusters takes instances of other clusters for what they are: they are in no group of ours and live all the
// same. Nothing in their directories is judged.
func (g *goneCleaner) spareOtherClusters() error {
	var gone []*instanceFiles
	for _, in := range g.gone {
		other, err := g.r.clusterOf(g.ctx, in, func(p filePath) (*Root, error) { return g.roots[p.String()].root, nil })
		if err != nil {
			return err
		}
		if g.r.cluster == "" || other == "" || other == g.r.cluster {
			gone = append(gone, in)
		}
	}
	g.gone = gone
	return nil
}

// instanceOf gives the instance whose directory it is.
func (r *Repository) instanceOf(dir string) string { return strings.TrimPrefix(dir, r.app+"/") }

// old reports whether the grace of a file is over. One whose age is not known stays.
func (g *goneCleaner) old(f FileInfo) bool {
	return !f.Modified.IsZero() && f.Modified.Before(g.in.Now.Add(-g.in.Grace))
}

// judgeRoots marks what is needed and what is superseded.
func (g *goneCleaner) judgeRoots() {
	infos := map[string]FileInfo{} // of the roots that may go
	for _, in := range g.gone {
		for _, f := range in.all {
			infos[f.Name] = f
		}
	}
	for path, r := range g.roots {
		f, mayGo := infos[path]
		switch {
		case !mayGo, g.needed[path], g.retained(path), g.otherCluster(path):
			g.need(path)
		case !g.unsettled(path):
			g.superseded[path] = true
			markFiles(r.root, g.superseded)
		case g.unread != nil, !g.old(f), r.root.anySource(func(h lineage) bool { return !g.known[h] }):
			g.need(path)
		}
	}
}

// judgeFiles condemns.
func (g *goneCleaner) judgeFiles() *cleanPlan {
	plan := &cleanPlan{}
	chains := g.chains()
	for _, in := range g.gone {
		for _, f := range in.all {
			p := parseFilePath(f.Name)
			if g.mayGo(in, p, f, chains) {
				plan.add(p, f)
			} else {
				plan.report.KeptBytes += f.Length
			}
		}
	}
	return plan
}

func (g *goneCleaner) mayGo(in *instanceFiles, p filePath, f FileInfo, chains map[string][]RunRef) bool {
	root := p
	root.kind, root.task = rootFile, ""
	switch {
	case p.kind == rootFile, p.kind == markerFile && slices.Contains(in.roots, root):
		return g.roots[root.String()].root != nil && !g.needed[root.String()]
	case g.needed[f.Name]:
		return false
	case p.kind == packFile && g.superseded[root.String()]:
		return true
	}
	return (g.superseded[f.Name] || g.old(f)) && !(p.kind == fullFile && g.fits(f, chains[p.task]))
}

// fits reports whether a merged run may take the place of runs of a chain: one of them ends where it ends. One that cannot
// be read may.
func (g *goneCleaner) fits(f FileInfo, chain []RunRef) bool {
	o, err := g.r.st.Open(g.ctx, f.Name)
	if err != nil {
		return true
	}
	defer o.Close()
	return slices.ContainsFunc(chain, func(run RunRef) bool {
		_, err := newRunReader(&ctxReader{g.ctx, io.NewSectionReader(o, 0, f.Length)}, RunRef{Length: f.Length, To: run.To, Full: true})
		var other errFormat
		return !errors.As(err, &other)
	})
}

// chains gives the runs of the newest committed root of every task, by the task's name. Subtasks behind an exchange go with
// the tasks that read partitions; where these stand at several roots, all count.
func (g *goneCleaner) chains() map[string][]RunRef {
	out := map[string][]RunRef{}
	for path := range g.committed {
		r := g.roots[path]
		isNewest := g.newestOf(r)
		newest := r.root.anySource(isNewest)
		for i := range r.root.Tasks {
			switch e := &r.root.Tasks[i]; {
			case e.Parallelism > 0 && newest:
				out[e.Task.String()] = slices.Concat(out[e.Task.String()], e.Runs)
			case e.Parallelism == 0 && isNewest(r.root.lineageOf(e)): // one per lineage
				out[e.Task.String()] = slices.Concat(out[e.Task.String()], e.Runs)
			}
		}
	}
	return out
}

// retire removes the directories that are empty now.
func (g *goneCleaner) retire(rep CleanReport, doomed []FileInfo) (CleanReport, error) {
	deleted := map[string]bool{}
	for _, f := range doomed {
		deleted[f.Name] = true
	}
	if err := g.forgetAnnouncements(deleted); err != nil {
		return rep, err
	}
	st, ok := g.r.st.(Directories)
	if !ok {
		return rep, nil
	}
	for _, in := range g.gone {
		gone, err := st.Retire(g.ctx, in.dir+"/", g.in.Now.Add(-g.in.Grace))
		if err != nil {
			return rep, err
		}
		if gone {
			rep.Gone = append(rep.Gone, g.r.instanceOf(in.dir))
		}
	}
	return rep, nil
}
