package sim

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/millweir/millweir/snapshot"
)

// file is one file of the checkpoint directory.
type file struct {
	name  string
	data  []byte
	owner string        // the instance whose machine wrote it
	at    time.Duration // when it was written
	shown time.Duration // when it got its name
	// synced: the bytes are durable. linked: it is visible under its name. named: the name is durable.
	synced, linked, named bool
}

// disk is the checkpoint directory that all instances share. Each instance reaches it through a machine of its own:
// when that loses power, what it had written and not synced may be gone.
type disk struct {
	w      *world
	files  map[string]*file
	ghosts []ghost // deleted, and the deletion is not durable
	// full and broken count the writes and fsyncs that are still to fail.
	full, broken int
	slow         int // operations that still take long
}

// ghost is a file that the machine of an instance has deleted.
type ghost struct {
	*file
	by string
}

// storeID is the content of the file that names the directory; real ones are random.
const storeID = "00112233445566778899aabbccddeeff"

func newDisk(w *world) *disk {
	d := &disk{w: w, files: map[string]*file{}}
	head := "millweir-store-id v1 " + storeID
	text := fmt.Sprintf("%s %08x\n", head, crc32.Checksum([]byte(head), crc32.MakeTable(crc32.Castagnoli)))
	d.files["millweir-store-id"] = &file{name: "millweir-store-id", data: []byte(text), synced: true, linked: true, named: true}
	return d
}

func (d *disk) heal() { d.full, d.broken, d.slow = 0, 0, 0 }

// diskOp is one step that makes a file durable or takes it away. They are staged by a call of the repository and
// executed one by one, so that a crash can come between any two.
type diskOp struct {
	kind kind // kFsync, kLink, kSyncDir, kDelete
	f    *file
	by   string // the instance whose machine does it
	sure bool   // of kDelete: the directory is synced before the next step
}

// do executes a step. An error of fsync or of the directory's takes the file back, as the real storage does.
func (d *disk) do(op diskOp) error {
	switch op.kind {
	case kFsync:
		if d.broken > 0 {
			d.broken--
			d.w.tracef(nil, "  disk: fsync of %s fails", op.f.name)
			return fmt.Errorf("fsync %s: %w", op.f.name, syscall.EIO)
		}
		op.f.synced = true
	case kLink:
		if d.files[op.f.name] != nil {
			return &fs.PathError{Op: "link", Path: op.f.name, Err: fs.ErrExist}
		}
		op.f.linked, op.f.shown = true, d.w.now
		if root, ok := strings.CutSuffix(op.f.name, ".committed"); ok && d.files[root+".root"] == nil {
			d.w.counts.MarkersAlone++
		}
		d.files[op.f.name] = op.f
	case kSyncDir:
		if d.broken > 0 {
			d.broken--
			d.w.tracef(nil, "  disk: sync of the directory of %s fails", op.f.name)
			d.remove(op.f, op.by)
			return fmt.Errorf("sync directory of %s: %w", op.f.name, syscall.EIO)
		}
		op.f.named = true
		d.forget(func(g ghost) bool { return g.by == op.by && dirOf(g.name) == dirOf(op.f.name) })
	case kDelete:
		d.remove(op.f, op.by)
		if op.sure {
			d.forget(func(g ghost) bool { return g.file == op.f })
		}
	}
	return nil
}

// forget makes removals durable.
func (d *disk) forget(which func(ghost) bool) { d.ghosts = slices.DeleteFunc(d.ghosts, which) }

func (d *disk) remove(f *file, by string) {
	if d.files[f.name] != f {
		return
	}
	delete(d.files, f.name)
	if f.named {
		d.ghosts = append(d.ghosts, ghost{f, by})
	}
	d.w.check.fileGone(f.name)
}

// crash is the loss of power of one instance's machine: of what was not synced each part stays with the probability
// keep (0, 0.5, 1).
func (d *disk) crash(owner string, keep float64) {
	lost := func() bool { return d.w.rng.Float64() >= keep }
	for _, name := range d.names() {
		f := d.files[name]
		if f.owner != owner {
			continue
		}
		if !f.named && lost() {
			delete(d.files, name)
			d.w.tracef(nil, "  disk: %s is gone", name)
			d.w.check.fileGone(name)
			continue
		}
		f.named = true
		if !f.synced && lost() {
			f.data = f.data[:d.w.rng.IntN(len(f.data)+1)]
			d.w.tracef(nil, "  disk: %s is cut to %d bytes", name, len(f.data))
			d.w.check.fileGone(name)
		}
		f.synced = true
	}
	ghosts := d.ghosts
	d.ghosts = nil
	for _, g := range ghosts {
		switch {
		case g.by != owner:
			d.ghosts = append(d.ghosts, g)
		case d.files[g.name] == nil && lost(): // the deletion is lost: the file is back, and who has looked since does not know it
			g.shown = d.w.now
			d.files[g.name] = g.file
		}
	}
}

func (d *disk) names() []string {
	names := make([]string, 0, len(d.files))
	for n := range d.files {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// view is the directory as one process sees it: the real repository works on it.
type view struct {
	d      *disk
	owner  string
	staged []diskOp
	fiber  *fiber // that runs now, if any
}

var (
	_ snapshot.Storage     = (*view)(nil)
	_ snapshot.Directories = (*view)(nil)
)

// take gives the steps that a call of the repository has staged.
func (v *view) take() []diskOp {
	ops := v.staged
	v.staged = nil
	return ops
}

// Put writes the bytes; the steps that make them durable and visible are staged.
func (v *view) Put(_ context.Context, name string, write func(io.Writer) error) (snapshot.FileInfo, error) {
	if v.d.files[name] != nil {
		return snapshot.FileInfo{}, &fs.PathError{Op: "put", Path: name, Err: fs.ErrExist}
	}
	if v.d.full > 0 {
		v.d.full--
		v.d.w.tracef(nil, "  disk: full at %s", name)
		return snapshot.FileInfo{}, fmt.Errorf("write %s: %w", name, syscall.ENOSPC)
	}
	var buf bytes.Buffer
	if err := write(&buf); err != nil {
		return snapshot.FileInfo{}, err
	}
	f := &file{name: name, data: buf.Bytes(), owner: v.owner, at: v.d.w.now}
	v.staged = append(v.staged, diskOp{kind: kFsync, f: f, by: v.owner}, diskOp{kind: kLink, f: f, by: v.owner}, diskOp{kind: kSyncDir, f: f, by: v.owner})
	return snapshot.FileInfo{Name: name, Length: int64(len(f.data))}, nil
}

type object struct{ *bytes.Reader }

func (o object) Size() (int64, error) { return o.Reader.Size(), nil }
func (o object) Close() error         { return nil }

// Open opens a file that is visible.
func (v *view) Open(ctx context.Context, name string) (snapshot.Object, error) {
	if v.fiber != nil {
		if err := v.fiber.access(ctx, kRead); err != nil {
			return nil, err
		}
	}
	f := v.d.files[name]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return object{bytes.NewReader(f.data)}, nil
}

// List gives the visible files under a prefix. The directories of instances are read one after the other, those that are
// there when it begins.
func (v *view) List(ctx context.Context, prefix string) ([]snapshot.FileInfo, error) {
	dirs := []string{prefix}
	if v.fiber != nil && prefix == application+"/" {
		if err := v.fiber.access(ctx, kList); err != nil {
			return nil, err
		}
		dirs = slices.DeleteFunc(v.d.dirs(), func(dir string) bool { return !strings.HasPrefix(dir, prefix) })
	}
	var out []snapshot.FileInfo
	for _, dir := range dirs {
		if v.fiber != nil {
			if err := v.fiber.access(ctx, kList); err != nil {
				return nil, err
			}
		}
		for _, n := range v.d.names() {
			if strings.HasPrefix(n, dir) {
				out = append(out, snapshot.FileInfo{Name: n, Length: int64(len(v.d.files[n].data)), Modified: epochStart.Add(v.d.files[n].at)})
			}
		}
	}
	return out, nil
}

// Delete stages the removal, or does it, when the call is cut into steps.
func (v *view) Delete(ctx context.Context, name string) error {
	if v.fiber != nil {
		if err := v.fiber.access(ctx, kDelete); err != nil {
			return err
		}
	}
	f := v.d.files[name]
	if f == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	if v.fiber != nil {
		v.d.remove(f, v.owner)
		v.d.w.counts.Deleted++
		if f.owner != v.owner {
			v.d.w.counts.DeletedOfGone++
		}
		return nil
	}
	v.staged = append(v.staged, diskOp{kind: kDelete, f: f, by: v.owner})
	v.d.w.counts.Deleted++
	return nil
}

// SyncDir makes removals durable, those that are staged as soon as they are carried out.
func (v *view) SyncDir(_ context.Context, prefix string) error {
	v.d.forget(func(g ghost) bool { return g.by == v.owner && strings.HasPrefix(g.name, prefix) })
	for i := range v.staged {
		op := &v.staged[i]
		op.sure = op.sure || op.kind == kDelete && strings.HasPrefix(op.f.name, prefix)
	}
	return nil
}

// Retire has nothing to remove: there are no directories here, and no files without a name.
func (v *view) Retire(_ context.Context, prefix string, _ time.Time) (bool, error) {
	return !slices.ContainsFunc(v.d.names(), func(name string) bool { return strings.HasPrefix(name, prefix) }), nil
}

// SweepTop has nothing to do.
func (v *view) SweepTop(context.Context, time.Time) (int, error) { return 0, nil }

// Sweep has nothing to do: files without a name are not visible here, and a crash takes them.
func (v *view) Sweep(context.Context, string) (int, error) { return 0, nil }

// Location is for messages.
func (v *view) Location() string { return "the checkpoint directory" }

// Close does nothing.
func (v *view) Close() error { return nil }
