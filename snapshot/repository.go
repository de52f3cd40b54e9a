package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Config says where and for whom a Repository keeps snapshots.
type Config struct {
	// Dir is the checkpoint directory: a path or a file:// URL. Not used when Storage is set.
	Dir string
	// Storage overrides Dir. The Repository closes it.
	Storage Storage
	// Application and Instance name the sub-directory that this Repository writes to; see ValidName. Instance may be
	// empty with ReadOnly.
	Application, Instance string
	// NumRetained is the number of newest committed checkpoints of a task that Clean keeps, at least 1; at least 2 where records
	// may repeat.
	NumRetained int
	// Repeats: at-least-once. The offsets of a checkpoint may be committed in part, so one that a handle names need not be that of
	// all its tasks: Clean asks the group each time.
	Repeats bool
	// MemoryThreshold is the size in bytes up to which runs lie in the root itself: a checkpoint of which no run is larger
	// is one file. At most MaxMemoryThreshold; 0: all runs go into files.
	MemoryThreshold int
	// WriteBufferSize is how much a file's writer collects before it writes, in bytes; the larger of it and MemoryThreshold
	// counts. 0: DefaultWriteBufferSize. At most MaxWriteBufferSize.
	WriteBufferSize int
	// ReadOnly is for tools that only look: no directory, no store id is made, nothing is swept.
	ReadOnly bool
	// Logger gets what happens rarely (swept files, deleted checkpoints). nil = slog.Default().
	Logger *slog.Logger
}

// Repository reads and writes the snapshots of one instance of an application, and reads those of the others.
type Repository struct {
	st      Storage
	app     string
	cluster string // whose checkpoints this instance takes; empty when it was not told
	inst    string
	dir     string // <application>/<instance>
	retain  int
	repeats bool
	storeID string

	threshold int64 // Config.MemoryThreshold
	log       *slog.Logger

	mu     sync.Mutex
	merged map[string]string    // by task: the newest full run written here, while no committed root names it
	parsed map[string]cleanRoot // by path: roots that Clean kept the last time
	files  map[string]int64     // sizes of files known to be durable
	inline inlineBytes
	// own: the incarnations that Clean may delete files of: those that this Repository writes for (true), and those that
	// were there when it was opened. Files of any other are a successor's: this process was replaced and does not know it
	// yet.
	own map[element.Incarnation]bool
	// found are the files of this instance that were there when it was opened: before this process was in the group and had
	// initialised its transactional ids.
	found map[string]bool
	// newest is the id of the newest checkpoint that this process has marked as committed. Its root may have gone since: where
	// tasks move away, others supersede it.
	newest element.CheckpointID
}

// OpenRepository opens the checkpoint directory, creates or reads its store id and removes what interrupted writes
// of this instance left. An unusable directory gives a fault of class Stop with code CheckpointDir.
func OpenRepository(ctx context.Context, cfg Config) (*Repository, error) {
	switch {
	case !ValidName(cfg.Application):
		return nil, fault.Stopf(fault.BadFile, "application %q is not a valid name: 1 to 128 of A-Z a-z 0-9 . _ -", cfg.Application)
	case !ValidName(cfg.Instance) && (cfg.Instance != "" || !cfg.ReadOnly):
		return nil, fault.Stopf(fault.BadFile, "instance.id %q is not a valid name: 1 to 128 of A-Z a-z 0-9 . _ -", cfg.Instance)
	case cfg.NumRetained < 1 && !cfg.ReadOnly:
		return nil, fault.Stopf(fault.BadFile, "state.checkpoints.num-retained is %d, at least 1 is needed", cfg.NumRetained)
	}
	buffer, err := cfg.writeBuffer()
	if err != nil {
		return nil, err
	}
	st, probe := cfg.Storage, func() error { return nil }
	if st == nil {
		l, err := openDir(cfg.Dir, cfg.ReadOnly)
		if err != nil {
			return nil, err
		}
		st, probe = l, l.probe
	}
	if b, ok := st.(Buffered); ok {
		b.SetWriteBuffer(buffer)
	}
	return openRepository(ctx, cfg, st, probe)
}

// openRepository opens what lies in st. probe tells whether it can be written; it is not called with Config.ReadOnly.
func openRepository(ctx context.Context, cfg Config, st Storage, probe func() error) (*Repository, error) {
	r := &Repository{
		st: st, app: cfg.Application, inst: cfg.Instance, dir: cfg.Application + "/" + cfg.Instance,
		retain: cfg.NumRetained, repeats: cfg.Repeats, log: cfg.Logger, merged: map[string]string{}, parsed: map[string]cleanRoot{}, files: map[string]int64{},
		own: map[element.Incarnation]bool{}, found: map[string]bool{}, threshold: int64(cfg.MemoryThreshold), inline: inlineBytes{tasks: map[element.TaskID]int64{}},
	}
	if r.log == nil {
		r.log = slog.Default()
	}
	if err := r.open(ctx, cfg.ReadOnly, probe); err != nil {
		st.Close()
		return nil, err
	}
	return r, nil
}

// Applications gives the names of the applications that have files in a checkpoint directory, sorted.
func Applications(ctx context.Context, dir string) ([]string, error) {
	st, err := openDir(dir, true)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	files, err := st.List(ctx, "")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range files {
		app, _, _ := strings.Cut(f.Name, "/")
		if parseFilePath(f.Name).kind != foreignFile && (len(out) == 0 || out[len(out)-1] != app) {
			out = append(out, app)
		}
	}
	return out, nil
}

// openDir opens a checkpoint directory. Whether it can be written is not looked at.
func openDir(dir string, readOnly bool) (*Local, error) {
	path, isURL := strings.CutPrefix(dir, "file://")
	switch {
	case isURL && !strings.HasPrefix(path, "/"):
		return nil, fault.Stopf(fault.BadFile, "state.checkpoints.dir %q: a file URL needs an absolute path: file:///…", dir)
	case !isURL && strings.Contains(dir, "://"):
		return nil, fault.Stopf(fault.BadFile, "state.checkpoints.dir %q: only directories and file:// URLs are supported", dir)
	case path == "":
		return nil, fault.Stopf(fault.BadFile, "state.checkpoints.dir is empty")
	case readOnly:
		return OpenLocalReadOnly(path)
	}
	return makeLocal(checkpointDir, path)
}

func (r *Repository) open(ctx context.Context, readOnly bool, probe func() error) (err error) {
	if readOnly {
		if r.storeID, err = findStoreID(ctx, r.st); errors.Is(err, fs.ErrNotExist) && !errors.As(err, new(*CorruptError)) {
			return fault.Stopf(fault.CheckpointDir, "checkpoint directory %s has no %s: nothing was ever written to it", r.st.Location(), storeIDFile)
		}
		return err
	}
	full := probe()
	if full != nil && !isFull(full) {
		return full
	}
	if r.storeID, err = ensureStoreID(ctx, r.st); err != nil {
		return err
	}
	n, err := r.st.Sweep(ctx, r.dir+"/")
	if n > 0 {
		r.log.Info("removed files of interrupted writes", "dir", r.dir, "files", n)
	}
	if err != nil {
		return err
	}
	if err = r.findPredecessors(ctx); err != nil || full == nil {
		return err
	}
	return r.roomLater(probe())
}

// roomLater lets a start go on in a directory that is full, also without the files of interrupted writes, where this instance
// has files of checkpoints in it: only the first attempt knows which of them nobody needs (CleanFailed, CleanUnrooted), and to remove
// them takes no room. Where that makes none, the attempts fail until somebody else does, as those of a service that was running
// when the directory became full. One that has nothing there is refused. An announcement that is missing is not put off either: it is what starts of another cluster are refused by.
func (r *Repository) roomLater(full error) error {
	if len(r.found) == 0 || !isFull(full) {
		return full
	}
	r.log.Warn("the checkpoint directory is full; the first attempt removes what nobody needs of this instance's files", "dir", r.dir, "files", len(r.found), "error", full)
	return nil
}

// findPredecessors notes which incarnations of this instance have left files.
func (r *Repository) findPredecessors(ctx context.Context) error {
	files, err := r.st.List(ctx, r.dir+"/")
	for _, f := range files {
		if p := parseFilePath(f.Name); p.kind != foreignFile {
			r.claim(p.name, false)
			r.found[f.Name] = true
		}
	}
	return err
}

// StoreID is the identity of the checkpoint directory: 32 hex digits.
func (r *Repository) StoreID() string { return r.storeID }

// Location is the directory or URL as messages print it.
func (r *Repository) Location() string { return r.st.Location() }

// Close releases the Storage. Calls in progress may go on.
func (r *Repository) Close() error { return r.st.Close() }

// WriteRoot writes the root metadata. When it returns nil the root, and all that it names and that Persist or Merge
// wrote, are durable. Application, Instance and StoreID are set when empty and must match when not. Tasks may come in
// any order. A run whose file is not there with its size gives a CorruptError, and no root.
func (r *Repository) WriteRoot(ctx context.Context, root *Root) (RootRef, error) {
	r.claim(root.Name, true)
	c := root.sorted()
	for _, f := range []struct {
		field *string
		own   string
	}{{&c.Application, r.app}, {&c.Instance, r.inst}, {&c.StoreID, r.storeID}} {
		if *f.field == "" {
			*f.field = f.own
		}
		if *f.field != f.own {
			return RootRef{}, fmt.Errorf("root %s: %q instead of %q", root.Name, *f.field, f.own)
		}
	}
	if err := c.validate(); err != nil {
		return RootRef{}, fmt.Errorf("root %s: %w", root.Name, err)
	}
	if err := r.checkFiles(ctx, c); err != nil {
		return RootRef{}, err
	}
	b := encodeRoot(c)
	if len(b) > maxRootSize {
		return RootRef{}, fmt.Errorf("root %s: %d bytes, at most %d are allowed", root.Name, len(b), maxRootSize)
	}
	r.countInline(c)
	ref := RootRef{Name: root.Name, Path: filePath{dir: r.dir, kind: rootFile, name: root.Name}.String(), Digest: digestOf(b)}
	if _, err := r.st.Put(ctx, ref.Path, writeBytes(b)); err != nil {
		return RootRef{}, err
	}
	return ref, nil
}

// maxKnownFiles bounds the memory of files that need no second look.
const maxKnownFiles = 1 << 16

// checkFiles makes sure that every file which a root names exists: a root must never be the first to find out. Files
// that were written or looked at before are not looked at again.
func (r *Repository) checkFiles(ctx context.Context, root *Root) error {
	for i := range root.Tasks {
		for _, ref := range slices.Concat(root.Tasks[i].Runs, root.Tasks[i].InFlight) {
			if ref.IsInline() {
				continue
			}
			r.mu.Lock()
			size, known := r.files[ref.File]
			if known && r.merged[root.Tasks[i].Task.String()] == ref.File {
				known = false // no root has vouched for it: who took this instance for gone may have removed it
			}
			r.mu.Unlock()
			if known && size == ref.FileSize {
				continue
			}
			o, err := r.openRun(ctx, ref)
			if err != nil {
				return r.readError(ctx, parseFilePath(ref.File).name.String(), ref.File, "run", err)
			}
			o.Close()
			r.know(ref)
		}
	}
	return nil
}

// Present makes sure that the files of a task's runs are there with their sizes, without reading them: for a restore that
// takes the state from elsewhere. One that is not gives a CorruptError.
func (r *Repository) Present(ctx context.Context, entry TaskEntry) error {
	for _, ref := range slices.Concat(entry.Runs, entry.InFlight) {
		o, err := r.openRun(ctx, ref)
		if err != nil {
			return r.readError(ctx, parseFilePath(ref.File).name.String(), ref.File, "run", err)
		}
		o.Close()
	}
	return nil
}

func (r *Repository) know(ref RunRef) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.files) >= maxKnownFiles {
		clear(r.files)
	}
	r.files[ref.File] = ref.FileSize
}

func writeBytes(b []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

// ReadRoot reads a root and verifies that it is the one named: digest, checksum, name, application, instance and
// store id. A damaged or missing one gives a CorruptError.
func (r *Repository) ReadRoot(ctx context.Context, ref RootRef) (*Root, error) {
	root, got, err := r.loadRoot(ctx, ref.Path)
	if err != nil {
		return nil, err
	}
	if got.Digest != ref.Digest || got.Name != ref.Name {
		return nil, corrupt(ref.Name.String(), ref.Path, "root", formatf("digest mismatch: it is not the root that was committed"))
	}
	return root, nil
}

// loadRoot reads the root at a path and checks that it belongs there.
func (r *Repository) loadRoot(ctx context.Context, path string) (*Root, RootRef, error) {
	p := parseFilePath(path)
	if p.kind != rootFile {
		return nil, RootRef{}, corrupt("", path, "root", formatf("not the path of a root"))
	}
	b, err := readAll(ctx, r.st, path, maxRootSize)
	if err != nil {
		return nil, RootRef{}, r.readError(ctx, p.name.String(), path, "root", err)
	}
	root, err := decodeRoot(b)
	switch {
	case err != nil:
	case root.Name != p.name || root.Application+"/"+root.Instance != p.dir:
		err = formatf("it holds root %s of %s/%s", root.Name, root.Application, root.Instance)
	case root.StoreID != r.storeID && r.storeID != "": // empty only in RefuseOtherClusters
		err = formatf("it was written to another checkpoint directory (store id %q, here %q)", root.StoreID, r.storeID)
	}
	if err != nil {
		return nil, RootRef{}, corrupt(p.name.String(), path, "root", err)
	}
	return root, RootRef{Name: p.name, Path: path, Digest: digestOf(b)}, nil
}

// readError is the function of that name.
func (r *Repository) readError(ctx context.Context, checkpoint, file, kind string, err error) error {
	return readError(ctx, r.st, checkpoint, file, kind, err)
}

// LoadedRoot is a root or the reason why it cannot be had.
type LoadedRoot struct {
	Root *Root
	Err  error
}

// LoadRoots reads the named roots, for ResolveInput.Roots. Damaged and missing ones are reported in the map; the
// error is for a directory that cannot be read and for the end of ctx.
func (r *Repository) LoadRoots(ctx context.Context, refs []RootRef) (map[RootRef]LoadedRoot, error) {
	out := make(map[RootRef]LoadedRoot, len(refs))
	for _, ref := range refs {
		if _, ok := out[ref]; ok {
			continue
		}
		root, err := r.ReadRoot(ctx, ref)
		var bad *CorruptError
		if err != nil && !errors.As(err, &bad) {
			return nil, err
		}
		out[ref] = LoadedRoot{Root: root, Err: err}
	}
	return out, nil
}

// MarkCommitted notes beside the root that its transaction is committed. Repeating it is harmless. A process that is slow to
// do it, or was stopped before, may come when the root has been superseded and removed: then none is written, and none stays. It is looked
// both before and behind, for a process that is killed in between leaves one that stands for a lost root, and it had best be rare.
func (r *Repository) MarkCommitted(ctx context.Context, ref RootRef) error {
	p := parseFilePath(ref.Path)
	if p.kind != rootFile || p.dir != r.dir || p.name != ref.Name {
		return fmt.Errorf("mark %s committed: %q is not the path of a root of this instance", ref.Name, ref.Path)
	}
	if r.writes(ref.Name) {
		r.mu.Lock()
		r.newest = max(r.newest, ref.Name.ID)
		r.mu.Unlock()
	}
	p.kind = markerFile
	if r.exists(ctx, ref.Path) {
		_, err := r.st.Put(ctx, p.String(), writeBytes(encodeMarker(ref)))
		switch {
		case err != nil && !errors.Is(err, fs.ErrExist):
			return err
		case r.exists(ctx, ref.Path):
			return nil
		}
	}
	err := r.st.Delete(ctx, p.String())
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}
