package vfs

import (
	"io/fs"
	"path"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Mem is a file system in memory that can lose power. Each operation is counted; a fault function may fail it; Crash
// leaves what a disk could have left. For tests.
type Mem struct {
	mu     sync.Mutex
	dirs   map[string]*memDir // by cleaned path; "." is the root
	epoch  int                // grows at every crash; files opened before it are dead
	ops    int
	fault  func(Op) error
	limit  int64 // bytes; 0 = none
	open   int
	halted bool
	now    func() time.Time
}

var _ FS = (*Mem)(nil)

// memDir is one directory: the names as a process sees them and the names that are durable.
type memDir struct{ now, durable map[string]*memNode }

// memNode is a file (dir false) or the fact that a sub-directory exists.
type memNode struct {
	dir  bool
	mod  time.Time
	data []byte
	// durable is the content that a crash cannot take; dirty holds the numbers of the blocks that differ from it.
	durable []byte
	dirty   map[int]bool
	// lost holds blocks whose fsync failed: the kernel marked them clean, so no later Sync writes them.
	lost map[int]bool
}

func (n *memNode) what() string {
	if n.dir {
		return whatIs(fs.ModeDir)
	}
	return ""
}

func newMemDir() *memDir { return &memDir{now: map[string]*memNode{}, durable: map[string]*memNode{}} }

// NewMem gives an empty file system.
func NewMem() *Mem { return &Mem{dirs: map[string]*memDir{".": newMemDir()}, now: time.Now} }

// SetClock gives the time that files are written at from now on.
func (m *Mem) SetClock(now func() time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = now
}

// SetLimit sets the capacity in bytes; a write beyond it fails with ENOSPC after writing what fits. 0 = no limit.
func (m *Mem) SetLimit(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = n
}

// OpenFiles tells how many files are open, so that tests can find leaks.
func (m *Mem) OpenFiles() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open
}

func pathErr(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

// find gives the directory and last element of a name. Called with mu held.
func (m *Mem) find(op, name string) (*memDir, string, error) {
	if !fs.ValidPath(name) || name == "." {
		return nil, "", pathErr(op, name, fs.ErrInvalid)
	}
	d := m.dirs[path.Dir(name)]
	if d == nil {
		return nil, "", pathErr(op, name, fs.ErrNotExist)
	}
	return d, path.Base(name), nil
}

// Create makes a new file.
func (m *Mem) Create(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(OpCreate, name, 0); err != nil {
		return nil, pathErr("create", name, err)
	}
	d, base, err := m.find("create", name)
	if err != nil {
		return nil, err
	}
	if d.now[base] != nil {
		return nil, pathErr("create", name, fs.ErrExist)
	}
	n := &memNode{dirty: map[int]bool{}, lost: map[int]bool{}, mod: m.now()}
	d.now[base] = n
	m.open++
	return &memFile{m: m, n: n, name: name, epoch: m.epoch, writable: true}, nil
}

// Open opens a file for reading.
func (m *Mem) Open(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(OpOpen, name, 0); err != nil {
		return nil, pathErr("open", name, err)
	}
	d, base, err := m.find("open", name)
	if err != nil {
		return nil, err
	}
	n := d.now[base]
	switch {
	case n == nil:
		return nil, pathErr("open", name, fs.ErrNotExist)
	case n.dir:
		return nil, &NotFileError{Name: name, What: whatIs(fs.ModeDir)}
	}
	m.open++
	return &memFile{m: m, n: n, name: name, epoch: m.epoch}, nil
}

// Link gives a file a second name.
func (m *Mem) Link(oldname, newname string) error {
	return m.move(OpLink, oldname, newname)
}

// Rename moves a file, replacing the target.
func (m *Mem) Rename(oldname, newname string) error {
	return m.move(OpRename, oldname, newname)
}

func (m *Mem) move(op OpKind, oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(op, newname, 0); err != nil {
		return pathErr(op.String(), newname, err)
	}
	from, oldbase, err := m.find(op.String(), oldname)
	if err != nil {
		return err
	}
	to, newbase, err := m.find(op.String(), newname)
	if err != nil {
		return err
	}
	n := from.now[oldbase]
	switch {
	case n == nil:
		return pathErr(op.String(), oldname, fs.ErrNotExist)
	case n.dir:
		return pathErr(op.String(), oldname, fs.ErrInvalid)
	case to.now[newbase] != nil && (op == OpLink || to.now[newbase].dir):
		return pathErr(op.String(), newname, fs.ErrExist)
	}
	to.now[newbase] = n
	if op == OpRename && oldname != newname {
		delete(from.now, oldbase)
	}
	return nil
}

// Remove removes a file or an empty directory.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(OpRemove, name, 0); err != nil {
		return pathErr("remove", name, err)
	}
	d, base, err := m.find("remove", name)
	if err != nil {
		return err
	}
	n := d.now[base]
	if n == nil {
		return pathErr("remove", name, fs.ErrNotExist)
	}
	if n.dir {
		if len(m.dirs[name].now) > 0 {
			return pathErr("remove", name, syscall.ENOTEMPTY)
		}
		delete(m.dirs, name)
	}
	delete(d.now, base)
	return nil
}

// MkdirAll makes directories.
func (m *Mem) MkdirAll(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(OpMkdir, dir, 0); err != nil {
		return pathErr("mkdir", dir, err)
	}
	if !fs.ValidPath(dir) {
		return pathErr("mkdir", dir, fs.ErrInvalid)
	}
	if dir == "." {
		return nil
	}
	at := "."
	for _, part := range strings.Split(dir, "/") {
		parent := m.dirs[at]
		at = path.Join(at, part)
		switch n := parent.now[part]; {
		case n == nil:
			parent.now[part] = &memNode{dir: true}
			m.dirs[at] = newMemDir()
		case !n.dir:
			return pathErr("mkdir", at, syscall.ENOTDIR)
		}
	}
	return nil
}

// ReadDir lists a directory.
func (m *Mem) ReadDir(dir string) ([]Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(OpReadDir, dir, 0); err != nil {
		return nil, pathErr("readdir", dir, err)
	}
	d := m.dirs[dir]
	if d == nil {
		return nil, pathErr("readdir", dir, fs.ErrNotExist)
	}
	out := make([]Entry, 0, len(d.now))
	for name, n := range d.now {
		out = append(out, Entry{Name: name, Size: int64(len(n.data)), Dir: n.dir, Regular: !n.dir, What: n.what(), Mod: n.mod})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

// Stat describes a name.
func (m *Mem) Stat(name string) (Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(OpStat, name, 0); err != nil {
		return Entry{}, pathErr("stat", name, err)
	}
	if name == "." {
		return Entry{Name: ".", Dir: true, What: whatIs(fs.ModeDir)}, nil
	}
	d, base, err := m.find("stat", name)
	if err != nil {
		return Entry{}, err
	}
	n := d.now[base]
	if n == nil {
		return Entry{}, pathErr("stat", name, fs.ErrNotExist)
	}
	return Entry{Name: base, Size: int64(len(n.data)), Dir: n.dir, Regular: !n.dir, What: n.what(), Mod: n.mod}, nil
}

// SyncDir makes the names of one directory durable.
func (m *Mem) SyncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(OpSyncDir, dir, 0); err != nil {
		return pathErr("syncdir", dir, err)
	}
	d := m.dirs[dir]
	if d == nil {
		return pathErr("syncdir", dir, fs.ErrNotExist)
	}
	d.durable = make(map[string]*memNode, len(d.now))
	for name, n := range d.now {
		d.durable[name] = n
	}
	return nil
}

// Close does nothing: the content stays for the test to look at.
func (m *Mem) Close() error { return nil }
