package sim

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// cleanGrace is how old a file of an instance that is gone has to be before the leader deletes it.
const cleanGrace = max(2*transactionLimit, sessionTimeout)

// oldFile is a file as it was when it was listed.
type oldFile struct {
	name string
	at   time.Duration
}

// cleanGroup deletes what instances that are gone have left and nothing needs: the leader's work, which is the instance
// that has the first partition. First the files are listed, then everything is read that tells what is needed.
func (a *attempt) cleanGroup(done func()) {
	w, v := a.p.w, a.p.view
	var files []oldFile
	for _, name := range v.d.names() {
		if dir := instanceOf(name); dir != "" && dir != a.p.name {
			files = append(files, oldFile{name, v.d.files[name].at})
		}
	}
	files = slices.DeleteFunc(files, func(f oldFile) bool { return w.now-f.at < cleanGrace })
	if len(files) == 0 {
		done()
		return
	}
	all := mask(1<<len(w.broker.in) - 1)
	a.running++
	end := func() {
		a.running--
		done()
		a.finish()
	}
	w.call(a.p, kApplyDescribe, func() reply { return w.broker.group.describe() }, func(members reply) {
		if members.failed() || a.over {
			end()
			return
		}
		files = slices.DeleteFunc(files, func(f oldFile) bool { return slices.Contains(members.names, instanceOf(f.name)) })
		w.call(a.p, kApplyFetchOffsets, func() reply { return w.broker.group.fetch(all, true) }, func(r reply) {
			needed, ok := a.neededByGroup(r)
			if !ok || a.over {
				end()
				return
			}
			files = slices.DeleteFunc(files, func(f oldFile) bool { return needed[f.name] })
			a.deleteAll(files, end)
		})
	})
}

// neededByGroup gives the files that the committed handles of the group lead to, and per task the newest committed roots
// of all instances.
func (a *attempt) neededByGroup(r reply) (map[string]bool, bool) {
	const retained = 2
	ctx, repo, needed := context.Background(), a.p.repo, map[string]bool{}
	if r.failed() {
		return nil, false
	}
	infos, err := repo.List(ctx)
	if err != nil {
		return nil, false
	}
	need := func(ref snapshot.RootRef, root *snapshot.Root) {
		needed[ref.Path] = true
		needed[strings.TrimSuffix(ref.Path, ".root")+".committed"] = true
		for _, e := range root.Tasks {
			for _, run := range e.Runs {
				needed[run.File] = true
			}
		}
	}
	slices.SortStableFunc(infos, func(a, b snapshot.RootInfo) int { return int(b.Ref.Name.ID) - int(a.Ref.Name.ID) })
	kept := map[element.TaskID]int{}
	for _, info := range infos {
		if info.Root == nil {
			return nil, false
		}
		if !info.Committed {
			continue
		}
		for _, e := range info.Root.Tasks {
			if kept[e.Task]++; kept[e.Task] <= retained {
				need(info.Ref, info.Root)
			}
		}
	}
	for _, c := range r.committed {
		h, err := snapshot.ParseHandle(c.metadata)
		if !c.found || (err == nil && h.Kind == snapshot.HandleEmpty) {
			continue
		}
		if err != nil {
			return nil, false
		}
		root, err := repo.ReadRoot(ctx, h.Root)
		if err != nil {
			return nil, false
		}
		need(h.Root, root)
	}
	return needed, true
}

func (a *attempt) deleteAll(files []oldFile, done func()) {
	if len(files) == 0 || a.over {
		done()
		return
	}
	w := a.p.w
	w.do(a.p, w.disk.lag(), kDelete, func() {
		if f := w.disk.files[files[0].name]; f != nil {
			w.disk.remove(f)
			w.counts.DeletedOfGone++
		}
		a.deleteAll(files[1:], done)
	})
}

// instanceOf gives the instance whose directory a file is in.
func instanceOf(name string) string {
	parts := strings.Split(name, "/")
	if len(parts) != 3 || parts[0] != application {
		return ""
	}
	return parts[1]
}
