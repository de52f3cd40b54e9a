package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Verified is what VerifyAll says of one checkpoint.
type Verified struct {
	RootInfo
	// Damage lists every damaged or missing file of the checkpoint, each error a CorruptError or one that says that a
	// run holds other states than the root lists; and those that cannot be read for lack of the right to, each an
	// UnreadableError. Empty: all that the root names is whole.
	Damage []error
	Runs   int   // read
	Bytes  int64 // of them
}

// VerifyAll reads the checkpoints that want accepts (nil: all), newest first within an instance: the root and its
// digest, its marker, the root's place in the lineage, and of every run all blocks, checksums and the chain. It gives
// each to each. The error is for a directory that cannot be read, not for damage. A run that several checkpoints name
// is read once. A checkpoint that a running service removes meanwhile is left out.
func (r *Repository) VerifyAll(ctx context.Context, want func(RootInfo) bool, each func(Verified)) error {
	infos, err := r.Look(ctx)
	if err != nil {
		return err
	}
	v := &verifier{r: r, seen: map[runKey]error{}, all: true}
	for _, info := range infos {
		if want != nil && !want(info) {
			continue
		}
		res := Verified{RootInfo: info}
		if info.Err != nil {
			res.Damage = append(res.Damage, info.Err)
		}
		if info.Root != nil {
			damage, err := v.root(ctx, info.Root)
			if err != nil {
				return err
			}
			if len(damage) > 0 && !r.exists(ctx, info.Ref.Path) {
				continue
			}
			res.Damage = append(res.Damage, damage...)
			for i := range info.Root.Tasks {
				for _, run := range slices.Concat(info.Root.Tasks[i].Runs, info.Root.Tasks[i].InFlight) {
					res.Runs++
					res.Bytes += run.Length
				}
			}
		}
		each(res)
	}
	return nil
}

// exists reports whether a file is there. One that cannot be opened for another reason counts as there.
func (r *Repository) exists(ctx context.Context, path string) bool {
	o, err := r.st.Open(ctx, path)
	if err == nil {
		o.Close()
	}
	return !errors.Is(err, fs.ErrNotExist)
}

// Survey is List for a recovery: of the committed checkpoints it also verifies the runs, newest first, until every
// task that one of them holds has one that is whole. Damage is put into RootInfo.Err; those not read are older.
func (r *Repository) Survey(ctx context.Context) ([]RootInfo, error) {
	infos, err := r.List(ctx)
	if err != nil {
		return nil, err
	}
	v := &verifier{r: r, seen: map[runKey]error{}}
	covered := map[lineage]bool{}
	for _, i := range newestFirst(infos) {
		info := &infos[i]
		if !info.usable() || !info.holdsOther(covered) {
			continue
		}
		damage, err := v.root(ctx, info.Root)
		if err != nil {
			return nil, err
		}
		if len(damage) > 0 {
			info.Err = damage[0]
			continue
		}
		for h := range info.Root.sourceTasks() {
			covered[h] = true
		}
	}
	return infos, nil
}

// usable reports that the root is whole and known to be committed.
func (i *RootInfo) usable() bool { return i.Root != nil && i.Committed && i.Err == nil }

// holdsOther reports whether the root holds a task that is not in the set.
func (i *RootInfo) holdsOther(tasks map[lineage]bool) bool {
	return i.Root.anySource(func(h lineage) bool { return !tasks[h] })
}

// LoadVerified is LoadRoots, and reads all runs too: a root of which a run is damaged is reported like a damaged one.
func (r *Repository) LoadVerified(ctx context.Context, refs []RootRef) (map[RootRef]LoadedRoot, error) {
	roots, err := r.LoadRoots(ctx, refs)
	if err != nil {
		return nil, err
	}
	v := &verifier{r: r, seen: map[runKey]error{}}
	for ref, l := range roots {
		if l.Root == nil {
			continue
		}
		damage, err := v.root(ctx, l.Root)
		if err != nil {
			return nil, err
		}
		if len(damage) > 0 {
			roots[ref] = LoadedRoot{Err: damage[0]}
		}
	}
	return roots, nil
}

// verifier reads runs, each once.
type verifier struct {
	r    *Repository
	seen map[runKey]error
	all  bool // an UnreadableError counts as damage: who only looks wants to hear of every file
}

// runKey is all that the verdict on a run depends on.
type runKey struct {
	ref    RunRef
	task   element.TaskID
	states string
}

// root reads all runs of a root. The second error is that of a directory that cannot be read.
func (v *verifier) root(ctx context.Context, root *Root) (damage []error, err error) {
	for i := range root.Tasks {
		e := root.Tasks[i]
		if err := v.r.checkChain(e); err != nil {
			damage = append(damage, err)
			continue
		}
		for _, ref := range slices.Concat(e.Runs, e.InFlight) {
			err := v.run(ctx, e, ref)
			switch {
			case err == nil:
			case isDamage(err), v.all && isOfFile(err):
				damage = append(damage, err)
			default:
				return damage, err
			}
		}
	}
	return damage, nil
}

func (v *verifier) run(ctx context.Context, e TaskEntry, ref RunRef) error {
	key := runKey{ref: ref, task: e.Task, states: fmt.Sprintf("%q", e.States)}
	if err, ok := v.seen[key]; ok {
		return err
	}
	var err error
	if ref.From == ref.To {
		e.InFlight = []RunRef{ref}
		_, err = v.r.RestoreInFlight(ctx, e, nil, func(int, []byte) error { return nil })
	} else {
		_, err = v.r.scan(ctx, e, ref, func([]int, *Entry) error { return nil })
	}
	v.seen[key] = err
	return err
}

// isDamage tells what a file holds from what hinders its reading.
func isDamage(err error) bool {
	return errors.As(err, new(*CorruptError)) || fault.CodeOf(err) == fault.StateMismatch
}
