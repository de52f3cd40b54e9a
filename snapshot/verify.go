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
// is read once. A checkpoint that a running service removes meanwhile is left out; where that leaves none it is tried anew
// with those that are there then, and in the end the error has the code NotRunning.
func (r *Repository) VerifyAll(ctx context.Context, want func(RootInfo) bool, each func(Verified)) error {
	v := &verifier{seen: map[runKey]error{}, all: true}
	for round := range verifyRounds {
		infos, err := r.Look(ctx)
		if err != nil {
			return err
		}
		if want != nil {
			infos = slices.DeleteFunc(infos, func(i RootInfo) bool { return !want(i) })
		}
		if len(infos) == 0 && round == 0 {
			return nil
		}
		told, err := r.verify(ctx, v, infos, each)
		if err != nil || told {
			return err
		}
	}
	return fault.Stopf(fault.NotRunning, "the checkpoints of %s in %s that were to be read were removed while they were read: the service commits faster than that, and what it has now is not known; try again, with a larger state.checkpoints.num-retained if it stays so",
		r.app, r.st.Location())
}

// verifyRounds is how often VerifyAll lists.
const verifyRounds = 3

// verify reads what is listed, and reports whether something was left of it.
func (r *Repository) verify(ctx context.Context, v *verifier, infos []RootInfo, each func(Verified)) (told bool, err error) {
	h := keptOpen{r.st, map[string]Object{}}
	defer h.release()
	v.r = &Repository{st: h}
	held := map[string]bool{}
	for _, info := range infos {
		if info.Root != nil && !held[info.Instance] {
			held[info.Instance] = true
			h.hold(ctx, info.Root)
		}
	}
	for _, info := range infos {
		res := Verified{RootInfo: info}
		if info.Err != nil {
			res.Damage = append(res.Damage, info.Err)
		}
		if info.Root != nil {
			damage, err := v.root(ctx, info.Root)
			if err != nil {
				return told, err
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
		told = true
		each(res)
	}
	return told, nil
}

// keptOpen is Storage with objects that stay open, so that on most file systems their removal does not take them away from a slow reader.
type keptOpen struct {
	Storage
	held map[string]Object
}

// maxHeld bounds what is kept open at once.
const maxHeld = 256

// hold opens what a root names. What cannot be opened is told when it is read.
func (h keptOpen) hold(ctx context.Context, root *Root) {
	for i := range root.Tasks {
		for _, run := range slices.Concat(root.Tasks[i].Runs, root.Tasks[i].InFlight) {
			if run.IsInline() || h.held[run.File] != nil || len(h.held) == maxHeld {
				continue
			}
			if o, err := h.Storage.Open(ctx, run.File); err == nil {
				h.held[run.File] = o
			}
		}
	}
}

func (h keptOpen) release() {
	for _, o := range h.held {
		o.Close()
	}
}

// Open gives what is held, or opens it.
func (h keptOpen) Open(ctx context.Context, name string) (Object, error) {
	if o := h.held[name]; o != nil {
		return heldObject{o}, nil
	}
	return h.Storage.Open(ctx, name)
}

// heldObject stays open.
type heldObject struct{ Object }

// Close leaves it to release.
func (heldObject) Close() error { return nil }

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
