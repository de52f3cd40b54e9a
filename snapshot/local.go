package snapshot

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"

	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

// Local is Storage in a directory.
type Local struct {
	fs   vfs.FS
	dir  string // for messages
	kind string // how messages call the directory
	id   string // 8 hex digits that begin the names of this Local's temporary files

	mu    sync.Mutex
	known map[string]bool // directories that are durable
	busy  map[string]bool // temporary files being written
	swept map[string]bool // directories that were swept before

	buffers sync.Pool // *bufio.Writer
}

var (
	_ Storage  = (*Local)(nil)
	_ Buffered = (*Local)(nil)
)

// OpenLocal opens a directory as Storage, making it when it is not there, and checks that it can be read and
// written. Errors are faults with code CheckpointDir that name the directory and the reason.
func OpenLocal(dir string) (*Local, error) { return openLocal(checkpointDir, dir) }

// How messages call the directories.
const (
	checkpointDir = "checkpoint directory"
	savepointDir  = "savepoint directory"
)

func openLocal(kind, dir string) (*Local, error) {
	l, err := makeLocal(kind, dir)
	if err != nil {
		return nil, err
	}
	if err := l.probe(); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// makeLocal is openLocal without the probe.
func makeLocal(kind, dir string) (*Local, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fault.Stopf(fault.CheckpointDir, "%s %s: %w", kind, dir, err)
	}
	if err := vfs.MkdirAll(abs, 0o750); err != nil {
		return nil, fault.Stopf(fault.CheckpointDir, "%s %s cannot be made: %w", kind, abs, err)
	}
	return openLocalReadOnly(kind, abs)
}

// OpenLocalReadOnly opens a directory that exists, for tools that only look.
func OpenLocalReadOnly(dir string) (*Local, error) { return openLocalReadOnly(checkpointDir, dir) }

func openLocalReadOnly(kind, dir string) (*Local, error) {
	osfs, err := vfs.OpenOS(dir)
	if err != nil {
		return nil, fault.Stopf(fault.CheckpointDir, "%s %s cannot be opened: %w", kind, dir, err)
	}
	l := NewLocal(osfs, dir)
	l.kind = kind
	return l, nil
}

// fault classes an error of the directory; see ioFault.
func (l *Local) fault(what string, err error) error { return ioFaultOf(l.kind, l.dir, what, err) }

// NewLocal makes Storage of a file system; dir is how messages name it. The file system is closed with the Local.
func NewLocal(fsys vfs.FS, dir string) *Local {
	l := &Local{fs: fsys, dir: dir, kind: checkpointDir, id: randomHex(), known: map[string]bool{".": true}, busy: map[string]bool{}, swept: map[string]bool{}}
	l.SetWriteBuffer(DefaultWriteBufferSize)
	return l
}

// SetWriteBuffer sets the bytes that a Put collects before it writes.
func (l *Local) SetWriteBuffer(bytes int) {
	l.buffers.New = func() any { return bufio.NewWriterSize(nil, bytes) }
}

// probe writes and removes a temporary file, so that a directory that cannot be written is refused at the start and
// not at the first checkpoint.
func (l *Local) probe() error {
	if _, err := l.fs.ReadDir("."); err != nil {
		return l.fault("it cannot be read", err)
	}
	tmp := l.tempName(".")
	f, err := l.fs.Create(tmp)
	if err == nil {
		_, err = f.Write([]byte("probe\n"))
		err = errors.Join(err, f.Close())
		if rerr := l.fs.Remove(tmp); !errors.Is(rerr, fs.ErrNotExist) { // another process may have tidied up
			err = errors.Join(err, rerr)
		}
	}
	return l.fault("it cannot be written", err)
}

// Location gives the directory.
func (l *Local) Location() string { return l.dir }

// Close closes the file system.
func (l *Local) Close() error { return l.fs.Close() }

// tempName draws the name of a file being written. It does not depend on the final name, so its length is bounded.
func (l *Local) tempName(dir string) string { return path.Join(dir, l.id+randomHex()+tempSuffix) }

func randomHex() string {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func isTemp(base string) bool {
	hexes, ok := strings.CutSuffix(base, tempSuffix)
	if !ok || len(hexes) != 16 {
		return false
	}
	_, err := hex.DecodeString(hexes)
	return err == nil
}

// Put writes a new file: temporary name, write, fsync, link to the final name, which never replaces, fsync of the
// directory.
func (l *Local) Put(ctx context.Context, name string, write func(io.Writer) error) (FileInfo, error) {
	if !validPath(name) {
		return FileInfo{}, fmt.Errorf("put %q: %w", name, fs.ErrInvalid)
	}
	info, err := l.put(ctx, name, write)
	if errors.Is(err, fs.ErrNotExist) {
		err = l.missing(name, err)
	}
	return info, l.fault("write "+name, err)
}

// missing tells a file that was taken away while it was written from a directory that is gone. Others remove what this
// process is writing when it has slept for so long that it counts as gone, and when a successor has its place; the next
// attempt finds out which.
func (l *Local) missing(name string, err error) error {
	if _, rerr := l.fs.ReadDir("."); errors.Is(rerr, fs.ErrNotExist) {
		return fault.Stopf(fault.CheckpointDir, "%s %s has vanished: write %s: %w", l.kind, l.dir, name, err)
	}
	return fault.Restartf(fault.CheckpointDir, "%s %s: write %s: the file was removed while it was written: this process has slept for long, or another one uses its instance id: %w", l.kind, l.dir, name, err)
}

func (l *Local) put(ctx context.Context, name string, write func(io.Writer) error) (FileInfo, error) {
	dir := path.Dir(name)
	f, tmp, err := l.createTemp(dir)
	if err != nil {
		return FileInfo{}, err
	}
	defer l.setBusy(tmp, false)
	w := &putWriter{ctx: ctx, f: f}
	err = w.fill(&l.buffers, write)
	if err == nil {
		err = syncFile(f, strings.HasSuffix(name, rootSuffix))
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = failpoint.Err(failpoint.RenameBefore)
	}
	if err == nil {
		err = l.publish(tmp, name)
	}
	if err != nil {
		l.fs.Remove(tmp) // best effort; what stays is swept at the next start
		return FileInfo{}, err
	}
	if err = failpoint.Err(failpoint.RenameAfter); err == nil {
		err = failpoint.Err(failpoint.DirFsyncBefore)
	}
	if err == nil {
		err = l.fs.SyncDir(dir)
	}
	if err != nil {
		// The name may or may not be durable. Nothing refers to it, so it is taken back.
		l.fs.Remove(name)
		return FileInfo{}, err
	}
	failpoint.Hit(failpoint.DirFsyncAfter)
	return FileInfo{Name: name, Length: w.n, CRC32C: w.crc}, nil
}

// syncFile is never retried: after an error the file is given up.
func syncFile(f vfs.File, root bool) (err error) {
	if root {
		err = failpoint.Err(failpoint.RootFsyncBefore)
	} else {
		err = failpoint.Err(failpoint.FileFsyncBefore)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return err
	}
	if root {
		return failpoint.Err(failpoint.RootFsyncAfter)
	}
	return failpoint.Err(failpoint.FileFsyncAfter)
}

// createTemp makes the directory when needed, once more when it has vanished since.
func (l *Local) createTemp(dir string) (vfs.File, string, error) {
	for attempt := 0; ; attempt++ {
		if err := l.ensureDir(dir); err != nil {
			return nil, "", err
		}
		tmp := l.tempName(dir)
		l.setBusy(tmp, true)
		f, err := l.fs.Create(tmp)
		if err == nil {
			return f, tmp, nil
		}
		l.setBusy(tmp, false)
		if !errors.Is(err, fs.ErrNotExist) || attempt > 0 {
			return nil, "", err
		}
		l.mu.Lock()
		l.known = map[string]bool{".": true}
		l.mu.Unlock()
	}
}

func (l *Local) setBusy(tmp string, on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if on {
		l.busy[tmp] = true
	} else {
		delete(l.busy, tmp)
	}
}

// ensureDir makes a directory and makes the names on the way durable.
func (l *Local) ensureDir(dir string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known[dir] {
		return nil
	}
	if err := l.fs.MkdirAll(dir); err != nil {
		return err
	}
	for at := dir; at != "."; at = path.Dir(at) {
		if err := l.fs.SyncDir(path.Dir(at)); err != nil {
			return err
		}
	}
	l.known[dir] = true
	return nil
}

// publish gives the finished file its name without replacing another. File systems without hard links get a check
// and a rename: the names carry an incarnation, so only a repeated call could race there. The store id has one name for all:
// whoever makes that, empty, replaces it.
func (l *Local) publish(tmp, name string) error {
	err := l.fs.Link(tmp, name)
	switch {
	case err == nil:
		l.fs.Remove(tmp) // best effort, see put
		return nil
	case errors.Is(err, fs.ErrExist):
		return err
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EMLINK):
		if name == storeIDFile {
			return l.claim(tmp, name)
		}
		if _, serr := l.fs.Stat(name); serr == nil {
			return &fs.PathError{Op: "put", Path: name, Err: fs.ErrExist}
		} else if !errors.Is(serr, fs.ErrNotExist) {
			return serr
		}
		return l.fs.Rename(tmp, name)
	}
	return err
}

func (l *Local) claim(tmp, name string) error {
	f, err := l.fs.Create(name)
	if err != nil {
		return err
	}
	if err = f.Close(); err == nil {
		if err = l.fs.Rename(tmp, name); err == nil {
			return nil
		}
	}
	// What has come under the name is not taken away, whatever the error says: others may have read it.
	if info, serr := l.fs.Stat(name); serr == nil && info.Size == 0 {
		l.fs.Remove(name) // best effort, see awaitStoreID
	}
	return err
}

// Open opens a file.
func (l *Local) Open(ctx context.Context, name string) (Object, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if !validPath(name) {
		return nil, fmt.Errorf("open %q: %w", name, fs.ErrInvalid)
	}
	f, err := l.fs.Open(name)
	if no := (*vfs.NotFileError)(nil); errors.As(err, &no) {
		return nil, formatf("it is %s, not a file", no.What)
	}
	if err != nil {
		return nil, l.fault("read "+name, err)
	}
	return f, nil
}

// List walks the directory of the prefix. Names that are not ours to have are passed over, and so are links and devices that
// do not have the name of one of our files.
func (l *Local) List(ctx context.Context, prefix string) ([]FileInfo, error) {
	start := "."
	if prefix != "" {
		start = strings.TrimSuffix(prefix, "/")
		if start == prefix || !validPath(start) {
			return nil, fmt.Errorf("list %q: %w", prefix, fs.ErrInvalid)
		}
	}
	var out []FileInfo
	if err := l.walk(ctx, start, start, &out); err != nil {
		return nil, l.fault("list "+prefix, err)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

func (l *Local) walk(ctx context.Context, start, dir string, out *[]FileInfo) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	entries, err := l.fs.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // never made, or removed meanwhile
	case errors.Is(err, syscall.ENOTDIR) && dir != start:
		return nil // a link to something else
	case errors.Is(err, fs.ErrPermission) && l.isOurs(dir+"/"+savepointMeta):
		*out = append(*out, FileInfo{Name: dir + "/" + savepointMeta, NotFile: "of an unknown kind"}) // who opens it is told why
		return nil
	case err != nil:
		return err
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name)
		switch {
		case l.kind == savepointDir && namesSavepoint(dir) && e.Regular && isTemp(e.Name): // nobody sweeps there
			*out = append(*out, FileInfo{Name: name, Length: e.Size, Modified: e.Mod})
		case !validPath(name):
		case !e.Regular && l.isOurs(name):
			*out = append(*out, FileInfo{Name: name, NotFile: e.What})
		case e.Err != nil && start != "." && dir == start && validSegment(e.Name):
			return e.Err // an instance's directory, maybe
		case l.kind == savepointDir && dir == "." && !namesSavepoint(e.Name): // somebody else's
		case e.Dir, e.What == vfs.Link && l.kind == checkpointDir && start != "." && dir == start: // one in place of an instance's directory
			if err := l.walk(ctx, start, name, out); err != nil {
				return err
			}
		case e.Regular:
			*out = append(*out, FileInfo{Name: name, Length: e.Size, Modified: e.Mod})
		}
	}
	return nil
}

// namesSavepoint reports whether a directory has the name of a savepoint.
func namesSavepoint(name string) bool {
	_, _, ok := parseSavepointName(name)
	return ok
}

// isOurs reports whether a name is that of a file which we write.
func (l *Local) isOurs(name string) bool {
	if _, ok := announcedBy(name); ok || name == storeIDFile || parseFilePath(name).kind != foreignFile {
		return true
	}
	dir, base := path.Split(name)
	return l.kind == savepointDir && namesSavepoint(strings.TrimSuffix(dir, "/")) && (base == savepointMeta || base == savepointData)
}

// Delete removes a file. The removal need not be durable: a file that comes back is deleted again; see SyncDir.
func (l *Local) Delete(ctx context.Context, name string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if !validPath(name) {
		return fmt.Errorf("delete %q: %w", name, fs.ErrInvalid)
	}
	return l.fault("delete "+name, l.fs.Remove(name))
}

// Sweep removes temporary files directly below a prefix, save those that this Local is writing: the first time all, for
// this Local's process has just taken over; later only its own, because another one may have taken over from it.
func (l *Local) Sweep(ctx context.Context, prefix string) (int, error) {
	dir := strings.TrimSuffix(prefix, "/")
	if !validPath(dir) {
		return 0, fmt.Errorf("sweep %q: %w", prefix, fs.ErrInvalid)
	}
	l.mu.Lock()
	again := l.swept[dir]
	l.swept[dir] = true
	l.mu.Unlock()
	entries, err := l.fs.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	n := 0
	for _, e := range entries {
		name := path.Join(dir, e.Name)
		if !e.Regular || !isTemp(e.Name) || l.isBusy(name) || (again && !strings.HasPrefix(e.Name, l.id)) {
			continue
		}
		if err = context.Cause(ctx); err != nil {
			break
		}
		if err = l.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			break
		}
		err = nil // one that is gone meanwhile was finished
		n++
	}
	return n, l.fault("sweep "+prefix, err)
}

func (l *Local) isBusy(tmp string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy[tmp]
}

// putWriter counts, sums and passes on to the file; it ends with the context.
type putWriter struct {
	ctx context.Context
	f   vfs.File
	n   int64
	crc uint32
}

func (w *putWriter) fill(buffers *sync.Pool, write func(io.Writer) error) error {
	b := buffers.Get().(*bufio.Writer)
	b.Reset(w)
	defer func() {
		b.Reset(nil)
		buffers.Put(b)
	}()
	if err := write(b); err != nil {
		return err
	}
	return b.Flush()
}

// Write is called by the buffer, so each call is a large one.
func (w *putWriter) Write(p []byte) (int, error) {
	if err := context.Cause(w.ctx); err != nil {
		return 0, err
	}
	n, err := w.f.Write(p)
	w.crc = crc32.Update(w.crc, castagnoli, p[:n])
	w.n += int64(n)
	return n, err
}
